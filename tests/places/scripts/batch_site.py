"""Programs of batch systems that answer as their manuals say, and carry jobs out on this machine.

    python batch_site.py PROGRAM ARGUMENTS ...      with the site's folder in $BATCH_SITE

A job has a process of its own that waits, runs the script, ends it, and starts it again, as a batch system's daemon
does. Who wants something of a job leaves a file: `full` in the site's folder, `ID.held`, `ID.deleted`, `ID.requeue`.
The job gets no more of its submitter's environment than it asked for.
"""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

SITE = Path(os.environ["BATCH_SITE"])
HOSTS = tuple(f"127.0.0.{number}" for number in range(1, 5))
USER = pwd.getpwuid(os.geteuid()).pw_name
STEP_S, KILL_DELAY_S = 0.02, 10.0


# -- jobs, whichever the batch system is


def write(job):
    file = SITE / f"{job['id']}.json"
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(job))
    draft.rename(file)


def jobs():
    return sorted((json.loads(file.read_text()) for file in SITE.glob("*.json")), key=lambda job: job["order"])


def mark(job, what):
    return SITE / f"{job['id']}.{what}"


def submit(made, elements, hold):
    """Have so many jobs, each carried out by a process that outlives this one."""
    for index, name in elements:
        job = {**made, "id": name, "index": index, "state": "queued", "runs": 0, "order": time.time_ns(), "code": None}
        if hold:
            mark(job, "held").touch()
        write(job)
        quiet = subprocess.DEVNULL
        argv = [sys.executable, __file__, "carry-out", name]
        subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, cwd="/")


def next_number():
    number = sum(1 for _ in SITE.glob("*.number")) + 1
    (SITE / f"{number}.number").touch()
    return number


def carry_out(name):
    job = json.loads((SITE / f"{name}.json").read_text())
    while True:
        while (SITE / "full").exists() or mark(job, "held").exists():
            if mark(job, "deleted").exists():
                break
            time.sleep(STEP_S)
        if mark(job, "deleted").exists():
            write({**job, "state": "ended"})
            return
        job |= {"state": "running", "started": time.time(), "runs": job["runs"] + 1}
        write(job)
        job["code"] = run(job)
        again = mark(job, "requeue").exists() or job["code"] in job["again"]
        mark(job, "requeue").unlink(missing_ok=True)
        if not again or mark(job, "deleted").exists():
            write({**job, "state": "ended"})
            return
        job |= {"state": "queued"}
        write(job)


