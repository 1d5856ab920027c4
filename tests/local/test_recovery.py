"""Faults on one machine: whatever dies, the run ends with the weights of an undisturbed one."""

import json
import os
import random
import signal
import subprocess
import time
from functools import partial

import pytest
from lab import kill

from launcher.clock import boottime
from launcher.run.durable import write_record
from launcher.run.fence import raise_fence
from launcher.run.identity import alive, process_id
from launcher.run.layout import RunDir
from launcher.run.records import ANEW, Gone
from tests.sizes import SEED

pytestmark = pytest.mark.nightly

STEPS = 60


@pytest.fixture
def undisturbed(lab):
    """The fingerprint that every disturbed run of the same world must reach."""

    def of(world_nodes=1, ranks=2, steps=STEPS):
        spec = lab.chain(args=f"steps: {steps}\npause: 0", resources=f"nodes: {world_nodes}\nranks_per_node: {ranks}")
        return lab.fingerprint_of(spec)

    return of


def ranks(lab, run):
    return {rank["rank"]: rank["pid"] for rank in lab.read_state(run)["ranks"] if rank["pid"]}


@pytest.mark.daily
def test_a_killed_rank_is_replaced_and_the_weights_are_the_same(lab, undisturbed):
    wanted = undisturbed()
    run = lab.submit(lab.chain(args=f"steps: {STEPS}", hold=STEPS - 1))
    lab.until_step(run, 7)
    assert kill(ranks(lab, run)[1])
    lab.let_go()
    status = lab.wait(run)
    assert status["fingerprint"] == wanted
    assert status["generation"] == 2
    assert status["restarts"] == {"total": 1, "by_cause": {"killed": 1}}
    failure = lab.events(run, "failure")[0]
    assert (failure["rank"], failure["cause"]) == (1, "killed")


@pytest.mark.daily
def test_a_rank_that_a_signal_has_stopped_while_others_run_is_replaced_long_before_hang_after(lab, undisturbed):
    wanted = undisturbed()
    run = lab.submit(lab.chain(args=f"steps: {STEPS}", hold=STEPS - 1))
    lab.until_step(run, 7)
    stopped_at = time.time()
    assert kill(ranks(lab, run)[1], signal.SIGSTOP)
    lab.until("its replacement", lambda: lab.read_state(run)["generation"] == 2)
    lab.let_go()
    status = lab.wait(run)
    assert (status["fingerprint"], status["restarts"]) == (wanted, {"total": 1, "by_cause": {"hang": 1}})
    (failure,) = lab.events(run, "failure")
    assert failure["text"].startswith("rank 1 on node 0 is stopped (SIGSTOP")
    assert failure["at"] - stopped_at < 30.0, "and not after a minute"


@pytest.mark.timeout(600)
def test_random_kills_of_anything_end_right(lab, undisturbed):
    """Ranks, zygotes, agents, the coordinator: KILLS of them at random instants, on two nodes."""
    kills = int(os.environ.get("LAUNCH_TEST_KILLS", "8"))
    print("seed", SEED)
    draw = random.Random(SEED)
    wanted = undisturbed(world_nodes=2, steps=40 * kills)
    spec = lab.chain(
        args=f"steps: {40 * kills}\npause: 0.05",
        hold=40 * kills - 1,
        resources="nodes: 2\nranks_per_node: 2",
        more="recovery:\n  no_progress: off\n  killed: unlimited\n  node_lost: unlimited\n",
    )
    run = lab.submit(spec)
    fired = 0
    while fired < kills and not done(lab, run):
        further = (lab.read_state(run)["checkpoint"] or 0) + draw.randint(1, 12)
        before = lab.until_step(run, min(40 * kills - 1, further))
        kind = draw.choice(["rank", "zygote", "agent", "coordinator"])
        if kill(victim(lab, run, before, draw, kind)):
            fired += 1
            if kind != "zygote":  # ranks outlive it
                lab.until("a new generation or attempt", partial(has_moved_on, lab, run, before))
    lab.let_go()
    status = lab.wait(run)
    assert fired == kills, f"only {fired} kills fired"
    assert status["fingerprint"] == wanted


