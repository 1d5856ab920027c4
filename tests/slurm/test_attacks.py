"""Bad neighbours on Slurm: hostile values and paths, poisoned environments, and secrets that everybody would read."""

import os
import sys

import pytest
from hostile import (
    CANARY,
    NASTY,
    OF_THE_RUN,
    command_lines,
    drawn,
    files_with,
    heard,
    no_canary,
    open_to_others,
    others_see,
    witness,
)
from lab import Lab

from launcher.places.slurm.queries.jobs import read_jobs, squeue_jobs
from launcher.places.slurm.script import render
from tests.sizes import SCALE

pytestmark = pytest.mark.nightly

PLACED = {"nodes": 2, "ranks_per_node": 1, "cpus_per_rank": 1, "gpus_per_node": 0, "time": "10m"}
# Of a rank's environment: what is the machine's.
OF_THE_MACHINE = {"_", "TMPDIR", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "LAUNCH_DEFAULTED"}


# What Slurm says of the job, and of the node that the rank is on: another one's in each job.
OF_THE_JOB = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"}
OF_THE_NODE = {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "SLURM_NODE_ALIASES"}


def of_the_spec(environment):
    left_out = OF_THE_RUN | OF_THE_MACHINE | OF_THE_JOB | OF_THE_NODE
    return {name: value for name, value in environment.items() if name not in left_out}


def of_no_cluster(environment):
    own = ("SLURM", "SRUN_DEBUG")  # the second is how loud the srun is that started the other node
    return {name: value for name, value in of_the_spec(environment).items() if not name.startswith(own)}


@pytest.mark.daily
def test_ranks_get_the_same_bytes_as_on_one_machine(desk, slurm, tmp_path):
    """Arguments, variables and everything else of the environment but what Slurm says of the job, on both nodes."""
    words = NASTY + drawn(400 * SCALE, 40)
    env = {f"T_{number}": word for number, word in enumerate(words)}
    spec = witness(desk, PLACED, words, env, slurm={"extra": {"comment": NASTY[1] + NASTY[2]}})
    theirs = heard(desk, desk.submit(spec, "--on", "slurm"))
    ours = heard(desk, desk.submit(spec))
    for here, there in zip(ours, theirs, strict=True):
        assert here["argv"] == there["argv"] == words
        assert {name: there["env"].get(name) for name in env} == env
        assert of_no_cluster(here["env"]) == of_no_cluster(there["env"])
        assert of_no_cluster(here["env"]) | slurm.env == of_the_spec(here["env"])  # which Slurm there is, the user says
    command = {"command": [sys.executable, "witness.py", *NASTY]}
    theirs = heard(desk, desk.submit(witness(desk, PLACED, run=command), "--on", "slurm"))
    assert [one["argv"] for one in theirs] == [NASTY, NASTY], "no shell of any node has read it"
    no_canary(tmp_path, slurm.folder)