def run(job):
    """Carry one start of the job out; gives its exit code, below 0 for a signal."""
    hostfile = mark(job, "hosts")
    hostfile.write_text("".join(f"{host}\n" for host in job["hosts"] for _ in range(job["lines"])))
    told = {"HOME": str(Path.home()), "USER": USER, "LOGNAME": USER, "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    env = {**told, **job["env"], **{name: text.format(hosts=hostfile) for name, text in job["variables"].items()}}
    script = mark(job, "sh")
    script.write_text(job["script"])
    with open(job["output"], "ab") as out:
        child = subprocess.Popen(
            ["/bin/sh", str(script)], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, cwd="/",
        )  # fmt: skip
    killed_at = None
    while child.poll() is None:
        if killed_at is None and (mark(job, "deleted").exists() or mark(job, "requeue").exists()):
            killed_at = time.monotonic() + KILL_DELAY_S
            os.killpg(child.pid, signal.SIGTERM)
        if killed_at is not None and time.monotonic() > killed_at:
            os.killpg(child.pid, signal.SIGKILL)
        time.sleep(STEP_S)
    for task in mark(job, "tasks").read_text().split() if mark(job, "tasks").exists() else []:
        try:
            os.killpg(int(task), signal.SIGKILL)
        except ProcessLookupError:
            continue
    mark(job, "tasks").unlink(missing_ok=True)
    return child.returncode


def start_on(host, hostfile, name, argv, **streams):
    """A program of the job on one of its hosts, with the job's own environment; gives its exit code."""
    if host not in Path(hostfile).read_text().split():
        sys.exit(f'host "{host}" is not a node in job <{name}>')
    job = json.loads((SITE / f"{name}.json").read_text())
    told = {"HOME": str(Path.home()), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    env = {**told, **job["env"], **{key: text.format(hosts=hostfile) for key, text in job["variables"].items()}}
    task = subprocess.Popen(argv, env=env, start_new_session=True, cwd="/", **streams)
    with mark(job, "tasks").open("a") as file:
        file.write(f"{task.pid}\n")
    return task.wait()


def options_of(argv, flags, valued, sign, script):
    """Options of the command line, and of the script's directives, which count less."""
    words = {}
    for line in script.splitlines():
        if line.startswith(f"{sign} "):
            name, _, value = line.removeprefix(f"{sign} ").partition(" ")
            words.setdefault(name, []).append(value.strip('"'))
    from_line, rest = {}, list(argv)
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        from_line.setdefault(name, []).append("" if name in flags else rest.pop(0))
    unknown = [name for name in (*words, *from_line) if name not in flags and name not in valued]
    if unknown:
        sys.exit(f"illegal option {unknown[0]}")
    return words | from_line, rest


def environment_of(names):
    """NAME=VALUE as it is, NAME with what it has here."""
    pairs = (one.partition("=") for one in names.split(",") if one)
    return {name: value if sign else os.environ.get(name, "") for name, sign, value in pairs}


# -- PBS


def qsub(argv):
    script = Path(argv[-1]).read_text() if argv and not argv[-1].startswith("-") and Path(argv[-1]).is_file() else None
    argv = argv[:-1] if script is not None else argv
    script = sys.stdin.read() if script is None else script
    valued = {*"-N -S -j -o -r -v -J -q -P -A -p -a -l -W -m".split()}
    options, _ = options_of(argv, {"-h"}, valued, "#PBS", script)
    if options.get("-q") == ["closed"]:
        sys.exit("qsub: Queue is not enabled")
    asked = dict(one.partition("=")[::2] for one in options["-l"])
    count, *chunk = asked["select"].split(":")
    number, output = next_number(), options.get("-o", ["/dev/null"])[0]
    size = int(options["-J"][0].partition("-")[2]) + 1 if "-J" in options else None
    whole = f"{number}[].pbs" if size else f"{number}.pbs"
    elements = [(index, f"{number}[{index}].pbs") for index in range(size)] if size else [(None, whole)]
    given = environment_of(options.get("-v", [""])[0])
    for index, name in elements:
        array = {"PBS_ARRAY_INDEX": str(index), "PBS_ARRAY_ID": whole} if size else {}
        made = {
            "array": whole if size else None, "name": options["-N"][0], "hosts": HOSTS[: int(count)], "lines": 1,
            "env": given, "script": script, "again": (), "asked": {**asked, "chunk": chunk},
            "output": output if not output.endswith("/") else f"{output}{name}.OU",
            "variables": {
                "PBS_JOBID": name, "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "{hosts}", "PBS_O_HOST": "login",
                **array,
            },
        }  # fmt: skip
        submit(made, [(index, name)], "-h" in options)
    print(whole)


def qselect(_argv):
    live = [job["array"] or job["id"] for job in jobs() if job["state"] != "ended"]
    print("".join(f"{name}\n" for name in dict.fromkeys(live)), end="")


def qstat(argv):
    if "-B" in argv:
        print(json.dumps({"pbs_version": "23.06.06", "Server": {"pbs": {"job_history_enable": "True"}}}))
        return 0
    history, ids = "-x" in argv, [word for word in argv if word[0].isdigit()]
    known = [job for job in jobs() if job["id"] in ids or job["array"] in ids]
    shown = [job for job in known if history or job["state"] != "ended"]
    told = {job["id"]: pbs_job(job) for job in shown}
    told |= {name: {"job_state": "B", "array": "True"} for name in ids if "[]" in name and told}
    code = 0
    for name in ids:
        if not any(name in (job["id"], job["array"]) for job in known):
            print(f"qstat: Unknown Job Id {name}", file=sys.stderr)
            code = 153
        elif name not in told:
            text = "Job has finished, use -x or -H to obtain historical job information"
            print(f"qstat: {name} {text}", file=sys.stderr)
            code = 35
    if told:
        print(json.dumps({"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": "pbs", "Jobs": told}))
    return code


def pbs_job(job):
    """As qstat -f -F json shows one."""
    held, deleted = mark(job, "held").exists(), mark(job, "deleted").exists()
    letter = {"running": "R", "ended": "X" if job["array"] else "F", "queued": "H" if held else "Q"}[job["state"]]
    when = time.strftime("%a %b %d at %H:%M", time.localtime(job.get("started", 0)))
    where = f"({job['hosts'][0]}:ncpus=1)"
    comment = f"Job run at {when} on {where}{f' and terminated by {USER}@login' if deleted else ''}"
    if job["state"] == "queued":
        comment = ""
    if job["state"] == "queued" and (SITE / "full").exists():
        comment = "Not Running: Insufficient amount of resource: ncpus (R: 2 A: 1 T: 4)"
    shown = {
        "Job_Name": job["name"], "Job_Owner": f"{USER}@login", "job_state": letter, "queue": "workq", "server": "pbs",
        "Rerunable": "True", "Resource_List": {"nodect": len(job["hosts"]), "select": job["asked"]["select"]},
        "substate": 60 if mark(job, "requeue").exists() else 42, "run_count": job["runs"], "comment": comment, "Priority": 0,
        "Variable_List": {"PBS_O_HOST": "login", "PBS_O_LANG": "en_US.UTF-8", **job["env"]},
    }  # fmt: skip
    if "walltime" in job["asked"]:
        shown["Resource_List"]["walltime"] = time.strftime("%H:%M:%S", time.gmtime(int(job["asked"]["walltime"])))
    if job["state"] != "queued":
        shown |= {"exec_host": "+".join(f"{host}/0*2" for host in job["hosts"]), "stime": time.ctime(job["started"])}
    if job["state"] == "ended" and job["code"] is not None:
        shown["Exit_status"] = job["code"] if job["code"] >= 0 else 256 - job["code"]
    return shown


def qdel(argv):
    return ended(argv[-1], "qdel: Unknown Job Id {}", 153)


def ended(name, unknown, code):
    """Have a job end."""
    job = next((job for job in jobs() if job["id"] == name and job["state"] != "ended"), None)
    if job is None:
        print(unknown.format(name), file=sys.stderr)
        return code
    mark(job, "deleted").touch()
    return 0


def qrls(argv):
    (SITE / f"{argv[-1]}.held").unlink()


def qrerun(argv):
    print(f"qrerun: Unauthorized Request  {argv[-1]}", file=sys.stderr)
    return 159


def pbsnodes(_argv):
    there = {"arch": "linux", "host": "", "mem": "16gb", "ncpus": 2, "ngpus": 0}
    nodes = {
        host: {"Mom": host, "state": "free", "resources_available": {**there, "host": host}, "resources_assigned": {}}
        for host in HOSTS
    }
    print(json.dumps({"timestamp": 1, "pbs_version": "23.06.06", "pbs_server": "pbs", "nodes": nodes}))


def pbs_tmrsh(argv):
    """Its output goes to the job's own files, and nothing of its input arrives."""
    host, *command = argv
    if "PBS_ENVIRONMENT" not in os.environ:
        sys.exit("pbs_tmrsh: not executing under PBS")
    quiet = subprocess.DEVNULL
    name, hostfile = os.environ["PBS_JOBID"], os.environ["PBS_NODEFILE"]
    return start_on(host, hostfile, name, command, stdin=quiet, stdout=quiet, stderr=quiet)


PROGRAMS = (qsub, qselect, qstat, qdel, qrls, qrerun, pbsnodes, pbs_tmrsh)


def main():
    program, *argv = sys.argv[1:]
    if program == "carry-out":
        carry_out(*argv)
        return 0
    return {one.__name__: one for one in PROGRAMS}[program](argv) or 0


if __name__ == "__main__":
    sys.exit(main())