def victim(lab, run, state, draw, kind):
    if kind == "rank":
        return draw.choice([rank["pid"] for rank in state["ranks"]])
    agent = lab.agent_pid(run, 0 if kind == "coordinator" else 1, state["attempt"])
    if kind != "zygote":
        return agent
    return lab.until("a zygote, after one that was killed", lambda: lab.zygotes(agent))[0]


def has_moved_on(lab, run, before):
    now = lab.read_state(run)
    return (now["attempt"], now["generation"]) > (before["attempt"], before["generation"]) or done(lab, run)


def done(lab, run):
    return lab.read_state(run)["state"] in ("succeeded", "failed", "cancelled")


@pytest.mark.daily
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("victim", ["zygote", "agent", "coordinator"])
def test_any_process_of_ours_may_die(lab, undisturbed, victim, nodes):
    wanted = undisturbed(world_nodes=nodes, steps=STEPS)
    spec = lab.chain(args=f"steps: {STEPS}", resources=f"nodes: {nodes}\nranks_per_node: 2", hold=STEPS - 1)
    run = lab.submit(spec)
    lab.until_step(run, 7)
    agent = lab.agent_pid(run, 0 if victim == "coordinator" else nodes - 1)
    assert kill(lab.zygotes(agent)[0] if victim == "zygote" else agent)
    lab.let_go()
    status = lab.wait(run)
    assert status["fingerprint"] == wanted
    assert status["restarts"]["total"] == (0 if victim == "zygote" else 1), "ranks outlive a zygote"


@pytest.fixture
def imports_once(lab):
    """The options by which zygotes import a module that notes each import in a file, and that file."""
    imports = lab.project.parent / "imports"
    (lab.project.parent / "once.py").write_text(f"open({str(imports)!r}, 'a').write('!')")
    path = f"env={{PYTHONPATH: {lab.project.parent}}}"
    return ("--set", "run.preload=[once]", "--set", path), imports


def standby_of(lab, run, node, attempt=1):
    agent = lab.agent_pid(run, node, attempt)
    return lab.until("its standby", lambda: len(found := lab.zygotes(agent)) == 2 and found)[1]


@pytest.mark.daily
def test_after_the_death_of_an_agent_nothing_is_imported_again(lab, undisturbed, imports_once):
    """The standby of its zygote is the next agent, also in the attempt that follows the coordinator's death."""
    wanted = undisturbed(world_nodes=2, steps=STEPS)
    words, imports = imports_once
    spec = lab.chain(args=f"steps: {STEPS}", resources="nodes: 2\nranks_per_node: 2", hold=STEPS - 1)
    run = lab.submit(spec, *words)
    lab.until_step(run, 7)
    standby = standby_of(lab, run, 1)
    assert kill(lab.agent_pid(run, 1))
    lab.until("the next agent", lambda: lab.agent_pid(run, 1) == standby)
    lab.until("generation 2", lambda: (now := lab.read_state(run))["generation"] == 2 and now["state"] == "running")
    standbys = [standby_of(lab, run, node) for node in (0, 1)]
    assert kill(lab.agent_pid(run, 0))
    lab.until("the next attempt", lambda: lab.read_state(run)["attempt"] == 2)
    lab.let_go()
    status = lab.wait(run)
    assert (status["fingerprint"], status["attempt"], status["generation"]) == (wanted, 2, 1)
    assert [lab.agent_pid(run, node, attempt=2) for node in (0, 1)] == standbys
    assert imports.read_text() == "!!", "once on each node"
    lab.until("the end of all", lambda: not lab.processes())


