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
STEP_S = 0.02


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
    told, due = None, list(job["signals"])
    while child.poll() is None:
        if told is None and (mark(job, "deleted").exists() or mark(job, "requeue").exists()):
            told = time.monotonic()
        while told is not None and due and time.monotonic() >= told + due[0][0]:
            os.killpg(child.pid, due.pop(0)[1])
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
            "env": given, "script": script, "again": (), "signals": [(0, signal.SIGTERM), (10, signal.SIGKILL)], "asked": {**asked, "chunk": chunk},
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
    """Return a job as `qstat -f -F json` shows it."""
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
    """Run a command as pbs_tmrsh does: its output goes to the job's files, and it gets no input."""
    host, *command = argv
    if "PBS_ENVIRONMENT" not in os.environ:
        sys.exit("pbs_tmrsh: not executing under PBS")
    quiet = subprocess.DEVNULL
    name, hostfile = os.environ["PBS_JOBID"], os.environ["PBS_NODEFILE"]
    return start_on(host, hostfile, name, command, stdin=quiet, stdout=quiet, stderr=quiet)


# -- LSF


def bsub(argv):
    """The script is on its stdin; without -env a job would get all of the environment."""
    script = sys.stdin.read()
    valued = {*"-J -Jd -o -Q -q -P -G -app -n -R -gpu -W -b -w -env".split()}
    options, _ = options_of(argv, {"-r", "-H"}, valued, "#BSUB", script)
    one = {name: values[-1] for name, values in options.items()}
    if one.get("-q") == "closed":
        sys.exit("closed: Queue has been closed. Job not submitted.")
    number = str(next_number())
    name, size = re.fullmatch(r"([^[]+)(?:\[1-([0-9]+)\])?", one["-J"]).groups()
    each = int(re.search(r"span\[ptile=([0-9]+)\]", one["-R"])[1])
    given = dict(os.environ) if "-env" not in one else environment_of(one["-env"])
    # Of a job on several hosts only SIGKILL is sent, unless LSB_USE_SEQUENTIAL_SIGNAL is set.
    gently = [(0, signal.SIGINT), (0.5, signal.SIGTERM), (10, signal.SIGKILL)]
    for index in range(1, int(size) + 1) if size else [0]:
        job = f"{number}[{index}]" if index else number
        made = {
            "array": number if size else None, "name": f"{name}[{index}]" if index else name, "lines": each,
            "hosts": HOSTS[: int(one["-n"]) // each], "env": given, "script": script, "asked": one,
            "signals": gently if int(one["-n"]) == each else [(0, signal.SIGKILL)],
            "again": [int(code) for code in one.get("-Q", "").split()],
            "output": one.get("-o", "/dev/null").replace("%J", number).replace("%I", str(index)),
            "variables": {
                "LSB_JOBID": number, "LSB_JOBINDEX": str(index), "LSB_DJOB_HOSTFILE": "{hosts}",
                "LSB_HOSTS": " ".join(HOSTS[: int(one["-n"]) // each]),
            },
        }  # fmt: skip
        submit(made, [(index, job)], "-H" in options)
    print(f"Job <{number}> is submitted to {'queue' if '-q' in one else 'default queue'} <{one.get('-q', 'normal')}>.")


def bjobs(argv):
    ids = [word for word in argv if word[0].isdigit()]
    known = [job for job in jobs() if not ids or job["id"] in ids or job["array"] in ids]
    records = [lsf_job(job) for job in known if "-a" in argv or ids or job["state"] != "ended"]
    found = {name for job in known for name in (job["id"], job["array"])}
    records += [{"JOBID": name, "ERROR": f"Job <{name}> is not found"} for name in ids if name not in found]
    if not records:
        print("No job found", file=sys.stderr)
        return 255
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2).replace("/", "\\/"))


def lsf_job(job):
    """Return a job as `bjobs -json -o` shows it: every value is text."""
    held, deleted = mark(job, "held").exists(), mark(job, "deleted").exists()
    word = {"running": "RUN", "queued": "PSUSP" if held else "PEND", "ended": "EXIT" if job["code"] else "DONE"}
    reason = {"PSUSP": "Job was suspended by the user while pending;", "PEND": "New job is waiting for scheduling;"}
    if (SITE / "full").exists():
        reason["PEND"] = (
            "Not enough slots or resources for whole duration of the job;Closed by LSF administrator: 1 host;"
        )
    if job["state"] == "queued" and "-w" in job["asked"] and not held:
        reason["PEND"] = "Job dependency condition not satisfied;"
    stat = "EXIT" if job["state"] == "ended" and deleted else word[job["state"]]
    ran = int(time.time() - job["started"]) if job["state"] == "running" else 0
    return {
        "JOBID": job["id"].partition("[")[0], "JOBINDEX": str(job["index"]), "STAT": stat, "JOB_NAME": job["name"],
        "JOB_DESCRIPTION": job["asked"].get("-Jd", ""), "PEND_REASON": reason.get(stat, ""),
        "EXEC_HOST": "" if job["state"] == "queued" else ":".join(f"{job['lines']}*{host}" for host in job["hosts"]),
        "EXIT_CODE": str(job["code"]) if (job["code"] or 0) > 0 else "", "RUN_TIME": f"{ran} second(s)",
        "EXIT_REASON": "TERM_OWNER: job killed by owner" if deleted and stat == "EXIT" else "",
        "RUNTIMELIMIT": f"{float(job['asked']['-W'])}" if "-W" in job["asked"] else "",
    }  # fmt: skip


def bhist(argv):
    """Print a job's history in lines that are broken anywhere."""
    job = next(job for job in jobs() if job["id"] == argv[-1])
    print(f"Job <{job['id']}>, User <{USER}>, Project <default>\nMon Jan  1 10:00:00: Starting (Pid 1);")
    word = next(
        (word for what, word in (("deleted", "KILL"), ("requeue", "REQUEUE_PEND")) if mark(job, what).exists()), ""
    )
    if word:
        print(
            f"Mon Jan  1 10:01:00: Signal <{word}> requested by user or adm\n                     inistrator <{USER}>;"
        )


def bkill(argv):
    return ended(argv[-1], "Job <{}>: Job has already finished", 255)


def bresume(argv):
    (SITE / f"{argv[-1]}.held").unlink()
    print(f"Job <{argv[-1]}> is being resumed")


def bhosts(argv):
    wanted = argv[argv.index("-o") + 1].upper().split()
    told = {"STATUS": "ok", "MAX": "2", "RUN": "0", "NGPUS": "0", "NGPUS_ALLOC": "0"}
    records = [{name: {**told, "HOST_NAME": host}[name] for name in wanted} for host in HOSTS]
    print(json.dumps({"COMMAND": "bhosts", "HOSTS": len(records), "RECORDS": records}))


def lsid(_argv):
    print("IBM Spectrum LSF Standard 10.1.0.14, Jun 15 2023\n\nMy cluster name is c101\nMy master name is master")


def bparams(_argv):
    print("    JOB_TERMINATE_INTERVAL = 60")


def blaunch(argv):
    """Run a command as blaunch does: its stdin arrives unless -n is given, and its output comes back."""
    deaf = argv[0] == "-n"
    host, *command = argv[1:] if deaf else argv
    index = os.environ["LSB_JOBINDEX"]
    name = os.environ["LSB_JOBID"] + (f"[{index}]" if index != "0" else "")
    return start_on(host, os.environ["LSB_DJOB_HOSTFILE"], name, command, stdin=subprocess.DEVNULL if deaf else None)


PROGRAMS = (
    qsub, qselect, qstat, qdel, qrls, qrerun, pbsnodes, pbs_tmrsh,
    bsub, bjobs, bhist, bkill, bresume, bhosts, lsid, bparams, blaunch,
)  # fmt: skip


def main():
    program, *argv = sys.argv[1:]
    if program == "carry-out":
        carry_out(*argv)
        return 0
    return {one.__name__: one for one in PROGRAMS}[program](argv) or 0


if __name__ == "__main__":
    sys.exit(main())
