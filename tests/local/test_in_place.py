"""recovery.mode hot: a rank is killed, or a node lost, the others stay; the numbers are those of a run left alone."""

import json
import random
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from lab import kill

from launcher.errors import Exit
from tests.sizes import SEED

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

STEPS, BATCH = 48, 16
MEETS = """import time, torch
from trainer import Checkpointer
model = torch.nn.Linear(2, 1)
checkpointer = Checkpointer(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(checkpointer.load() + 1, 101):
    time.sleep(0.05)
    checkpointer.after_step(step, {"loss": 1.0})
checkpointer.finish(step)
"""
STEPS_ALONE = """import os, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
for step in range(100):
    time.sleep(0.05)
    wire.write('{"step": %d}\\n' % step)
"""


def spec(
    lab,
    *,
    ranks=2,
    nodes=1,
    mode: str | None = "hot",
    every="10 steps",
    memory=None,
    buddy=False,
    hold=None,
    recovery="",
    **args,
):
    lab.script("in_place.py")
    if hold is not None:
        lab.hold(hold)
        args["hold"] = json.dumps(str(lab.held))
    options = "".join(f"\n    {name}: {value}" for name, value in ({"steps": STEPS} | args).items())
    return lab.spec(
        f"name: staying\nrun:\n  script: in_place.py\n  args:{options}\n"
        f"resources:\n  ranks_per_node: {ranks}\n  nodes: {nodes}\n  gpus_per_node: 0\n  cpus_per_rank: 1\n"
        f"checkpoint:\n  every: {every}\n{'' if memory is None else f'  memory_every: {memory}'}\n"
        f"{'  buddy: true' if buddy else ''}\n" + (f"recovery:\n  mode: {mode}\n{recovery}" if mode is not None else "")
    )


def lines(lab, run):
    return map(json.loads, (lab.run_dir(run) / "metrics" / "metrics.jsonl").read_text().splitlines())


def numbers(lab, run):
    """The loss and the rate of every step, and what validations found, as the newest start wrote it down."""
    found = {}
    for line in lines(lab, run):
        kept = {name: line[name] for name in ("loss", "lr", "norm", "val_loss") if name in line}
        if kept:
            found.setdefault(line["step"], {}).update(kept)
    return found


@pytest.fixture(scope="module")
def found_alone():
    return {}


@pytest.fixture
def alone(lab, found_alone):
    """Fingerprint and numbers of a run that nothing happened to: one run for all tests that ask for the same."""

    def of(ranks=2, nodes=1, **args):
        how = (ranks, nodes, *sorted(args.items()))
        if how not in found_alone:
            run = lab.submit(spec(lab, ranks=ranks, nodes=nodes, **args))
            found_alone[how] = lab.wait(run)["fingerprint"], numbers(lab, run)
        return found_alone[how]

    return of


def pids(state):
    return {rank["rank"]: rank["pid"] for rank in state["ranks"]}


def stayed(lab, run):
    """Return for each generation after the first whether ranks of the one before were in it."""
    return ["a new generation follows, hot" in event["text"] for event in lab.events(run, "regroup")]


def all_trained_again(lab, run, before):
    """A new generation that has made a step."""
    now = lab.read_state(run)
    generation = lab.events(run, "training")[-1]["generation"]
    return now if now["generation"] > before["generation"] and generation == now["generation"] else None


