"""`notice`: ranks leave a host that is about to go, and no step is lost with a spare, nor without one."""

import json
from functools import partial
from itertools import pairwise

import pytest

from launcher.errors import Exit

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

GOES = """#!/bin/sh
test -e "$1/goes-$LAUNCH_NODE"
"""


@pytest.fixture
def goes(lab):
    """`goes(1)` has node 1 told that its host goes; `goes(1, stays=True)` that it stays after all."""
    folder = lab.project.parent / "notices"
    folder.mkdir()
    (lab.project / "goes.sh").write_text(GOES)
    (lab.project / "goes.sh").chmod(0o755)

    def tell(node, *, stays=False):
        file = folder / f"goes-{node}"
        file.unlink() if stays else file.touch()

    tell.spec = f"notice: {{command: [./goes.sh, {json.dumps(str(folder))}], lead: 45s}}\n"
    return tell


STEPS = 500  # in_place.py has data for no more than 560


def spec(lab, goes, *, mode="hot", spares=0, notices=1):
    """Steps are slow as long as the file `brake` is there: a notice is heard of within 5 s, and taken back so, too."""
    lab.script("in_place.py")
    lab.brake.touch()
    args = {"steps": STEPS, "pause": 0.04 * max(2, notices), "slow": json.dumps(str(lab.brake))}
    options = "".join(f"\n    {name}: {value}" for name, value in args.items())
    return lab.spec(
        f"name: noticed\nrun:\n  script: in_place.py\n  args:{options}\n"
        "resources: {ranks_per_node: 1, nodes: 2, gpus_per_node: 0, cpus_per_rank: 1}\n"
        f"checkpoint: {{every: 100000 steps}}\nrecovery: {{mode: {mode}, spares: {spares}}}\n{goes.spec}"
    )


def steps(lab, run):
    """The steps of rank 0 in the order in which they were made."""
    lines = (lab.run_dir(run) / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [line["step"] for line in map(json.loads, lines) if "loss" in line]


def trains_without(lab, run, node, generation):
    state = lab.read_state(run)
    ranks = [rank for rank in state["ranks"] if rank["node"] == node]
    begun = lab.events(run, "training")[-1]["generation"]
    return state if not ranks and state["generation"] == begun > generation else None


def none_is_lost(lab, run, notices):
    """Check that only notices happened and that no step is missing.

    A hot step under way at a notice may be repeated.
    """
    made = steps(lab, run)
    assert all(after - before in (0, 1) for before, after in pairwise(made)), made
    assert len(made) - len({*made}) <= notices
    assert lab.events(run, "failure") == []
    state = lab.read_state(run)
    assert (state["attempt"], state["restarts"], state["step"], made[-1]) == (1, {}, STEPS, STEPS)


@pytest.mark.parametrize(
    ("mode", "notices"), [pytest.param("hot", 2, marks=pytest.mark.daily), ("hot", 20), ("warm", 4)]
)
def test_ranks_move_to_a_spare_and_back_at_each_notice(lab, goes, mode, notices):
    written = spec(lab, goes, mode=mode, spares=1, notices=notices)
    run = lab.submit(written)
    generation, leaves, comes = lab.until_step(run, 2)["generation"], 1, 2
    for _ in range(notices):
        lab.until("a spare", lambda node=comes: lab.read_state(run)["nodes"][node]["state"] == "spare")
        goes(leaves)
        away = partial(trains_without, lab, run, leaves, generation)
        generation = lab.until("ranks elsewhere", away)["generation"]
        goes(leaves, stays=True)
        leaves, comes = comes, leaves
    lab.brake.unlink()
    fingerprint = lab.wait(run)["fingerprint"]
    none_is_lost(lab, run, notices)
    told = [event["text"] for event in lab.events(run, "drain_asked") if "about to go, within 45 s" in event["text"]]
    assert len(told) == notices
    assert [("hot" in event["text"]) for event in lab.events(run, "regroup")] == [mode == "hot"] * notices
    assert fingerprint == lab.wait(lab.submit(written))["fingerprint"], "that of a run left alone"


@pytest.mark.parametrize("notices", [pytest.param(1, marks=pytest.mark.daily), 20])
def test_without_a_spare_all_save_and_the_run_goes_on_from_there_once_a_host_is_there(lab, goes, notices):
    run = lab.submit(spec(lab, goes, mode="warm", notices=notices))
    for number in range(1, notices + 1):
        lab.until("training", partial(trains, lab, run, number))
        goes(1)
        lab.until("it waits", partial(waits, lab, run))
        assert lab.read_state(run)["checkpoint"] == steps(lab, run)[-1], "the last step is in it"
        goes(1, stays=True)
    lab.brake.unlink()
    lab.wait(run)
    none_is_lost(lab, run, 0)


def trains(lab, run, generation):
    return any(event["generation"] == generation for event in lab.events(run, "training"))


def waits(lab, run):
    """Wait until all ranks have left their node."""
    state = lab.read_state(run)
    return state["state"] == "regrouping" and state["nodes"][1]["state"] == "drained"


def test_the_run_waits_in_its_next_attempt_when_the_first_host_goes(lab, goes):
    run = lab.submit(spec(lab, goes, mode="warm"))
    lab.until_step(run, 2)
    goes(0)
    lab.until("the next attempt", lambda: lab.read_state(run)["attempt"] == 2)
    lab.until("why it waits", lambda: "node 0 is about to go" in lab.read_state(run)["message"])
    assert lab.read_state(run)["generation"] == 0
    goes(0, stays=True)
    lab.until("training", lambda: lab.events(run, "training")[-1]["attempt"] == 2)
    lab.launch("cancel", run)
    made = steps(lab, run)
    assert made == list(range(made[0], made[0] + len(made)))


def test_a_command_that_cannot_be_run_is_told_of_and_no_notice(lab, goes):
    goes.spec = "notice: {command: [./not-there.sh]}\n"
    run = lab.submit(spec(lab, goes))
    lab.until_step(run, 2)
    [told, *_] = lab.until("the word of it", lambda: lab.events(run, "notice_failed"))
    assert "notice.command gives no answer whether the host of node" in told["text"]
    lab.launch("cancel", run)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notice: {lead: 2m}\n", "hint: write file: PATH, command: [...] or signal: PWR beside it"),
        ("notice: {file: /x, lead: 10s}\n", "hint: set recovery.grace to less"),
        ("notice: {signal: USR1}\n", "expected one of HUP, PWR"),
        ("notice: {files: /x}\n", "did you mean file?"),
    ],
)
def test_a_notice_that_cannot_be_meant_is_refused(lab, goes, text, said):
    goes.spec = text
    assert said in lab.launch("submit", spec(lab, goes), check=Exit.BAD_INPUT).stderr
