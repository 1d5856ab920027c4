"""Runs of several programs at once, on this machine, through the real command line."""

import json
import os
import random
import signal

import pytest
from lab import command, kill, log_of

from tests.role_programs import HEALTH, STEPS
from tests.sizes import SEED

ASKS = """
import json, os, urllib.request
import launcher
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LAUNCH_ROLE", "LAUNCH_ROLE_RANK", "LAUNCH_GENERATION")
print(json.dumps({name: os.environ[name] for name in names} | {"actors": launcher.peers("actors")}))
[reward] = launcher.peers("reward", "http")
print("reward says", urllib.request.urlopen(f"http://{reward}/health").status)
"""
LEARNER = ASKS + STEPS
ACTOR = """
import json, os, time
names = ("RANK", "WORLD_SIZE", "LAUNCH_ROLE", "LAUNCH_ROLE_RANK", "LAUNCH_GENERATION", "LAUNCH_PORT", "MASTER_PORT")
print(json.dumps({name: os.environ[name] for name in names}), flush=True)
while True:
    time.sleep(0.05)
"""
REWARD = (
    HEALTH
    + """
import os
http.server.HTTPServer(("127.0.0.1", int(os.environ["LAUNCH_PORT_HTTP"])), Health).serve_forever()
"""
)
SPEC = """
name: three
resources: {gpus_per_node: 0}
roles:
  learner: {main: true, after: reward, run: {script: learner.py}, resources: {ranks_per_node: 2}}
  actors: {run: {script: actor.py}, resources: {ranks_per_node: 2}, restart: %s, recovery: {user_error: 1, grace: 5s}}
  reward: {run: {script: reward.py}, ports: http, ready: {port: http, path: /health}}
"""


@pytest.fixture
def three(lab):
    """Submits a run of three programs."""
    for name, text in (("learner.py", LEARNER), ("actor.py", ACTOR), ("reward.py", REWARD)):
        lab.script(name, text)

    def submit(restart="alone", actor=ACTOR):
        lab.script("actor.py", actor)
        return lab.submit(lab.spec(SPEC % restart))

    return submit


def lines_of(lab, run, part):
    logs = sorted((lab.run_dir(run) / "roles" / part / "logs").glob("*/rank-*.log"))
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def finish(lab, run):
    """The main role has done enough."""
    (lab.run_dir(run) / "code" / "enough").touch()


def agents(lab, run):
    return [json.loads(path.read_text())["process"]["pid"] for path in lab.run_dir(run).glob("**/agent.json")]


def nothing_is_left(lab, run):
    return not any(os.path.exists(f"/proc/{pid}") for pid in agents(lab, run))


def pid_of(lab, run, part, rank=0):
    folder = lab.run_dir(run) / "roles" / part if part else lab.run_dir(run)
    [path] = folder.glob(f"attempts/*/node-00/rank-{rank:03d}.json")
    return json.loads(path.read_text())["process"]["pid"]


def test_all_roles_of_a_run_find_each_other_and_end_with_the_main_one(lab, three):
    run = three("role")
    lab.until_step(run, 3)
    first, _ = lab.until("both actors", lambda: (found := lines_of(lab, run, "actors"))[1:] and found)
    assert (first["WORLD_SIZE"], first["LAUNCH_ROLE"]) == ("2", "actors")
    finish(lab, run)
    status = lab.wait(run)
    assert (status["state"], status["world_size"]) == ("succeeded", 2)
    said = [json.loads(line) for line in lab.rank_logs(run).splitlines() if line.startswith("{")]
    assert [(one["RANK"], one["LAUNCH_ROLE_RANK"], one["WORLD_SIZE"]) for one in said] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
    ]
    ports = [address.rpartition(":")[2] for address in said[0]["actors"]]
    assert sorted(ports) == sorted(one["LAUNCH_PORT"] for one in lines_of(lab, run, "actors"))
    assert "reward says 200" in lab.rank_logs(run)
    lab.until("the end of all roles", lambda: nothing_is_left(lab, run))
    kinds = [event["text"] for event in lab.events(run, "role")]
    assert kinds.index("role reward is ready") > kinds.index("role reward starts")