@pytest.mark.daily
def test_after_an_attempt_that_the_coordinator_ends_nothing_is_imported_again(lab, undisturbed, imports_once):
    wanted = undisturbed(world_nodes=2, steps=STEPS)
    (words, imports), goes = imports_once, lab.project.parent / "goes"
    notice = f"notice: {{command: [sh, -c, 'test $LAUNCH_NODE = 0 && test -e {goes}'], lead: 45s}}\n"
    resources = "nodes: 2\nranks_per_node: 2"
    run = lab.submit(lab.chain(args=f"steps: {STEPS}", resources=resources, more=notice, hold=STEPS - 1), *words)
    lab.until_step(run, 7)
    standbys = [standby_of(lab, run, node) for node in (0, 1)]
    goes.touch()
    lab.until("the next attempt", lambda: lab.read_state(run)["attempt"] == 2)
    goes.unlink()
    lab.let_go()
    status = lab.wait(run)
    assert (status["fingerprint"], status["attempt"]) == (wanted, 2)
    assert [lab.agent_pid(run, node, attempt=2) for node in (0, 1)] == standbys
    assert imports.read_text() == "!!", "once on each node"
    lab.until("the end of all", lambda: not lab.processes())


@pytest.mark.daily
@pytest.mark.parametrize("fate", ["killed", "cancelled"])
def test_standbys_that_wait_for_the_next_attempt_end_with_their_supervisor(lab, undisturbed, imports_once, fate):
    """The attempt before made no progress, so the next one begins after a while."""
    wanted = undisturbed(world_nodes=2)
    words, imports = imports_once
    more = "recovery: {node_lost: {restarts: 9, backoff: 1h..1h}}\n"
    spec = lab.chain(args=f"steps: {STEPS}", resources="nodes: 2\nranks_per_node: 2", more=more, hold=7)
    run = lab.submit(spec, *words)
    for attempt in (1, 2):
        lab.until("training", lambda number=attempt: at_step(lab.read_state(run), number) == 7)
        standbys = {standby_of(lab, run, node, attempt) for node in (0, 1)}
        assert kill(lab.agent_pid(run, 0, attempt))
    supervisor = supervisor_of(lab, run)
    lab.until("the end of the attempt", lambda: {*lab.processes()} == {supervisor, *standbys})
    assert lab.read_state(run)["attempt"] == 2 and imports.read_text() == "!!"
    if fate == "cancelled":
        lab.launch("cancel", run)
        assert not lab.processes()
        return
    assert kill(supervisor)
    lab.until("the end of all", lambda: not lab.processes())
    lab.let_go()
    lab.launch("resume", run)
    status = lab.wait(run)
    assert (status["fingerprint"], status["attempt"]) == (wanted, 3)


def at_step(state, attempt):
    return state["step"] if (state["attempt"], state["state"]) == (attempt, "running") else None


@pytest.mark.parametrize(("victim", "record"), [(0, "state.json"), (1, "attempts/0001/node-01/agent.json")])
def test_records_that_can_be_missed_are_damaged_and_it_goes_on(lab, victim, record):
    """Whoever starts anew reads them."""
    run = lab.submit(lab.chain(args="steps: 50", resources="nodes: 2\nranks_per_node: 1", hold=49))
    lab.until_step(run, 7)
    agent = lab.agent_pid(run, victim)
    (lab.run_dir(run) / record).write_bytes(bytes(50))
    assert kill(agent)
    lab.let_go()
    status = lab.wait(run)
    assert (status["state"], status["restarts"]["total"]) == ("succeeded", 1)


@pytest.mark.parametrize("record", ["FENCE", "plan.json"])
def test_a_record_is_damaged_without_which_it_cannot_go_on_and_its_last_word_says_so(lab, record):
    """It was lost, and nobody knew why."""
    run = lab.submit(lab.chain(args="steps: 100000", resources="nodes: 2\nranks_per_node: 1"))
    lab.until_step(run, 7)
    (lab.run_dir(run) / record).write_bytes(bytes(50))
    kill(lab.agent_pid(run, 0))
    end = lab.run_dir(run) / "attempts/0002/exit.json"
    lab.until("its last word", end.exists)
    assert record in end.read_text()
    lab.until("the end of its processes", lambda: not lab.processes(lab.run_dir(run)))
    assert record in lab.launch("status", run, check=None).stderr + lab.launch("status", run, check=None).stdout


