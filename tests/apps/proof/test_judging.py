"""The word on a disturbed run, from what is known of it and of the undisturbed one."""

from pathlib import Path
from tempfile import mkdtemp

import msgspec
from run_folder import RunFolder
from saved_checkpoints import save_model

from launcher.api import Run
from launcher.apps.proof.findings import Judgement, Kill
from launcher.apps.proof.judging import FinishedRun, finished, judged, with_causes
from launcher.states import State

HIT = (Kill(2, rank=0, attempt=1, generation=1, at=5.0, step=2),)
ROWS = {0: {step: {"loss": 1.0 / step} for step in range(1, 5)}}
OTHER = {0: ROWS[0] | {3: {"loss": 0.5}}}


def status(tmp_path, name, **more):
    run = Run(name, RunFolder(Path(mkdtemp(dir=tmp_path)) / name).path)
    found = msgspec.structs.replace(
        run.status(), run=name, state=State.SUCCEEDED, step=4, fingerprint="ab", failure=None
    )
    return msgspec.structs.replace(found, **more)


def test_alike_in_all_that_is_known_it_is_exact(tmp_path):
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {})
    found = judged("warm", HIT, killed_after(tmp_path, 2), alone)
    assert (found.verdict, found.steps, found.metrics, found.why) == (Judgement.EXACT, 4, ("loss",), "")


def test_another_loss_differs_and_causes_are_named(tmp_path):
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {})
    found = judged("warm", HIT, FinishedRun(status(tmp_path, "warm"), OTHER, {}), alone)
    assert found.verdict is Judgement.DIFFERS
    assert found.first is not None and found.first.step == 3
    disturbed = FinishedRun(status(tmp_path, "warm"), OTHER, {})
    assert with_causes(found, disturbed, alone, alone).again_differs is None
    again = with_causes(found, disturbed, alone, FinishedRun(status(tmp_path, "again"), OTHER, {}))
    assert again.again_differs == 3
    assert again.causes[0].startswith("the training does not repeat itself")


def test_another_end_differs(tmp_path):
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {})
    found = judged("warm", HIT, FinishedRun(status(tmp_path, "warm", fingerprint="cd"), ROWS, {}), alone)
    assert found.verdict is Judgement.DIFFERS
    assert found.why == "it ended at step 4 with fingerprint cd, the undisturbed run at step 4 with fingerprint ab"


def test_a_tensor_that_differs_where_losses_do_not(tmp_path):
    one, other = save_model(tmp_path / "a", 4), save_model(tmp_path / "b", 4, (1.0, 2.0, 9.0))
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {4: one})
    found = judged("warm", HIT, FinishedRun(status(tmp_path, "warm"), ROWS, {4: other}), alone)
    assert found.verdict is Judgement.DIFFERS
    assert found.first_state is not None and found.first_state.tensor == "model/weight"


def test_nothing_hit_or_nothing_to_compare_is_no_proof(tmp_path):
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {})
    same = FinishedRun(status(tmp_path, "warm"), ROWS, {})
    found = judged("warm", [Kill(2, missed="the training was over first")], same, alone)
    assert (found.verdict, found.why) == (Judgement.UNPROVEN, "nothing was hit: the training was over first")
    bare = killed_after(tmp_path, 2, {}, fingerprint=None)
    found = judged("warm", HIT, bare, bare)
    assert found.verdict is Judgement.UNPROVEN
    assert found.why.startswith("there is nothing to compare")


def killed_after(tmp_path, step, rows=ROWS, **more):
    """A run of 4 steps that was killed once it had done `step` of them, and went on from there."""
    starts = (0, step)
    return FinishedRun(status(tmp_path, "warm", **more), rows, {}, starts=starts)


def test_a_kill_after_the_last_step_is_no_proof(tmp_path):
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {})
    found = judged("warm", HIT, killed_after(tmp_path, 4), alone)
    assert found.verdict is Judgement.UNPROVEN
    assert found.why == "nothing was trained after the kill, which came after the last of 4 steps"
    both = judged("warm", HIT * 2, FinishedRun(status(tmp_path, "warm"), ROWS, {}, starts=(0, 2, 4)), alone)
    assert both.verdict is Judgement.EXACT, "one of its kills had steps behind it"


def test_a_training_that_begins_anew_is_no_proof_that_it_resumes(tmp_path):
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {})
    found = judged("warm", HIT, killed_after(tmp_path, 0), alone)
    assert found.verdict is Judgement.UNPROVEN
    assert found.why.startswith("nothing was resumed: it began anew after each kill")


def test_what_is_compared_before_the_restart_alone_is_no_proof(tmp_path):
    early = {0: {1: {"loss": 1.0}}}
    alone = FinishedRun(status(tmp_path, "alone", fingerprint=None), early, {})
    found = judged("warm", HIT, killed_after(tmp_path, 2, early, fingerprint=None), alone)
    assert found.verdict is Judgement.UNPROVEN
    assert found.why == "there is nothing to compare after step 2, from which it went on"
    marked = FinishedRun(status(tmp_path, "alone"), early, {})
    assert judged("warm", HIT, killed_after(tmp_path, 2, early), marked).verdict is Judgement.EXACT, "the end is alike"


def test_it_explains_no_more_than_it_has_compared(tmp_path):
    """Of steps 3 and 4 nothing was reported: whether they were alike is not known."""
    alone = FinishedRun(status(tmp_path, "alone", step=9), {0: {1: {"loss": 1.0}, 5: {"loss": 2.0}}}, {})
    rows = {0: {1: {"loss": 1.0}, 5: {"loss": 3.0}}}
    disturbed = FinishedRun(status(tmp_path, "warm", step=9), rows, {}, starts=(0, 2))
    found = with_causes(judged("warm", HIT, disturbed, alone), disturbed, alone, alone)
    [cause] = [one for one in found.causes if one.startswith("state that")]
    assert cause.startswith(
        "state that no checkpoint has: step 5 is the first that could be compared after the restart"
    )
    assert "were alike" not in cause


def test_a_run_that_failed_proves_nothing(tmp_path):
    alone = FinishedRun(status(tmp_path, "alone"), ROWS, {})
    lost = FinishedRun(status(tmp_path, "warm", state=State.LOST, message="all is gone", exit_code=21), ROWS, {})
    found = judged("warm", HIT, lost, alone)
    assert (found.verdict, found.exit_code, found.why) == (Judgement.FAILED, 21, "warm is lost: all is gone")


def test_all_that_a_run_has_left_is_read(tmp_path):
    folder = RunFolder(tmp_path / "job-abcd").plan()
    save_model(folder.path / "checkpoints", 4)
    run = Run("job-abcd", folder.path)
    found = finished(run, run.status())
    assert found.first_saved == 4
    assert found.checkpoints == {4: folder.path / "checkpoints" / "step-00000004"}