def test_an_actor_that_is_killed_comes_back_alone_at_its_address(lab, three):
    run = three("alone")
    lab.until_step(run, 1)
    before = lab.until("actor 1", lambda: lines_of(lab, run, "actors-1"))
    step = lab.read_state(run)["step"]
    os.kill(pid_of(lab, run, "actors-1"), signal.SIGKILL)
    _, again = lab.until("actor 1 again", lambda: (found := lines_of(lab, run, "actors-1"))[1:] and found)
    assert again["LAUNCH_PORT"] == before[0]["LAUNCH_PORT"]
    assert (again["RANK"], again["WORLD_SIZE"], again["LAUNCH_ROLE_RANK"]) == ("0", "1", "1")
    assert len(lines_of(lab, run, "actors-0")) == 1
    lab.until_step(run, step + 5)
    roles = lab.status(run)["roles"]
    assert (roles["actors-1"]["restarts"]["total"], roles["actors-0"]["restarts"]["total"]) == (1, 0)
    finish(lab, run)
    status = lab.wait(run)
    assert (status["state"], status["restarts"]["total"], status["generation"]) == ("succeeded", 0, 1)


def test_an_actor_that_is_killed_brings_all_roles_back_where_it_says_so(lab, three):
    run = three("all")
    lab.until_step(run, 1)
    lab.until("both actors", lambda: lines_of(lab, run, "actors")[1:])
    os.kill(pid_of(lab, run, "actors", rank=1), signal.SIGKILL)
    lab.until("actors again", lambda: lines_of(lab, run, "actors")[3:])
    lab.until("the learner again", lambda: lab.status(run)["attempt"] == 2 and lab.status(run)["state"] == "running")
    roles = lab.status(run)["roles"]
    assert (roles["actors"]["restarts"]["by_cause"], roles["reward"]["restarts"]["total"]) == ({"killed": 1}, 0)
    finish(lab, run)
    assert lab.wait(run)["restarts"]["total"] == 0


def test_actors_that_follow_the_learner_start_again_with_it_which_counts_for_nothing(lab, three):
    run = three("role, follows: learner")
    lab.until_step(run, 1)
    lab.until("both actors", lambda: lines_of(lab, run, "actors")[1:])
    os.kill(pid_of(lab, run, ""), signal.SIGKILL)
    lab.until("actors again", lambda: lines_of(lab, run, "actors")[3:])
    status = lab.until("all running", lambda: (s := lab.status(run))["state"] == "running" and s)
    actors, reward = status["roles"]["actors"], status["roles"]["reward"]
    assert (status["attempt"], actors["attempt"], reward["attempt"]) == (1, 2, 1)
    assert (status["restarts"]["total"], actors["restarts"]["total"]) == (1, 0)
    finish(lab, run)
    assert lab.wait(run)["state"] == "succeeded"


def test_each_view_shows_one_role_or_one_rank_of_it(lab, three):
    actor = """
import json, os, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
wire.write(json.dumps({"step": 1, "loss": float(os.environ["LAUNCH_ROLE_RANK"])}) + "\\n")
print("rank", os.environ["LAUNCH_ROLE_RANK"], flush=True)
while True:
    time.sleep(0.05)
"""
    run = three("alone", actor=actor)
    lab.until_step(run, 1)

    def measured():
        parts = json.loads(lab.launch("metrics", run, "--role", "actors", "--json").stdout or "[]")
        return {part["run"]: part["rows"][0]["loss"] for part in parts if part["rows"]}

    lab.until("what actors measure", lambda: measured() == {f"{run}/actors-0": 0.0, f"{run}/actors-1": 1.0})
    said = lab.launch("exec", run, "--role", "actors", "--rank", "1", "--", "sh", "-c", "echo $LAUNCH_ROLE_RANK").stdout
    assert said == "1\n"
    stacks = json.loads(lab.launch("stacks", run, "--role", "actors", "--json").stdout)
    assert [one["rank"] for one in stacks] == [0, 1]
    [alone] = json.loads(lab.launch("stacks", run, "--role", "actors", "--rank", "1", "--json").stdout)
    assert alone["pid"] == stacks[1]["pid"] == pid_of(lab, run, "actors-1")
    logged = lab.launch("logs", run, "--role", "actors", "--rank", "1").stdout
    assert "rank 1" in logged and "rank 0" not in logged
    assert f"{run}/reward" in lab.launch("top", run, "--once").stdout
    now = json.loads(lab.launch("top", run, "--json").stdout)
    assert {name: (one["state"], one["step"]) for name, one in now["roles"].items()} == {
        "actors-0": ("running", 1),
        "actors-1": ("running", 1),
        "reward": ("running", None),
    }
    refused = lab.launch("exec", run, "--role", "actors", "--rank", "2", "--", "true", check=2).stderr
    assert "role actors of" in refused and "hint: it has 0, 1" in refused
    assert "no such role" in lab.launch("top", run, "--role", "critics", check=2).stderr
    finish(lab, run)
    lab.wait(run)


