"""Runs of several programs behind a login node: the same verbs, words and records as for one that is here."""

from saved_checkpoints import save

from tests.waits import until

LEARNER = """
import os, pathlib, sys, time
import launcher
(actor,) = launcher.peers("actor")
gate = pathlib.Path(sys.argv[1] + os.environ["LAUNCH_ATTEMPT"])
with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
    print("the actor is at", actor, flush=True)
    while not gate.exists():
        time.sleep(0.02)
    wire.write('{"step": 5}\\n')
"""
ACTOR = """
import os, time
print("actor at", os.environ["LAUNCH_PORT"], flush=True)
while True:
    time.sleep(0.05)
"""
SPEC = """
name: two
resources: {gpus_per_node: 0}
roles:
  learner: {main: true, run: {script: learner.py, preload: [], args: [%s]}}
  actor: {run: {script: actor.py, preload: []}, restart: alone}
"""


def test_roles_are_seen_ended_resumed_and_fetched_as_those_of_a_run_here(laptop, login_node, tmp_path):
    gate = tmp_path / "go-on-"
    for name, text in (("learner.py", LEARNER), ("actor.py", ACTOR), ("job.yaml", SPEC % gate)):
        laptop.script(name, text)
    run = laptop.submit()
    until("both programs", lambda: {"actor-0"} == running_roles(laptop.status(run)))
    until("the actor's log", lambda: "actor at" in laptop.launch("logs", run, "--role", "actor").stdout)
    port = laptop.launch("logs", run, "--role", "actor").stdout.split()[-1]
    until("the learner's log", lambda: f":{port}" in laptop.launch("logs", run).stdout)
    seen = laptop.launch("exec", run, "--role", "actor", "--", "sh", "-c", "echo $LAUNCH_ROLE at $LAUNCH_PORT")
    assert seen.stdout.split()[-3:] == ["actor", "at", port]
    laptop.launch("cancel", run)
    status = laptop.status(run)
    assert (status["state"], status["roles"]["actor-0"]["state"]) == ("cancelled", "cancelled")
    until("the end of all", lambda: not login_node.processes())
    laptop.launch("resume", run)
    until("both again", lambda: {"actor-0"} == running_roles(laptop.status(run)))
    gate.with_name(f"{gate.name}2").touch()
    laptop.launch("wait", run)
    status = laptop.status(run)
    assert (status["state"], status["attempt"], status["step"]) == ("succeeded", 2, 5)
    save(login_node.home / "launch" / "runs" / laptop.folder(run).name / "roles" / "actor-0" / "checkpoints", 7)
    assert "checkpoint of step 7, 2 files" in laptop.launch("fetch", run, "--role", "actor").stdout
    assert (laptop.folder(run) / "roles" / "actor-0" / "checkpoints" / "step-00000007" / "MANIFEST.json").exists()
    assert "no checkpoint yet" in laptop.launch("fetch", run).stdout
    logs = sorted((laptop.folder(run) / "roles" / "actor-0" / "logs").glob("*/rank-00000.log"))
    assert [log.read_text().split()[0] for log in logs] == ["actor", "actor"]


def test_a_role_counts_its_attempts_on_where_the_run_moves(laptop, login_node, tmp_path):
    gate = tmp_path / "go-on-"
    for name, text in (("learner.py", LEARNER), ("actor.py", ACTOR), ("job.yaml", SPEC % gate)):
        laptop.script(name, text)
    run = laptop.submit(on="local")
    for attempt, place in enumerate(("hpc", "local", "hpc"), 2):
        until("both programs", lambda: {"actor-0"} == running_roles(laptop.status(run)))
        until("the actor's log", lambda n=attempt - 1: logs_of_actor(laptop, run)[n - 1 :])
        laptop.launch("cancel", run)
        laptop.launch("resume", run, "--on", place)
    until("both programs", lambda: {"actor-0"} == running_roles(laptop.status(run)))
    gate.with_name(f"{gate.name}4").touch()
    laptop.launch("wait", run)
    assert logs_of_actor(laptop, run) == [(f"a{number:04d}.g0001", 1) for number in (1, 2, 3, 4)]
    role = laptop.folder(run) / "roles" / "actor-0"
    assert sorted(path.name for path in (role / "attempts").iterdir()) == ["0001", "0002", "0003", "0004"]


def logs_of_actor(laptop, run):
    """Each folder with a log of the actor, and how often the log begins."""
    laptop.launch("logs", run, "--role", "actor")
    logs = sorted((laptop.folder(run) / "roles" / "actor-0" / "logs").glob("*/rank-00000.log"))
    return [(log.parent.name, begun) for log in logs if (begun := log.read_text().count("actor at"))]


def test_a_cluster_that_takes_one_program_says_so_from_there(laptop, login_node):
    laptop.clusters("hpc: {kind: slurm, login: hpc, cluster: gridengine}\n")
    laptop.script("learner.py", LEARNER), laptop.script("actor.py", ACTOR), laptop.spec(SPEC % "gate")
    done = laptop.launch("submit", "job.yaml", "--on", "hpc", check=2)
    assert "roles: on gridengine clusters all nodes of a run have one program, so it cannot have roles" in done.stderr
    assert not login_node.runs()


def running_roles(status):
    return {name for name, one in status["roles"].items() if one["state"] == "running"}