def test_ranks_know_their_job_and_nothing_of_its_steps(desk, slurm):
    run = desk.submit(witness(desk, PLACED, ["x"], {"SLURM_NOTE": "mine"}), "--on", "slurm")
    first, second = heard(desk, run)
    for rank in (first["env"], second["env"]):
        assert rank["SLURM_JOB_ID"] == desk.status(run)["job"]
        assert rank["SLURM_NNODES"] == "2"
        assert rank["SLURM_NOTE"] == "mine"
        assert not [name for name in rank if name.startswith(("SLURM_STEP", "SLURM_NTASKS", "SLURM_CPU_BIND"))]
        assert not {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID"} & set(rank)
    assert first["env"]["SLURMD_NODENAME"] != second["env"]["SLURMD_NODENAME"]


def test_options_reach_slurm_as_they_are(slurm, tmp_path):
    """What sbatch reads in the script is what was meant: no value ends its line, its quotes or its option."""
    fit = [word for word in NASTY if word and "\n" not in word and len(word) < 1000 and not word.startswith(" ")]
    words = fit + [word for word in drawn(40 * SCALE, 30) if word == word.strip()]
    for word in words:
        chosen = {"job-name": "x", "comment": f"launch:t {word}", "account": word, "output": "/dev/null"}
        script = tmp_path / "job.sh"
        script.write_text(render({**chosen, "hold": True, "chdir": "/"}, "exec touch ran"))
        done = slurm.run("sbatch", "--parsable", str(script), cwd=tmp_path)
        assert done.returncode == 0, (word, done.stderr)
        (job,) = read_jobs(slurm.run(*squeue_jobs([done.stdout.strip()])).stdout)
        assert job.comment == f"launch:t {word}", word
        shown = slurm.ask("scontrol", "show", "job", job.id)
        assert f" Account={word.lower()} QOS=" in shown, (word, shown)  # Slurm's accounts have no capitals
    slurm.ask("scancel", "--user=root")
    print(f"{len(words)} values")
    no_canary(tmp_path, slurm.folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.daily
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition", "main --wrap=x"), ("partition", "main\n#SBATCH --wrap=x"), ("account", "$(touch canary)"),
        ("qos", "a b"), ("partition", "-x"),
        ("constraint", "x\ntouch canary"), ("nodelist", ["node0 node1"]), ("gres", "`touch canary`"),
        ("mail_user", "a@b\n#SBATCH --uid=0"), ("extra", {"wrap": "touch canary"}), ("extra", {"comment": "a\nb"}),
        ("extra", {"outp": "/etc/passwd"}), ("extra", {"export": "ALL"}), ("extra", {"comment\n#SBATCH --uid": "0"}),
    ],
)  # fmt: skip
def test_what_is_no_single_word_is_refused_or_harmless(desk, slurm, tmp_path, key, value):
    every = ("squeue", "--noheader", "--states=all", "--format=%i")
    before = slurm.ask(*every)
    done = desk.launch("submit", witness(desk, PLACED, slurm={key: value}), "--on", "slurm", check=2)
    assert "Traceback" not in done.stderr
    assert set(slurm.ask(*every).split()) <= set(before.split())  # Slurm forgets old ones
    no_canary(tmp_path, slurm.folder)


@pytest.mark.parametrize(
    "name", ["q'uo\"te; $(touch canary) `touch canary` %j%% #x 漢", "new\nline #SBATCH --hold", "back\\slash\\%j"]
)
def test_a_project_may_lie_anywhere(tmp_path, slurm, name):
    root = tmp_path / name
    root.mkdir()
    desk = Lab(root)
    desk.env |= slurm.env
    run = desk.submit(desk.chain(args="steps: 4", resources="nodes: 2\nranks_per_node: 1"), "--on", "slurm")
    status = desk.wait(run)
    assert (status["state"], status["step"]) == ("succeeded", 4)
    assert status["run_dir"] == str(desk.run_dir(run))
    assert "rank 1 of 2" in desk.launch("logs", run).stdout
    assert len([*desk.run_dir(run).glob("slurm-*.out")]) == ("\n" not in name and "\\" not in name)
    desk.until("its processes to go", lambda: not desk.processes())
    no_canary(tmp_path, slurm.folder)