@pytest.mark.parametrize(
    ("strategy", "ranks", "nodes", "workers", "mode"),
    [
        pytest.param("ddp", 3, 1, 1, None, marks=pytest.mark.daily),
        ("ddp", 2, 2, 0, "hot"), ("zero1", 2, 1, 0, "hot"),
        ("fsdp", 2, 1, 0, "hot"),
    ],
)  # fmt: skip
def test_killed_ranks_are_replaced_in_place_and_the_numbers_are_the_same(
    lab, alone, strategy, ranks, nodes, workers, mode
):
    print("seed", SEED)
    draw = random.Random(SEED)
    width = 33 if nodes > 1 else 20_000  # so large a state is read out of a rank's memory
    fingerprint, wanted = alone(ranks, nodes, strategy=strategy, width=width)
    how = {"strategy": strategy, "width": width, "workers": workers, "pause": 0.02, "hold": STEPS - 1}
    goes_back = strategy != "ddp"
    how |= {"memory": "2 steps"} if goes_back else {}
    run = lab.submit(spec(lab, ranks=ranks, nodes=nodes, mode=mode, **how))
    step = 0
    for number in range(3):
        step = min(STEPS - 1, step + draw.randint(3, 12))
        before = lab.until_step(run, step)
        if goes_back:  # before something is saved there is no way but anew
            lab.until("a checkpoint", lambda: lab.read_state(run)["checkpoint"])
        victim = 0 if number == 1 else draw.randrange(ranks * nodes)  # rank 0 serves the store, and speaks for all
        assert kill(pids(before)[victim])
        after = lab.until("a step of all", partial(all_trained_again, lab, run, before)) if number < 2 else None
        if after is not None:
            assert {rank for rank, pid in pids(after).items() if pid != pids(before)[rank]} == {victim}
            step = after["step"]
    lab.let_go()
    status = lab.wait(run)
    assert stayed(lab, run) == [True] * 3
    assert status["restarts"] == {"total": 3, "by_cause": {"killed": 3}}
    assert status["generation"] == 4
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint
    assert "continues in place after step" in lab.rank_logs(run)
    speeds = [line["samples_per_s"] for line in lines(lab, run) if "loss" in line]
    assert max(speeds) <= BATCH / how["pause"]  # the step is at least as long; that of a line written again, too


@pytest.mark.parametrize(
    ("strategy", "ranks", "nodes", "second"),
    [("ddp", 3, 1, "0 8 load"), ("hsdp", 2, 2, "3 8 connect")],
)
def test_one_more_killed_while_they_meet(lab, alone, tmp_path, strategy, ranks, nodes, second):
    """Rank 0, which gives the state; or the last one that has a shard, which costs steps, and an event says so."""
    fingerprint, wanted = alone(ranks=ranks, nodes=nodes, strategy=strategy)
    for number, death in enumerate(("1 8 backward", second)):
        (tmp_path / f"die-{number}").write_text(death)
    how = {"strategy": strategy, "die": json.dumps(str(tmp_path / "die")), "every": "4 steps", "pause": 0.1}
    run = lab.submit(spec(lab, ranks=ranks, nodes=nodes, **how))
    status = lab.wait(run)
    assert not list(tmp_path.glob("die-*"))
    assert stayed(lab, run) == [True] * 2
    assert status["restarts"] == {"total": 2, "by_cause": {"killed": 2}}
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint
    told = [event["text"] for event in lab.events(run, "went_back")]
    assert len(told) == (strategy == "hsdp")
    assert all(
        re.fullmatch(r"no rank has shard 1 any more; back to step \d+ in place, \d steps? .*", one) for one in told
    )


@pytest.mark.parametrize("asked", [True, False])
def test_a_strangers_script_is_started_anew_and_the_event_says_why_where_it_was_asked_for(lab, asked):
    more = "recovery:\n  mode: hot\n" if asked else ""
    run = lab.submit(lab.chain(args="steps: 50", hold=49, more=more))
    state = lab.until_step(run, 7)
    assert kill(pids(state)[1])
    lab.let_go()
    lab.wait(run)
    [regroup] = lab.events(run, "regroup")
    why = ", warm because rank 0 has not reported that its training can continue in place" if asked else ""
    assert regroup["text"] == f"a new generation follows{why}: restart 1 of 20 for killed"


def test_unasked_nobody_stays_where_that_would_cost_something(lab, alone):
    """And nothing is said of it, as nobody has asked."""
    fingerprint, wanted = alone(strategy="zero1")
    run = lab.submit(spec(lab, mode=None, strategy="zero1", pause=0.02, hold=STEPS - 1))
    before = lab.until_step(run, 7)
    assert kill(pids(before)[1])
    after = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    assert not {*pids(after).values()} & {*pids(before).values()}
    lab.let_go()
    status = lab.wait(run)
    assert [event["text"] for event in lab.events(run, "regroup")] == [
        "a new generation follows: restart 1 of 20 for killed"
    ]
    assert "will be restarted" not in lab.rank_logs(run)
    assert (status["fingerprint"], numbers(lab, run)) == (fingerprint, wanted)


