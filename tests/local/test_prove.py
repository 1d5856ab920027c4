"""`launch prove` on this machine: what resumes exactly is proven, what does not is found, with its step and tensor."""

import json

import pytest

from launcher.errors import Exit
from tests.sizes import NIGHTLY, SCALE

pytestmark = pytest.mark.nightly

SPEC = "name: walk\nrun: {{script: {script}, {more}args: {{steps: 99, holds: [12, 20]{args}}}}}\n"
LOOP = "name: loop\nrun: {{script: exact.py, args: {{steps: 99{args}}}}}\n"
RESOURCES = "resources: {ranks_per_node: 1}\ncheckpoint: {every: 4 steps}\n"
WORDS = ("--steps", "24", "--kills", "2", "--seed", "3")  # its kills come at 12 and 20 at the latest, where starts wait
OURS = "prove"


@pytest.fixture
def spec(lab):
    """Writes one: a training that waits where it is to be killed."""

    def written(args="", script="walk.py", more="preload: [], "):
        lab.script("awaiting.py")
        lab.script(script)
        return lab.spec(SPEC.format(script=script, args=args, more=more) + RESOURCES)

    return written


def proof_of(lab, *words, check):
    return json.loads(lab.launch(OURS, *words, "--json", check=check, timeout=580).stdout)


@pytest.mark.daily
def test_what_resumes_exactly_is_proven_in_each_mode(lab, spec):
    done = lab.launch(OURS, spec(), *WORDS, check=Exit.OK, timeout=280)
    lines = done.stdout.splitlines()
    assert lines[0].endswith(": 24 steps, seed 3")
    assert lines[-1] == "exact"
    rows = [line.split() for line in lines]
    killed = [row for row in rows if row[:1] in (["warm"], ["power"]) and row[-1] == "s"]
    assert [row[0] for row in killed] == ["warm", "warm", "power", "power"]
    assert [row[1:3] for row in killed[:2]] == [["rank", "0"]] * 2
    verdicts = [row for row in rows if row[-1:] == ["exact"] and len(row) > 1]
    assert [row[0] for row in verdicts] == ["warm", "power", "hot"]
    assert [int(row[2]) > 12 for row in verdicts] == [True] * 3, "too few steps were compared"
    assert "rank 0 was killed at step" in done.stderr and "all of node 0 was killed at step" in done.stderr
    assert json.loads(lab.launch("status", "--json").stdout) == [], "its runs are of no use any more"
    assert lab.processes() == []


def test_a_generator_that_no_checkpoint_has_is_found_with_step_and_tensor(lab, spec):
    proof = proof_of(lab, spec(", noise: true"), *WORDS, "--modes", "warm", check=Exit.DIFFERS)
    [found] = proof["compared"]
    went_on = found["kills"][0]["went_on_from"]
    assert proof["verdict"] == found["verdict"] == "differs"
    assert (found["first"]["metric"], found["first"]["step"]) == ("loss", went_on + 1), found
    state = found["first_state"]
    assert (state["tensor"], state["step"], state["index"]) == ("model/weight", went_on + 4, [0]), found
    assert found["again_differs"] is None
    assert found["causes"][0].startswith("state that no checkpoint has")
    assert sorted(proof["kept"]) == sorted(f"{proof['id']}-{name}" for name in ("alone", "warm", "again"))
    rows = json.loads(lab.launch("status", "--json", "--tag", proof["id"]).stdout)
    assert {row["run"] for row in rows} == set(proof["kept"])


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_that_no_step_is_lost_where_ranks_stay_is_proven_too(lab):
    lab.script("in_place.py")
    run = "run: {script: in_place.py, args: {steps: 40, pause: 0.05}}"
    resources = "resources: {ranks_per_node: 2, gpus_per_node: 0}\ncheckpoint: {every: 10 steps}"
    file = lab.spec(f"name: staying\n{run}\n{resources}\nrecovery: {{mode: hot}}\n")
    compared = proof_of(lab, file, "--kills", "2", "--seed", "5", "--keep", check=Exit.OK)["compared"]
    assert [one["mode"] for one in compared] == ["warm", "power", "hot"]
    found = compared[-1]
    hit = [kill for kill in found["kills"] if not kill.get("missed")]
    assert hit and [kill["steps_again"] for kill in hit] == [0] * len(hit), found
    assert [event.get("in_place") for event in lab.events(found["run"], "failure")] == [True] * len(hit)


def test_a_generator_without_a_seed_differs_by_itself(lab, spec):
    done = lab.launch(OURS, spec(", unseeded: true"), *WORDS, "--modes", "power", check=Exit.DIFFERS, timeout=280)
    assert "a second undisturbed run differs as well, first at step 1" in done.stdout
    assert "the training does not repeat itself" in done.stdout
    assert done.stdout.splitlines()[-1] == "differs"


def test_of_a_run_it_takes_the_code_that_it_had(lab, spec):
    """And a training that is over before it can be hit is no proof."""
    run = lab.submit(spec(), "--set", "run.args.steps=12", "--set", "run.args.holds=null")
    lab.wait(run)
    lab.script("walk.py", "raise SystemExit('this is another one')")
    proof = proof_of(lab, run, "--kills", "1", "--modes", "warm", "--seed", "3", "--keep", check=None)
    assert proof["steps"] == 12
    assert proof["verdict"] in ("exact", "unproven"), "it may be over before it is hit"
    assert len(proof["kept"]) == 2


def test_a_training_that_fails_by_itself_proves_nothing(lab, spec):
    more = ("--set", "run.args.fails-at=3", "--set", "recovery.user_error=0")
    done = lab.launch(OURS, spec(), *WORDS, *more, check=Exit.USER_ERROR, timeout=280)
    assert done.stdout.splitlines()[-1].startswith("failed: ")
    assert "KeyError: 3" in done.stdout


@pytest.mark.daily
@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", range(2 * SCALE if NIGHTLY else 1))
def test_a_generator_that_no_checkpoint_has_is_found_in_a_loop_of_milliseconds(lab, seed):
    lab.script("exact.py")
    spec, words = lab.spec(LOOP.format(args=", noise: true") + RESOURCES), ("--steps", "20", "--seed", str(seed))
    proof = proof_of(lab, spec, *words, "--kills", "1", "--modes", "warm", check=Exit.DIFFERS)
    [found] = proof["compared"]
    [kill] = found["kills"]
    assert kill["planned_step"] == kill["step"] > kill["went_on_from"]
    assert found["causes"][0].startswith("state that no checkpoint has"), found


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [False, True])
def test_a_loop_with_checkpointer_exact_and_sabotaged(lab, lost):
    lab.script("exact.py")
    file = lab.spec(LOOP.format(args=", pause: 0.06" + ", noise: true" * lost) + RESOURCES)
    proof = proof_of(lab, file, *WORDS, "--modes", "warm", check=Exit.DIFFERS if lost else Exit.OK)
    [found] = proof["compared"]
    assert (proof["fingerprint"] == found["fingerprint"]) is not lost
    if lost:
        went_on = found["kills"][0]["went_on_from"]
        assert (found["first"]["step"], found["first_state"]["step"]) == (went_on + 1, went_on + 4), found
        assert found["first_state"]["tensor"].startswith("model/")
