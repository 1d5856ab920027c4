"""Two starts of one run at once, the older one frozen at every system call: nothing of it is accepted afterwards."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from checkpoint_lab import (
    SharedFlags,
    Struck,
    calls_of,
    check_sound,
    invalid,
    left_over,
    manifest_of,
    points,
    save,
    set_stage,
    write_rank,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.requirements import need
from tests.sizes import SCALE
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import FENCE, folder_name
from trainer.errors import EXIT_FENCED, Fenced

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def strace():
    need("strace")


def frozen_at(operation, call, when):
    """A process that carries the operation out as far as this call, and stops there until it gets SIGCONT."""
    return Struck(operation, "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGSTOP:when={when}")


def saves(folder, stage, steps, acknowledged, run_dir=None):
    """Save these steps one after the other, as a training does: a failed save is no reason to stop."""
    for step in steps:
        try:
            save(folder, step, stage.mine, run_dir)
        except OSError:
            continue
        acknowledged.mark(step)


@pytest.mark.daily
def test_the_older_one_is_frozen_at_every_call_of_a_save(memory):
    stage = set_stage(memory / "template", 1)
    counted = stage.fresh(memory / "counted")
    made = points(calls_of(lambda: save(counted, 2, stage.mine)))
    forced = before = 0
    for call, when in made:
        folder = stage.fresh(memory / "struck")
        acknowledged = SharedFlags()

        def operation(folder=folder, flags=acknowledged):
            saves(folder, stage, (2, 3), flags)

        with frozen_at(operation, call, when) as older:
            assert older.until("stopped by SIGSTOP"), (call, when)
            forced += 1
            newer = commit.take_over(folder)
            adopted = catalog.steps(folder)
            assert adopted in ([1], [1, 2]) and invalid(folder) == []
            before += 2 in adopted
            save(folder, 9, newer)
            os.kill(older.pid, signal.SIGCONT)
            end = older.end()
        assert end.code == EXIT_FENCED, f"{call} {when}: exit {end.code}"
        assert acknowledged.found() <= set(adopted), f"{call} {when}: acknowledged, and not there"
        assert catalog.steps(folder) == [*adopted, 9], f"{call} {when}: accepted from the fenced one"
        assert left_over(folder) == [] and invalid(folder) == []
    print(f"{forced} interleavings, in {before} the older one's commit came first")
    assert forced == len(made) >= 50 and 1 <= before < 10


def test_the_newer_one_is_frozen_at_every_call_of_its_take_over(memory):
    stage = set_stage(memory / "template", 1)
    commit.begin(stage.template, 2, stage.mine)
    counted = stage.fresh(memory / "counted")
    made = points(calls_of(lambda: commit.take_over(counted)))
    forced = accepted = 0
    for call, when in made:
        folder = stage.fresh(memory / "struck")
        adopted, acknowledged = SharedFlags(), SharedFlags()

        def take_over(folder=folder, adopted=adopted):
            commit.take_over(folder)
            for step in catalog.steps(folder):
                adopted.mark(step)

        with frozen_at(take_over, call, when) as newer:
            assert newer.until("stopped by SIGSTOP"), (call, when)
            forced += 1
            try:
                saves(folder, stage, (2,), acknowledged)
            except Fenced:
                assert 2 not in catalog.steps(folder)
            os.kill(newer.pid, signal.SIGCONT)
            assert newer.end().code == 0
        accepted += bool(acknowledged.found())
        assert adopted.found() == {1} | acknowledged.found(), f"{call} {when}: a commit that the newer one did not see"
        with pytest.raises(Fenced):
            saves(folder, stage, (3, 4), acknowledged)
        check_sound(folder, adopted.found(), {1, 2})
    assert forced == len(made) >= 50 and 0 < accepted < forced


def test_launch_has_named_a_newer_attempt_at_every_call_of_a_save(memory):
    """The newer one has not claimed the folder yet: the run's own fence is enough, where it was raised in time."""
    stage = set_stage(memory / "template", 1)
    run_dir = memory / "run"
    run_dir.mkdir()
    (run_dir / FENCE).write_text("0")
    counted = stage.fresh(memory / "counted")
    calls = calls_of(lambda: save(counted, 2, stage.mine, run_dir))
    sealed = max(number for number, line in enumerate(calls) if line.startswith("write("))  # the manifest
    for number, (call, when) in enumerate(points(calls)):
        (run_dir / FENCE).write_text("0")
        folder = stage.fresh(memory / "struck")
        acknowledged = SharedFlags()

        def operation(folder=folder, flags=acknowledged):
            saves(folder, stage, (2, 3), flags, run_dir)

        with frozen_at(operation, call, when) as older:
            assert older.until("stopped by SIGSTOP"), (call, when)
            (run_dir / FENCE).write_text("1")
            os.kill(older.pid, signal.SIGCONT)
            assert older.end().code == EXIT_FENCED
        assert set(catalog.steps(folder)) == {1} | acknowledged.found()
        assert acknowledged.found() <= ({2} if number > sealed else set()), f"{call} {when}: accepted"
        assert left_over(folder) == [] and invalid(folder) == []