def of_node(lab, run, node):
    """Return all processes of that node: its agent first, then everything below it."""
    agent = lab.agent_pid(run, node)
    found = [agent]
    for pid in found:
        found += lab.children(pid)
    return found


def with_a_spare(lab, run):
    """Once all three nodes are there, and the ranks have come so far."""
    lab.until("the spare", lambda: [node["state"] for node in lab.read_state(run)["nodes"]] == ["up", "up", "spare"])
    return lab.until_step(run, 7)


def on_the_spare(lab, run, before):
    """The new generation, once it has made a step."""
    after = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    assert [node["ranks"] for node in after["nodes"]][::2] == [[0, 1], [2, 3]]
    now, then = pids(after), pids(before)
    assert {rank for rank in now if now[rank] != then[rank]} == {2, 3}
    return after


def nothing_was_done_twice(lab, run, ranks):
    made = dict(re.findall(r"rank (\d) made updates \[1\] to .*: (\d+)\n", lab.rank_logs(run)))
    assert made == {str(rank): str(STEPS) for rank in ranks}


@pytest.mark.parametrize("how", ["power cut", "frozen"])
def test_a_spare_takes_the_place_of_a_lost_node(lab, alone, how):
    """Killed at once with all that runs there; or it stands still for longer than its lease, and then goes on."""
    fingerprint, wanted = alone(ranks=2, nodes=2)
    more = "  spares: 1\n  lease: 5s\n"
    run = lab.submit(spec(lab, ranks=2, nodes=2, pause=0.02, hold=STEPS - 1, recovery=more))
    before = with_a_spare(lab, run)
    lost = of_node(lab, run, 1)
    for pid in lost if how == "power cut" else reversed(lost):
        kill(
            pid, signal.SIGKILL if how == "power cut" else signal.SIGSTOP
        )  # some end with their agent, or by themselves
    on_the_spare(lab, run, before)
    if how == "frozen":
        for pid in lost:
            kill(pid, signal.SIGCONT)
    lab.until("its return", lambda: lab.read_state(run)["nodes"][1]["state"] == "spare")
    ranks = {rank["pid"] for rank in before["ranks"] if rank["node"] == 1}
    assert not ranks.intersection(lab.processes())
    lab.let_go()
    status = lab.wait(run)
    assert stayed(lab, run) == [True]
    assert (status["attempt"], status["generation"], status["restarts"]["by_cause"]) == (1, 2, {"node_lost": 1})
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint
    nothing_was_done_twice(lab, run, [0, 1])
    [regroup] = lab.events(run, "regroup")
    assert "hot: ranks 2, 3 are restarted, the other 2 stay; node 2 takes the place of node 1" in regroup["text"]


@pytest.mark.parametrize("spares", [1, 0])
def test_a_device_that_falls_sick_after_a_kill_takes_its_node_and_the_others_stay(lab, alone, spares):
    """A spare has its place; or the others go on as fewer."""
    fingerprint, wanted = alone(ranks=2, nodes=2) if spares else ("", {})
    options = lab.fall_sick()
    how = {"pause": 0.02, "hold": STEPS - 1, "recovery": f"  spares: {spares}\n"}
    run = lab.submit(spec(lab, ranks=2, nodes=2 if spares else "1..2", **how), *options)
    before = with_a_spare(lab, run) if spares else lab.until_step(run, 7)
    lab.fall_sick("1")
    assert kill(pids(before)[2])
    after = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    assert [node["ranks"] for node in after["nodes"]] == [[0, 1], [], *[[2, 3]] * spares]
    assert {rank: pid for rank, pid in pids(after).items() if rank < 2} == {
        rank: pid for rank, pid in pids(before).items() if rank < 2
    }
    assert {pids(before)[2], pids(before)[3]}.isdisjoint(lab.processes())
    lab.let_go()
    status = lab.wait(run)
    assert [node["state"] for node in status["nodes"]][1] == "unfit"
    assert stayed(lab, run) == [True] * 2
    assert (status["attempt"], status["restarts"]["by_cause"]) == (1, {"killed": 1, "node_lost": 1})
    if spares:
        assert numbers(lab, run) == wanted
        assert status["fingerprint"] == fingerprint
        nothing_was_done_twice(lab, run, [0, 1])


LONG = {"steps": 100, "recovery": "  grace: 1s\n"}