def test_an_agent_of_a_role_that_is_killed_is_a_new_attempt_of_that_role(lab, three):
    run = three("role")
    lab.until_step(run, 1)
    lab.until("both actors", lambda: lines_of(lab, run, "actors")[1:])
    path = lab.run_dir(run) / "roles/actors/attempts/0001/node-00/agent.json"
    os.kill(json.loads(path.read_text())["process"]["pid"], signal.SIGKILL)
    lab.until("actors again", lambda: lines_of(lab, run, "actors")[3:])
    finish(lab, run)
    assert lab.wait(run)["restarts"]["total"] == 0


def test_a_role_without_restarts_left_ends_the_run_and_is_named(lab, three):
    run = three("role", actor="raise KeyError('mine')\n")
    status = lab.wait(run, check=10)
    assert status["state"] == "failed"
    assert status["message"].startswith("role actors has failed: ")
    failure = status["failure"]
    assert (failure["cause"], failure["tail"][-1]) == ("user_error", "KeyError: 'mine'")
    assert "KeyError" in (lab.run_dir(run) / failure["log"]).read_text()
    lab.until("the end of all roles", lambda: nothing_is_left(lab, run))
    shown = lab.launch("logs", run, "--role", "actors").stdout
    assert "KeyError: 'mine'" in shown


def test_a_role_beside_the_main_one_has_a_time_limit_of_its_own(lab, three):
    run = lab.submit(lab.spec((SPEC % "role").replace("ranks_per_node: 2}, restart", "time: 1s}, restart")))
    assert lab.wait(run, check=17)["message"] == "role actors has failed: no restart is allowed for time_limit"


WORKER = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
sys.exit(int(sys.argv[2]))
"""
EQUALS = """
name: equals
resources: {gpus_per_node: 0}
recovery: {user_error: 0}
roles:
  first: {run: {script: worker.py, args: [one, 0]}}
  second: {run: {script: worker.py, args: [two, %d]}}
"""


@pytest.mark.parametrize(("code", "state", "exit_code"), [(0, "succeeded", 0), (3, "failed", 10)])
def test_a_run_without_a_main_role_ends_when_all_have(lab, code, state, exit_code):
    lab.script("worker.py", WORKER)
    run = lab.submit(lab.spec(EQUALS % code))
    lab.until("both roles", lambda: lab.status(run)["roles"].get("second", {}).get("state") == "running")
    (lab.run_dir(run) / "code" / "one").touch()
    lab.until("the end of the first", lambda: "first: all ranks" in lab.status(run)["message"])
    assert lab.status(run)["state"] == "running"
    (lab.run_dir(run) / "code" / "two").touch()
    status = lab.wait(run, check=exit_code)
    assert status["state"] == state
    assert nothing_is_left(lab, run)


def test_each_role_that_fails_where_the_run_goes_on_is_told_with_its_name(lab):
    lab.script("worker.py", WORKER)
    told = lab.project / "told"
    tells = f"notify: {{to: [{{command: [sh, -c, 'cat >> {told}; echo >> {told}']}}], on: [ended]}}\n"
    run = lab.submit(lab.spec(tells + (EQUALS % 3).replace("one, 0", "one, 3")))

    def titles():
        return [json.loads(line)["title"] for line in told.read_text().splitlines()] if told.exists() else []

    lab.until("both roles", lambda: lab.status(run)["roles"].get("second", {}).get("state") == "running")
    (lab.run_dir(run) / "code" / "one").touch()
    lab.until("a message of the first", lambda: titles() == [f"role first of {run} failed: user_error"])
    (lab.run_dir(run) / "code" / "two").touch()
    lab.wait(run, check=10)
    lab.until("a message of the end", lambda: titles()[1:] and titles()[-1] == f"{run} failed: user_error")


def test_a_resume_gives_each_role_its_whole_budget_again(lab, three):
    run = three("role", actor="raise KeyError('mine')\n")
    lab.wait(run, check=10)
    lab.launch("resume", run)
    lab.wait(run, check=10)
    events = (lab.run_dir(run) / "roles/actors/events.jsonl").read_text().splitlines()
    assert [json.loads(line)["attempt"] for line in events if '"kind":"failure"' in line] == [1, 1, 2, 2]
    assert lab.status(run)["roles"]["actors"]["restarts"]["total"] == 2


def test_a_role_may_wait_until_the_main_one_is_ready(lab):
    main = """
import os, pathlib, time
pathlib.Path("works").touch()
while not pathlib.Path("enough").exists():
    time.sleep(0.05)
"""
    lab.script("main.py", main)
    lab.script("later.py", "import pathlib\nassert pathlib.Path('works').exists()\npathlib.Path('enough').touch()\n")
    spec = """
name: two
resources: {gpus_per_node: 0}
roles:
  main: {main: true, run: {script: main.py}, ready: {file: works}}
  later: {after: main, run: {script: later.py}}