@pytest.mark.daily
def test_a_spare_steps_in_for_a_lost_node(lab, undisturbed):
    wanted = undisturbed(world_nodes=2, ranks=1)
    spec = lab.chain(
        args=f"steps: {STEPS}",
        resources="nodes: 2\nranks_per_node: 1",
        more="recovery:\n  spares: 1\n",
        hold=STEPS - 1,
    )
    run = lab.submit(spec)
    lab.until_step(run, 7)
    lab.until("the spare", lambda: [node["state"] for node in lab.read_state(run)["nodes"]][2] == "spare")
    assert kill(lab.agent_pid(run, 1))
    lab.let_go()
    status = lab.wait(run)
    assert (status["attempt"], status["world_size"]) == (1, 2)
    assert status["fingerprint"] == wanted


@pytest.mark.parametrize("how", ["stopped", "deadlock", "asleep"])
def test_a_hang_is_noticed_its_stacks_are_kept_and_the_run_goes_on(lab, how):
    lab.script(
        "hang.py",
        f"""
import json, os, signal, threading, time
rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)

def waits_for_ever():
    how = {how!r}
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "deadlock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    while True:
        time.sleep(3600)

for step in range(1, 40):
    wire.write(json.dumps({{"step": step}}) + "\\n")
    time.sleep(0.05)
    if first and rank == 1 and step == 5:
        waits_for_ever()
""",
    )
    spec = lab.spec(
        "name: hang\nrun:\n  script: hang.py\nresources:\n  ranks_per_node: 2\nrecovery:\n  hang_after: 6s\n"
    )
    run = lab.submit(spec)
    lab.until("the hang", lambda: lab.events(run, "failure"))
    status = lab.wait(run)
    failure = lab.events(run, "failure")[0]
    assert (failure["cause"], failure["rank"]) == ("hang", 1)
    assert status["restarts"]["by_cause"] == {"hang": 1}
    log = next((lab.run_dir(run) / "logs" / "a0001.g0001").glob("rank-00001.log")).read_text()
    assert "waits_for_ever" in log
    began = lab.events(run, "generation_opened")[0]["at"]
    assert failure["at"] - began < 6 + 5 + 60  # steps, hang_after, and what a busy machine takes


@pytest.mark.daily
def test_no_progress_ends_the_run_with_its_own_exit_code(lab):
    lab.script(
        "stuck.py",
        """
import json, os
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
wire.write(json.dumps({"step": 3}) + "\\n")
wire.write(json.dumps({"checkpoint": 3}) + "\\n")
os.kill(os.getpid(), 9)
""",
    )
    run = lab.submit(lab.spec(
        "name: stuck\nrun:\n  script: stuck.py\nresources:\n  ranks_per_node: 1\n"
        "recovery:\n  no_progress: 3\n  killed:\n    restarts: 50\n    backoff: 10ms..20ms\n"
    ))  # fmt: skip
    status = lab.wait(run, check=19)
    assert status["cause"] == "no_progress"
    assert status["restarts"]["total"] == 3


@pytest.mark.daily
def test_the_time_limit_ends_the_run_gracefully(lab):
    run = lab.submit(
        lab.chain(
            args="steps: 100000\npause: 0.02",
            resources="ranks_per_node: 2\ntime: 8s",
            more="recovery:\n  grace: 2s\n",
        )
    )
    status = lab.wait(run, check=17)
    assert (status["state"], status["cause"]) == ("failed", "time_limit")
    assert status["checkpoint"]


def test_the_time_limit_is_of_all_attempts_since_somebody_asked_for_the_run(lab):
    run = lab.submit(lab.chain(args="steps: 100000", resources="time: 12s", more="recovery:\n  grace: 2s\n"))
    before_s = lab.until("half of the time", lambda: (used_s := lab.read_state(run)["used_s"]) > 6 and used_s)
    assert kill(lab.agent_pid(run, 0))
    status = lab.wait(run, check=17)
    assert (status["attempt"], status["cause"]) == (2, "time_limit")
    state = json.loads((lab.run_dir(run) / "state.json").read_text())
    assert 12 <= state["used_s"] < before_s + 12, "the second one had what the first one left of it"
    resumed_at = time.monotonic()
    lab.launch("resume", run, "--set", "resources.time=10m")
    lab.until("a third attempt", lambda: lab.read_state(run)["attempt"] == 3 and lab.read_state(run)["step"])
    assert lab.read_state(run)["used_s"] < time.monotonic() - resumed_at, "and the third one begins anew"
    lab.launch("cancel", run)