def started_anew(lab, first, second, **how):
    """Fingerprint and numbers of a run on two nodes, from the step `first` on one, and from `second` on two, warm."""
    run = lab.submit(spec(lab, nodes=2, mode="warm", hold=first, every=f"{first} steps", **how))
    stopped_at(lab, run, first)
    lab.hold(second)
    lab.launch("resume", run, "--set", "resources.nodes=1", "--set", f"checkpoint.every={second} steps")
    stopped_at(lab, run, second)
    lab.let_go()
    lab.launch("resume", run, "--set", "resources.nodes=2")
    return lab.wait(run)["fingerprint"], numbers(lab, run)


def stopped_at(lab, run, step):
    lab.until("its checkpoint", lambda: lab.read_state(run)["checkpoint"] == step)
    lab.launch("cancel", run)


@pytest.mark.parametrize("strategy", ["ddp", "hsdp"])
def test_the_others_go_on_without_a_lost_node_and_it_joins_them_again(lab, tmp_path, strategy):
    """As warm starts do at those steps; but in the same processes, and without a checkpoint. Of two that are left one
    is new itself."""
    slow = tmp_path / "slow"
    slow.touch()
    how = LONG | {"ranks": 2, "strategy": strategy}
    run = lab.submit(spec(lab, nodes="1..2", **how, pause=0.3, slow=json.dumps(str(slow)), every="1000 steps"))
    before = lab.until_step(run, 3)
    assert kill(pids(before)[1])
    before = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    lab.until_step(run, before["step"] + 2)
    for pid in of_node(lab, run, 1):
        kill(pid)  # some end with their agent
    fewer = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    assert pids(fewer) == {rank: pids(before)[rank] for rank in (0, 1)}
    lab.until("its return", lambda: lab.read_state(run)["world_size"] == 4)
    after = lab.until("a step of all", partial(all_trained_again, lab, run, fewer))
    assert {rank: pids(after)[rank] for rank in (0, 1)} == pids(fewer)
    slow.unlink()
    status = lab.wait(run)
    assert (status["attempt"], status["restarts"]["by_cause"]) == (1, {"node_lost": 1, "killed": 1})
    assert stayed(lab, run) == [True] * 2
    assert "without node 1" in lab.events(run, "regroup")[-1]["text"]
    assert "join" in lab.events(run, "generation_opened")[-1]["text"]
    made = dict(re.findall(r"rank (\d) made updates \[\d+\] to .*: (\d+)\n", lab.rank_logs(run)))
    assert made["0"] == "100"
    at = [int(step) for step in re.findall(r"continues in place after step (\d+) on", lab.rank_logs(run))]
    assert int(made["2"]) == 100 - at[1]
    fingerprint, wanted = started_anew(lab, *at, **how)
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_shards_are_dealt_out_among_fewer_without_a_lost_node(lab, strategy):
    """From the newest checkpoint, as a warm start on one node does; but in the same processes. A rank that is killed
    later is replaced among them."""
    how = {"ranks": 2, "strategy": strategy, "steps": 20, "recovery": "  grace: 1s\n"}
    run = lab.submit(spec(lab, nodes="1..2", pause=0.05, every="4 steps", hold=19, **how))
    before = lab.until("a checkpoint", lambda: (now := lab.read_state(run))["checkpoint"] and now)
    for pid in of_node(lab, run, 1):
        kill(pid)  # some end with their agent
    after = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    assert (after["world_size"], pids(after)) == (2, {rank: pids(before)[rank] for rank in (0, 1)})
    assert kill(pids(after)[1])
    lab.let_go()
    status = lab.wait(run)
    assert (status["attempt"], status["restarts"]["by_cause"]) == (1, {"node_lost": 1, "killed": 1})
    assert stayed(lab, run) == [True] * 2
    assert "hot: rank 1 is restarted, the other 1 stay" in lab.events(run, "regroup")[1]["text"]
    at = int(re.findall(r"continues in place after step (\d+), from a checkpoint", lab.rank_logs(run))[0])
    warm = lab.submit(spec(lab, nodes=2, mode="warm", every=f"{at} steps", hold=at, **how))
    stopped_at(lab, warm, at)
    lab.let_go()
    lab.launch("resume", warm, "--set", "resources.nodes=1")
    assert status["fingerprint"] == lab.wait(warm)["fingerprint"]
    assert numbers(lab, run) == numbers(lab, warm)