"""
    run = lab.submit(lab.spec(spec))
    assert lab.wait(run)["state"] == "succeeded"
    assert [event["text"] for event in lab.events(run, "role")][:2] == ["role main is ready", "role later starts"]


def test_the_main_role_is_ended_first_where_another_one_ends_the_run(lab):
    lab.script("bad.py", "raise KeyError('mine')\n")
    stops_slowly = """
import pathlib, signal, time
def stop(*_):
    pathlib.Path("stopping").touch()
    time.sleep(1.0)
    raise SystemExit
signal.signal(signal.SIGTERM, stop)
pathlib.Path("up").touch()
while True:
    time.sleep(0.05)
"""
    lab.script("slow.py", stops_slowly)
    main = """
import pathlib, time
print("up", flush=True)
while not pathlib.Path("stopping").exists():
    time.sleep(0.02)
"""
    lab.script("main.py", main)
    spec = """
name: three
resources: {gpus_per_node: 0}
roles:
  main: {main: true, run: {script: main.py}, ready: {log: up}}
  slow: {run: {script: slow.py}, ready: {file: up}}
  bad: {after: [main, slow], run: {script: bad.py}, recovery: {user_error: 0}}
"""
    run = lab.submit(lab.spec(spec))
    assert lab.wait(run, check=10)["message"].startswith("role bad has failed: ")


def test_a_cancel_leaves_nothing_of_any_role(lab, three):
    run = three("alone")
    lab.until_step(run, 1)
    lab.launch("cancel", run)
    assert lab.status(run)["state"] == "cancelled"
    assert nothing_is_left(lab, run)


def test_a_run_whose_supervisor_is_killed_goes_on_with_all_its_roles(lab, three):
    run = three("role")
    lab.until_step(run, 1)
    lab.until("both actors", lambda: lines_of(lab, run, "actors")[1:])
    handle = json.loads((lab.run_dir(run) / "attempts/0001/handle.json").read_text())
    old = agents(lab, run)
    kill(handle["keeper"]["pid"])
    lab.until("the end of its agents", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in old))
    lab.until("the next attempt", lambda: lab.status(run)["attempt"] == 2)
    lab.until("actors again", lambda: lines_of(lab, run, "actors")[3:])
    finish(lab, run)
    assert lab.wait(run)["state"] == "succeeded"


def test_whatever_is_killed_of_whichever_role_the_run_ends_well(lab):
    steps = "\n".join(line for line in LEARNER.splitlines() if "reward says" not in line)  # it may be away just then
    for name, text in (("learner.py", steps), ("actor.py", ACTOR), ("reward.py", REWARD)):
        lab.script(name, text)
    budget = "{restarts: unlimited, backoff: 0s..0s}"
    causes = ("killed", "node_lost", "launcher_fault")
    budgets = f"recovery: {{{', '.join(f'{cause}: {budget}' for cause in causes)}, no_progress: off}}"
    run = lab.submit(lab.spec((SPEC % "alone").replace("user_error: 1, ", "").replace("roles:", f"{budgets}\nroles:")))
    chance, folder, struck = random.Random(SEED), lab.run_dir(run), []
    lab.until_step(run, 1)
    for _ in range(10):
        pid = chance.choice(lab.until("a process", lambda: lab.processes(folder)))
        struck.append(f"{command(pid)[-60:]!r} of {log_of(pid).removeprefix(str(folder))}")
        before = lab.read_state(run)
        kill(pid)
        lab.until(f"steps after {struck[-1]}", lambda before=before: is_further(lab, run, before))
    parts = ("actors-0", "actors-1")
    lab.until("both actors", lambda: all(lab.status(run)["roles"][part]["state"] == "running" for part in parts))
    finish(lab, run)
    assert lab.wait(run)["state"] == "succeeded", struck
    lab.until("the end of all roles", lambda: not lab.processes(folder))


def is_further(lab, run, before):
    """The main role has worked since, in whichever attempt and generation; whoever looks lets a lost run go on."""
    if not any(b"launcher.supervisor" in command(pid) for pid in lab.processes(lab.run_dir(run))):
        lab.launch("status", run)
    state = lab.read_state(run)
    place = [(one["attempt"], one["generation"], one["step"] or 0) for one in (before, state)]
    return state["state"] == "running" and place[1] >= (*place[0][:2], place[0][2] + 3)


def test_grid_engine_refuses_several_programs_and_says_why_and_what_to_do_instead(lab, three):
    lab.spec(SPEC % "role")
    done = lab.launch("submit", "job.yaml", "--on", "gridengine", check=None)
    assert done.returncode == 2
    assert "job.yaml:4:1: roles: on gridengine clusters all nodes of a run have one program" in done.stderr
    assert "hint: submit it to this machine" in done.stderr and "each program as a run of its own" in done.stderr