def test_a_frozen_supervisor_or_a_dead_one_does_not_disturb_the_ranks(lab, undisturbed):
    wanted = undisturbed()
    run = lab.submit(lab.chain(args=f"steps: {STEPS}", hold=STEPS - 1))
    lab.until_step(run, 5)
    assert kill(supervisor_of(lab, run))
    assert lab.status(run)["state"] == "running"
    lab.let_go()
    assert lab.wait(run)["fingerprint"] == wanted


@pytest.mark.daily
@pytest.mark.parametrize("which", ["agent", "watchdog", "all"])
def test_a_run_whose_supervisor_was_killed_with_others_is_carried_on_by_the_next_status(lab, undisturbed, which):
    wanted = undisturbed()
    run = lab.submit(lab.chain(args=f"steps: {STEPS}", hold=STEPS - 1))
    lab.until_step(run, 7)
    agent = lab.agent_pid(run, 0)
    (watchdog,) = lab.children(agent, b"launcher.node")
    if which == "all":
        assert lab.tidy()
    else:
        assert kill(supervisor_of(lab, run)) and kill(agent if which == "agent" else watchdog)
        lab.until("the end of the agent", lambda: process_id(agent) is None)  # else it may see the run to its end
        said = (lab.run_dir(run) / "attempts/0001/node-00/agent.log").read_text()
        assert ("the watchdog beside this agent was killed" in said) == (which == "watchdog")
    lab.let_go()
    goes_on = lab.until("another attempt", lambda: (found := lab.status(run))["attempt"] == 2 and found)
    assert goes_on["state"] != "lost"
    status = lab.wait(run)
    assert (status["fingerprint"], status["attempt"]) == (wanted, 2)
    assert status["restarts"]["by_cause"] == {"node_lost": 1}


@pytest.mark.daily
def test_a_resume_of_a_lost_run_opens_the_attempt_itself_and_follows_it(lab, undisturbed):
    """Its look had the run go on by itself, and then there was nothing to resume."""
    wanted = undisturbed()
    run = lab.submit(lab.chain(args=f"steps: {STEPS}", hold=STEPS - 1))
    lab.until_step(run, 7)
    assert lab.tidy()
    lab.let_go()
    done = lab.launch("resume", run, "--follow")
    assert done.stdout.startswith(run)
    status = lab.status(run)
    assert (status["state"], status["fingerprint"], status["attempt"]) == ("succeeded", wanted, 2)
    assert status["restarts"]["total"] == 0 and len(lab.events(run, "resumed")) == 1


@pytest.mark.daily
def test_a_run_without_a_record_that_it_needs_is_lost(lab):
    run = lab.submit(lab.chain(args=f"steps: {STEPS}", hold=STEPS - 1))
    lab.until_step(run, 7)
    lab.tidy()
    (lab.run_dir(run) / "plan.json").rename(lab.project / "plan.json")
    status = lab.status(run)
    assert (status["state"], status["attempt"], status["next"]) == ("lost", 1, f"launch resume {run}")
    assert "plan.json" in status["message"]
    lab.launch("wait", run, check=21)
    (lab.project / "plan.json").rename(lab.run_dir(run) / "plan.json")
    lab.let_go()
    assert lab.wait(run)["attempt"] == 2


@pytest.mark.daily
def test_a_finished_run_is_never_started_again(lab):
    """Supervisor and agent killed between any two of the records that are written at its end."""
    run = lab.submit(lab.chain(args="steps: 5"))
    assert lab.wait(run)["state"] == "succeeded"
    lab.until("the end of its processes", lambda: not lab.processes())
    folder = lab.run_dir(run)
    end, state, events = (folder / name for name in ("attempts/0001/exit.json", "state.json", "events.jsonl"))
    history = [line for line in events.read_text().splitlines(keepends=True) if json.loads(line)["kind"] != "ended"]
    assert len(history) == len(events.read_text().splitlines()) - 1
    before = json.loads(state.read_text()) | {"state": "running", "exit_code": None, "ended_at": None}
    for number, has_end in enumerate((True, False)):
        state.write_text(json.dumps(before))
        events.write_text("".join(history))
        if not has_end:
            end.unlink()
        status = lab.status(run)
        assert (status["state"], status["exit_code"], status["attempt"]) == ("succeeded", 0, 1), number
    assert json.loads(end.read_text())["message"] == "all ranks have finished"
    assert not (folder / "attempts" / "0002").exists() and not lab.processes()