MOST_LATE = 3  # snapshots: the newest may lie on one node alone, and the copy of the one before be on its way


@pytest.mark.parametrize(
    ("strategy", "mode", "again"),
    [("fsdp", "hot", MOST_LATE * 2), ("fsdp", "warm", None), ("hsdp", "hot", 0)],
)
def test_shards_of_a_lost_node_come_from_another_node(lab, alone, strategy, mode, again):
    """From copies of what it had in memory; with hsdp from the other copy of the parameters, and no step is lost."""
    fingerprint, wanted = alone(ranks=2, nodes=2, strategy=strategy)
    copied = strategy != "hsdp"
    how = {"memory": "2 steps", "buddy": True} if copied else {}
    how |= {
        "mode": mode,
        "pause": 0.05,
        "hold": STEPS - 1,
        "every": "100 steps",
        "recovery": "  spares: 1\n  lease: 5s\n",
    }
    run = lab.submit(spec(lab, ranks=2, nodes=2, strategy=strategy, **how))
    before = with_a_spare(lab, run)
    if copied:
        lab.until("copies", lambda: lab.read_state(run)["memory_copy"])
        assert {event["node"] for event in lab.events(run, "memory_copied")} == {0, 1}
    for pid in of_node(lab, run, 1):
        kill(pid)  # some end with their agent
    lab.until("a step of all", partial(all_trained_again, lab, run, before))
    lab.let_go()
    status = lab.wait(run)
    assert stayed(lab, run) == [mode == "hot"]
    assert (status["attempt"], status["generation"], status["restarts"]["by_cause"]) == (1, 2, {"node_lost": 1})
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint
    fetched = [event["text"] for event in lab.events(run, "checkpoint_fetched")]
    assert all("node 2 fetched" in text and "from the memory of node 0" in text for text in fetched)
    assert bool(fetched) == copied
    said = lab.rank_logs(run)
    if again == 0:
        assert "done again" not in said
        nothing_was_done_twice(lab, run, [0, 1])
    elif again is not None:
        [(where, steps)] = re.findall(r"continues in place after step \d+, from (.*); done again: (\d+) steps", said)
        assert where == "memory"
        assert int(steps) <= again


@pytest.mark.parametrize(("mode", "strategy"), [("hot", "ddp"), ("warm", "ddp"), ("hot", "fsdp")])
def test_the_ranks_of_a_drained_node_move_and_nothing_is_lost(lab, alone, mode, strategy):
    """Where what they have is nowhere else all ranks save before, and are started anew."""
    fingerprint, wanted = alone(ranks=1, nodes=2, strategy=strategy)
    how = {"mode": mode, "strategy": strategy, "every": "100 steps" if strategy == "ddp" else "3 steps"}
    run = lab.submit(spec(lab, ranks=1, nodes=2, pause=0.02, hold=7, recovery="  spares: 1\n", **how))
    before = with_a_spare(lab, run)
    for node, why in (("0", "coordinates the others"), ("7", "expected one of 0, 1, 2")):
        assert why in lab.launch("drain", run, node, check=Exit.REFUSED).stderr
    with ThreadPoolExecutor() as meanwhile:
        drained = meanwhile.submit(lab.launch, "drain", run, "1")
        lab.until("the word that it is to go", lambda: lab.events(run, "drain_asked"))
        lab.hold(STEPS - 1)  # held before, a rank would not come to where it hears of it
    assert drained.result().stdout == f"node 1 of {run} is drained; ranks run on node 0, 2\n"
    after = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    assert [node["state"] for node in after["nodes"]] == ["up", "drained", "up"]
    assert (after["failure"], lab.events(run, "failure")) == (None, [])
    assert "last failure" not in lab.launch("status", run).stdout
    lab.let_go()
    status = lab.wait(run)
    assert (status["attempt"], status["restarts"]["by_cause"]) == (1, {})
    assert stayed(lab, run) == [mode == "hot" and strategy == "ddp"]
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint
    assert lab.launch("drain", run, "1", check=Exit.REFUSED).stderr