class Starts(RuleBasedStateMachine):
    """Starts that claim, begin, write, publish, keep the best and prune, in any order; the last claim alone may."""

    actors = st.integers(0, 2)

    @initialize()
    def empty(self):
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.claims, self.drafts = {}, {}
        self.newest = None
        self.next_step = 0
        self.steps, self.best = set(), None

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(actor=actors)
    def take_over(self, actor):
        self.claims[actor] = commit.take_over(self.folder)
        self.newest = actor
        self.drafts.pop(actor, None)
        assert left_over(self.folder) == []

    def allowed(self, actor, operation):
        """Carry it out; it must be refused to all but the newest."""
        try:
            result = operation()
        except Fenced:
            assert actor != self.newest
            return None
        assert actor == self.newest, "accepted from a fenced one"
        return result

    @precondition(lambda self: self.claims)
    @rule(actor=actors)
    def begin(self, actor):
        if actor not in self.claims:
            return
        self.next_step += 1
        step = self.next_step
        draft = self.allowed(actor, lambda: commit.begin(self.folder, step, self.claims[actor]))
        if draft is not None:
            self.drafts[actor] = (draft, step, [])

    @precondition(lambda self: self.drafts)
    @rule(data=st.data())
    def write(self, data):
        actor = data.draw(st.sampled_from(sorted(self.drafts)))
        draft, step, files = self.drafts[actor]
        if len(files) == 2:
            return
        try:
            files.append(write_rank(draft, step, len(files), size=100))
        except FileNotFoundError:
            assert actor != self.newest

    @precondition(lambda self: self.drafts)
    @rule(data=st.data())
    def publish(self, data):
        actor = data.draw(st.sampled_from(sorted(self.drafts)))
        draft, step, files = self.drafts[actor]
        if len(files) < 2:
            return
        del self.drafts[actor]
        manifest = manifest_of(step, files)
        if self.allowed(actor, lambda: commit.publish(draft, manifest, self.claims[actor])):
            self.steps.add(step)

    @precondition(lambda self: self.steps and self.claims)
    @rule(actor=actors, data=st.data())
    def keep_best(self, actor, data):
        if actor not in self.claims:
            return
        step = data.draw(st.sampled_from(sorted(self.steps)))
        source = Entry("step", step, self.folder / folder_name(step))
        if self.allowed(actor, lambda: commit.publish_best(source, self.claims[actor])):
            self.best = step

    @precondition(lambda self: len(self.steps) > 1)
    @rule()
    def prune(self):
        oldest = min(self.steps)
        self.steps.remove(oldest)
        commit.remove([self.folder / folder_name(oldest)])

    @invariant()
    def what_was_accepted_is_there(self):
        if not hasattr(self, "folder"):
            return
        assert set(catalog.steps(self.folder)) == self.steps
        assert {entry.step for entry in catalog.entries(self.folder) if entry.kind == "best"} == {self.best} - {None}
        assert invalid(self.folder) == []


TestStarts = Starts.TestCase
TestStarts.settings = settings(max_examples=40 * SCALE, stateful_step_count=30)