@pytest.mark.daily
def test_an_older_attempt_writes_nothing_any_more(lab):
    run = lab.submit(lab.chain(args="steps: 100000"))
    lab.until_step(run, 3)
    agent = lab.agent_pid(run, 0)
    raise_fence(RunDir(lab.run_dir(run)), 2)
    fenced_at = boottime()
    lab.until("the fenced coordinator to leave", lambda: not os.path.exists(f"/proc/{agent}"))
    lab.until("all its processes to go", lambda: not lab.processes())
    assert lab.read_state(run)["monotonic_s"] < fenced_at + 0.5  # at most what was being written that very moment
    assert not (lab.run_dir(run) / "attempts" / "0001" / "exit.json").exists()
    assert [event["kind"] for event in lab.events(run)].count("ended") == 0


def test_a_cut_wire_is_no_failure(lab, undisturbed):
    wanted = undisturbed(world_nodes=2, ranks=1, steps=150)
    run = lab.submit(lab.chain(args="steps: 150", resources="nodes: 2\nranks_per_node: 1", hold=149))
    lab.until_step(run, 2)
    port = json.loads((lab.run_dir(run) / "attempts" / "0001" / "coordinator.json").read_text())["port"]
    for cuts in range(1, 4):
        subprocess.run(["ss", "-K", f"dport = {port}"], capture_output=True)
        lab.until("their return", partial(have_rejoined, lab, run, times=2 * cuts))
    lab.let_go()
    status = lab.wait(run)
    assert status["fingerprint"] == wanted
    assert (status["restarts"]["total"], status["generation"]) == (0, 1)


def have_rejoined(lab, run, times):
    return len([event for event in lab.events(run, "agent_joined") if "again" in event["text"]]) >= times


LEASE_S = 8.0
LEASED = f"recovery:\n  lease: {LEASE_S:g}s\n  communication: 5\n"


def test_ranks_end_where_only_the_zygote_is_awake(lab):
    """Agent, watchdog and supervisor were frozen at once: the ranks worked on beside those that replaced them."""
    run = lab.submit(lab.chain(args="steps: 100000\npause: 0.02", resources="ranks_per_node: 1", more=LEASED))
    (rank,) = lab.until_step(run, 3)["ranks"]
    agent = lab.agent_pid(run, 0)
    supervisor = json.loads((lab.run_dir(run) / "attempts" / "0001" / "handle.json").read_text())["keeper"]["pid"]
    frozen = [supervisor, agent, *lab.children(agent, b"launcher.node")]
    assert len(frozen) == 3 and all(kill(pid, signal.SIGSTOP) for pid in frozen)
    lab.until("the end of the ranks", lambda: has_ended(rank["pid"]))
    kill(supervisor, signal.SIGCONT)
    lab.until("the next attempt", lambda: lab.read_state(run)["attempt"] == 2)
    lab.launch("cancel", run)


@pytest.mark.daily
def test_the_ranks_of_a_frozen_agent_end_with_its_lease(lab):
    """By its guard: it could not itself, and beside the next generation they would write on."""
    spec = lab.chain(args="steps: 100000\npause: 0.02", resources="nodes: 1..2\nranks_per_node: 1", more=LEASED)
    run = lab.submit(spec)
    state = lab.until_step(run, 3)
    agent, rank = lab.agent_pid(run, 1), next(one["pid"] for one in state["ranks"] if one["node"] == 1)
    assert kill(agent, signal.SIGSTOP)
    lost = lab.until("the loss", lambda: lab.events(run, "agent_lost"))
    assert lost[0]["node"] == 1
    assert has_ended(rank)
    lab.until("the end of the agent, which stays frozen", lambda: has_ended(agent))
    lab.until("the smaller world", lambda: smaller_to_one(lab.read_state(run)))
    lab.until("its return", lambda: lab.read_state(run)["nodes"][1]["state"] == "spare")
    assert lab.status(run)["attempt"] == 1
    lab.launch("cancel", run)