def test_ranks_move_to_the_spare_and_back_and_nothing_is_lost(lab, alone):
    fingerprint, wanted = alone(ranks=1, nodes=2)
    run = lab.submit(spec(lab, ranks=1, nodes=2, pause=0.02, hold=7, every="100 steps", recovery="  spares: 1\n"))
    before = with_a_spare(lab, run)
    for words, why in (
        (("0",), "coordinates the others"),
        (("7",), "expected one of 0, 1, 2"),
        (("2",), "node 2 of .* has no ranks: it is spare"),
        (("1", "--to", "0"), "node 0 of .* is up, and no spare: node 2 is"),
    ):
        assert re.search(why, lab.launch("move", run, *words, check=Exit.REFUSED).stderr)
    for node, to, hold, there in (("1", ("--to", "2"), STEPS // 2, "0, 2"), ("2", (), STEPS - 1, "0, 1")):
        with ThreadPoolExecutor() as meanwhile:
            moved = meanwhile.submit(lab.launch, "move", run, node, *to)
            lab.until("the word that its ranks are to move", partial(said_to_move, lab, run, int(node)))
            lab.hold(hold)  # held before, a rank would not come to where it hears of it
        assert moved.result().stdout == f"{run}: the ranks of node {node} have moved; ranks run on node {there}\n"
        before = lab.until("a step of all", partial(all_trained_again, lab, run, before))
    assert [node["state"] for node in before["nodes"]] == ["up", "up", "spare"]
    lab.let_go()
    status = lab.wait(run)
    assert (status["attempt"], status["restarts"]["by_cause"]) == (1, {})
    assert stayed(lab, run) == [True, True]
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint
    assert "is succeeded" in lab.launch("move", run, "1", check=Exit.REFUSED).stderr


def said_to_move(lab, run, node):
    return [event for event in lab.events(run, "move_asked") if event["node"] == node]


def in_reserve(lab, run):
    """The process that each event is of."""
    return [int(re.search(r"process (\d+) in reserve", event["text"])[1]) for event in lab.events(run, "in_reserve")]


@pytest.mark.parametrize(("mode", "every"), [("hot", "10 steps"), ("warm", "10 steps"), ("warm", "1000 steps")])
def test_it_takes_the_place_of_a_killed_rank(lab, mode, every):
    """With no checkpoint the ranks begin again, with first weights that are drawn."""
    wanted = lab.submit(spec(lab, every=every))
    fingerprint = lab.wait(wanted)["fingerprint"]
    each = 1 if mode == "hot" else 2
    run = lab.submit(spec(lab, mode=mode, every=every, hold=STEPS - 1, pause=0.02, recovery=f"  reserve: {each}\n"))
    for number, victim in enumerate((1, 0), start=1):
        lab.until("a reserve", lambda number=number: len(in_reserve(lab, run)) == each * number)
        ready = in_reserve(lab, run)[-each:]
        before = lab.until_step(run, 4 * number)
        assert kill(pids(before)[victim])
        after = pids(lab.until("a step of all", partial(all_trained_again, lab, run, before)))
        assert {pid for rank, pid in after.items() if pid != pids(before)[rank]} == {*ready}
    lab.let_go()
    status = lab.wait(run)
    assert stayed(lab, run) == [mode == "hot"] * 2
    assert status["fingerprint"] == fingerprint
    assert numbers(lab, run) == numbers(lab, wanted)
    assert not lab.events(run, "no_reserve")


@pytest.mark.parametrize(
    ("script", "why"),
    [(MEETS, "leave recovery.reserve out"), (STEPS_ALONE, "alone.py:2 asks for LAUNCH_PROGRESS before the training")],
)
def test_a_program_that_does_not_wait_is_told_of_once_and_the_run_goes_on(lab, script, why):
    (lab.project / "alone.py").write_text(script)
    run = lab.submit(
        lab.spec("name: alone\nrun:\n  script: alone.py\nresources:\n  ranks_per_node: 2\n  gpus_per_node: 0\n"
                 "recovery:\n  reserve: 1\n")
    )  # fmt: skip
    lab.wait(run)
    (event,) = lab.events(run, "no_reserve")
    assert event["text"].startswith("node 0 has no process in reserve: ") and why in event["text"]
    assert not lab.events(run, "in_reserve")