POISON = {
    "SLURM_NTASKS": "99", "SLURM_NNODES": "7", "SLURM_JOB_ID": "4711", "SLURM_JOBID": "4711", "SLURM_NODELIST": "node3",
    "SLURM_JOB_NODELIST": "node3", "SLURM_PROCID": "5", "SLURM_NODEID": "2", "SLURM_CPU_BIND": "none",
    "SLURM_CPUS_PER_TASK": "9", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_RESTART_COUNT": "9",
    "SLURM_CLUSTERS": "moon", "SLURM_TIME_FORMAT": "relative", "SLURM_EXIT_ERROR": "0", "SLURM_HINT": "multithread",
    "SLURM_GTIDS": "4", "SLURMD_NODENAME": "node3", "SLURM_WHOLE": "1", "SLURM_DEBUG": "5", "SLURM_CONF_SERVER": "moon",
    "SBATCH_TIMELIMIT": "7", "SBATCH_PARTITION": "nowhere", "SBATCH_EXPORT": "NONE", "SBATCH_ARRAY_INX": "0-3",
    "SBATCH_ACCOUNT": "x", "SBATCH_NO_REQUEUE": "1", "SBATCH_OUTPUT": "/tmp/x", "SBATCH_GRES": "gpu:9",
    "SBATCH_EXCLUSIVE": "1", "SBATCH_CONSTRAINT": "moon", "SBATCH_SIGNAL": "9@1", "SBATCH_WAIT": "1",
    "SBATCH_IGNORE_PBS": "1", "SBATCH_CLUSTERS": "moon", "SBATCH_DEBUG": "3", "SBATCH_GET_USER_ENV": "1",
    "SRUN_CPUS_PER_TASK": "3", "SRUN_CONTAINER": "/x", "SRUN_EXPORT_ENV": "NONE", "SRUN_DEBUG": "5",
    "SALLOC_PARTITION": "nowhere", "SQUEUE_FORMAT": "%i", "SQUEUE_FORMAT2": "jobid", "SQUEUE_STATES": "PENDING",
    "SQUEUE_USERS": "nobody", "SQUEUE_PARTITION": "minute", "SQUEUE_SORT": "-M", "SQUEUE_ARRAY": "1",
    "SQUEUE_NAMES": "x", "SINFO_FORMAT": "%n", "SINFO_PARTITION": "minute", "SINFO_SORT": "N",
    "SACCT_FORMAT": "jobid", "SCANCEL_NAME": "x", "SCANCEL_STATE": "PENDING", "SCONTROL_ALL": "1",
    "PMI_RANK": "4", "PMI_SIZE": "9", "PMI_FD": "3", "PMI2_RANK": "4", "PMIX_RANK": "4", "PMIX_NAMESPACE": "x",
    "OMPI_COMM_WORLD_RANK": "4", "OMPI_MCA_btl": "tcp", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1", "RANK": "7",
    "WORLD_SIZE": "99", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "4", "NODE_RANK": "4",
    "ROLE_RANK": "4", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "9", "PET_NNODES": "3",
    "LAUNCH_RUN_DIR": "/tmp", "LAUNCH_ATTEMPT": "9", "LAUNCH_NODE": "3", "LAUNCH_REPEAT": "4",
    "SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "1", "SPANK_X": "1", "_SLURM_SPANK_OPTION_x_y": "1",
    "HOSTNAME": "moon", "ENVIRONMENT": "BATCH",
}  # fmt: skip
# Of a job: what is another one's each time. The rest is what was asked for.
NOT_ASKED_FOR = {
    "JobId", "JobName", "SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "LastSchedEval",
    "PreemptEligibleTime", "RunTime", "Command", "Comment", "StdErr", "StdOut", "AllocNode:Sid", "Priority",
    "NodeList", "BatchHost", "Scheduler", "JobState", "Reason", "ArrayJobId", "ArrayTaskId",
}  # fmt: skip


def asked_for(slurm, job):
    words = slurm.ask("scontrol", "--oneliner", "show", "job", job).split()
    fields = dict(word.partition("=")[::2] for word in words)
    return {name: value for name, value in fields.items() if name not in NOT_ASKED_FOR}


@pytest.mark.daily
def test_a_poisoned_environment_makes_the_same_job(desk, slurm):
    """For every verb; a user's own variables, locale and all, still reach the ranks."""
    own = {"LC_ALL": "tlh_QO.UTF-8", "TZ": "Asia/Tokyo", "MY_SLURM_NOTE": "x", "PMIFOO": "y"}
    spec = witness(desk, PLACED)
    clean = desk.submit(spec, "--on", "slurm", env=own)
    poisoned = desk.submit(spec, "--on", "slurm", env={**own, **POISON})
    for words in (["wait"], ["status"], ["logs"]):
        done = desk.launch(*words, poisoned, env=POISON)
        assert "poison" not in done.stderr
    ranks = heard(desk, clean), heard(desk, poisoned)
    for one, other in zip(*ranks, strict=True):
        assert of_the_spec(one["env"]) == of_the_spec(other["env"])
        assert {name: one["env"][name] for name in own} == own
        assert not {name for name, value in POISON.items() if other["env"].get(name) == value} - {"NODE_RANK"}
    jobs = [desk.status(run)["job"] for run in (clean, poisoned)]
    assert asked_for(slurm, jobs[0]) == asked_for(slurm, jobs[1])
    assert len(asked_for(slurm, jobs[0])) > 20
    print(f"{len(POISON)} poisoned variables")