def test_a_coordinator_that_is_frozen_with_its_watchdog_is_replaced(lab, undisturbed):
    """The supervisor, which is awake, ends the ranks and then the agent."""
    wanted = undisturbed(ranks=1, steps=300)
    run = lab.submit(lab.chain(args="steps: 300", resources="ranks_per_node: 1", more=LEASED, hold=299))
    (rank,) = lab.until_step(run, 3)["ranks"]
    agent = lab.agent_pid(run, 0)
    frozen = [agent, *lab.children(agent, b"launcher.node")]
    assert len(frozen) == 2 and all(kill(pid, signal.SIGSTOP) for pid in frozen)
    lab.until("the next attempt", lambda: lab.read_state(run)["attempt"] == 2)
    assert has_ended(rank["pid"]) and all(map(has_ended, frozen))
    lab.let_go()
    status = lab.wait(run)
    assert (status["fingerprint"], status["attempt"]) == (wanted, 2)
    assert status["restarts"]["by_cause"] == {"node_lost": 1}


def test_nobody_is_lost_who_stood_still_together_with_the_coordinator(lab):
    """As when the machine is suspended, or the whole job: supervisor, agent, guard and ranks."""
    run = lab.submit(lab.chain(args="steps: 100000\npause: 0.02", resources="ranks_per_node: 2", more=LEASED))
    state = lab.until_step(run, 3)
    all_of_it = lab.processes(lab.run_dir(run))
    assert supervisor_of(lab, run) in all_of_it
    all_of_it.sort(key=lambda pid: pid not in lab.children(lab.agent_pid(run, 0), b"launcher.node"))  # its guard first
    assert {lab.agent_pid(run, 0), *(rank["pid"] for rank in state["ranks"])} < {*all_of_it}
    for pid in all_of_it:
        assert kill(pid, signal.SIGSTOP)
    time.sleep(LEASE_S + 3)
    for pid in reversed(all_of_it):
        assert kill(pid, signal.SIGCONT)
    after = lab.until_step(run, lab.read_state(run)["step"] + 20)
    assert [rank["pid"] for rank in after["ranks"]] == [rank["pid"] for rank in state["ranks"]]
    # Once, and once more where the machine is busy.
    stalled = lab.until("word of it", lambda: lab.events(run, "coordinator_stalled"))
    assert "the coordinator stood still for" in stalled[0]["text"]
    assert lab.events(run, "agent_lost") == [] and lab.status(run)["restarts"]["total"] == 0
    lab.launch("cancel", run)


def supervisor_of(lab, run):
    return json.loads((lab.run_dir(run) / "attempts" / "0001" / "handle.json").read_text())["keeper"]["pid"]


def has_ended(pid):
    """A zombie has: its parent, which is frozen, cannot know."""
    process = process_id(pid)
    return process is None or not alive(process)


def smaller_to_one(state):
    return state["state"] == "running" and state["world_size"] == 1


@pytest.mark.parametrize("word", ["--anew", "--gone", ""])
def test_a_person_lets_a_run_begin_anew_where_no_checkpoint_is_whole(lab, word):
    """In so many words, or by giving up a host that has had part in the run."""
    run = lab.submit(lab.chain(args="steps: 5"))
    lab.wait(run)
    if word == "--gone":
        write_record(RunDir(lab.run_dir(run)).gone, [Gone("gpu07", 1)])
    for attempt in (2, 3):
        more = ("--set", f"run.args.steps={5 * attempt}")
        lab.launch("resume", run, *more, *([word] if word == "--anew" and attempt == 2 else []))
        lab.wait(run)
    said = [event["attempt"] for event in lab.events(run, ANEW)]
    assert said == ([2] if word else []), "for that one attempt"