def test_a_poisoned_environment_repeats_and_cancels_the_same(desk, slurm):
    slurm.ask("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    desk.until("a full cluster", lambda: "RUNNING" in slurm.ask("squeue", "--noheader", "--format=%T"))
    spec = witness(desk, PLACED)
    clean, poisoned = (
        desk.launch("submit", spec, "--on", "slurm", "--repeat", "2", env=env).stdout.split() for env in ({}, POISON)
    )
    jobs = [[desk.status(run)["job"].partition("_")[0] for run in runs] for runs in (clean, poisoned)]
    assert asked_for(slurm, jobs[0][0]) == asked_for(slurm, jobs[1][0])
    assert len(set(jobs[1])) == 1
    for run in poisoned:
        desk.launch("cancel", run, env=POISON)
    left = slurm.ask("squeue", "--noheader", "--array", "--states=PENDING", "--format=%F").split()
    assert left == [jobs[0][0]] * 2
    for run in clean:
        desk.launch("cancel", run)


@pytest.mark.parametrize("words", [(), ("--repeat", "2")])
def test_a_secret_is_nowhere_but_in_its_file_and_in_the_ranks(desk, slurm, tmp_path, words):
    desk.script("keeps.py", "import os, time\nprint('has', len(os.environ['TOKEN']), flush=True)\ntime.sleep(600)\n")
    spec = desk.spec(
        "name: keeps\nrun:\n  script: keeps.py\n  preload: []\nsecrets: [TOKEN]\n"
        "resources: {nodes: 2, ranks_per_node: 1, cpus_per_rank: 1, gpus_per_node: 0}\n"
    )
    had = {"TOKEN": CANARY}
    said = ""
    before = os.umask(0)
    try:
        with command_lines() as lines:
            dry = desk.launch("submit", spec, "--on", "slurm", "--dry-run", env=had)
            done = desk.launch("submit", spec, "--on", "slurm", *words, env=had)
            runs = done.stdout.split()
            for run in runs:
                desk.until("both ranks", lambda run=run: desk.rank_logs(run).count(f"has {len(CANARY)}") == 2)
            said = "".join(one.stdout + one.stderr for one in (dry, done))
            for verb in (["status"], ["status", runs[0]], ["status", runs[0], "--json"], ["logs", runs[0]]):
                said += desk.launch(*verb).stdout
    finally:
        os.umask(before)
    job = desk.status(runs[0])["job"]
    said += slurm.ask("scontrol", "show", "job", "-dd", job) + slurm.ask("scontrol", "write", "batch_script", job, "-")
    said += slurm.ask("squeue", "--Format=all") if not words else ""
    assert CANARY not in said
    assert not [line for line in lines if CANARY.encode() in line]
    assert any(b"launcher.places.batch.job.batch_process" in line for line in lines)
    run_dir = desk.run_dir(runs[0])
    assert CANARY.encode() not in others_see(run_dir)
    holds = files_with(CANARY, tmp_path, slurm.folder)
    assert holds == sorted(desk.run_dir(run) / "secrets.json" for run in runs)
    assert [open_to_others(desk.run_dir(run)) for run in runs] == [[]] * len(runs)
    outputs = [*desk.project.glob(".launch/runs/*/slurm-*.out")]  # also those in an array's folder
    assert len(outputs) == len(runs), [path.name for path in outputs]
    assert [path for path in outputs if path.stat().st_mode & 0o077] == []
    for run in runs:
        desk.launch("cancel", run)
    assert files_with(CANARY, tmp_path, slurm.folder) == holds
