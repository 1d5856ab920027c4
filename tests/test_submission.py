"""Test submitting and resuming, with a cluster that only records its requests."""

import os
import shutil
from dataclasses import replace

import msgspec
import pytest

from launcher.api import Run
from launcher.cli.main import main
from launcher.copies import news
from launcher.errors import BadInput, Exit, LaunchError, NotStarted, Refused, Unreachable
from launcher.places import kinds
from launcher.places.place import Place
from launcher.plan.facts import Machine
from launcher.plan.model import Plan
from launcher.run import registry
from launcher.run.attempts import newest, read_plan
from launcher.run.durable import write_record
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd
from launcher.run.removal import unused_code
from launcher.states import Cause, State
from launcher.submission import reopening
from launcher.submission.opening import open_runs
from launcher.submission.reopening import reopen
from launcher.submission.requests import Shipped, prepare
from launcher.supervisor.attempt_end import write_end

POOLS = """
pool1: {kind: ssh, hosts: [a1, a2], python: /opt/a/python, workdir: /scratch/a}
pool2: {kind: ssh, hosts: [b1, b2], user: bob}
"""


class Prepared:
    """Notes down which attempts are to be carried out."""

    went: list[int]
    refusals: list[Exception | None]  # what becomes of the next ones

    def start(self, attempt):
        self.went.append(attempt)
        if self.refusals and (refusal := self.refusals.pop(0)) is not None:
            raise refusal

    def drop(self):
        pass


class Noted(Place):
    """A cluster that notes down."""

    kind = "ssh"

    def machine(self, _spec):
        return Machine(4, (), apart=True)

    def prepare(self, _plan):
        return Prepared()

    def start(self, _plan, _attempt):
        pass

    def preview(self, _plan):
        return None

    def look(self, attempts):
        return [None for _ in attempts]

    def cancel(self, _run, _attempt, _plan):
        raise AssertionError


class Copying(Noted):
    """One that has the code copied behind the submit."""

    most_files_at_once = 0


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A project whose job goes to pools of the clusters file."""
    monkeypatch.setitem(kinds.OURS, "ssh", replace(kinds.OURS["ssh"], path=f"{__name__}:Noted"))
    monkeypatch.setattr(Prepared, "went", [], raising=False)
    monkeypatch.setattr(Prepared, "refusals", [], raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("LAUNCH_CLUSTERS", str(tmp_path / "clusters.yaml"))
    write_pools(tmp_path, POOLS)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "train.py").touch()
    spec = tmp_path / "job.yaml"
    spec.write_text("name: job\nrun: {script: train.py}\nresources: {nodes: 2}\n")
    return spec


def write_pools(folder, text):
    (folder / "clusters.yaml").write_text(text)
    (folder / "clusters.yaml").chmod(0o600)


def opened(job, on="pool1", overrides=()):
    [(_, path)] = open_runs([job], on=on, overrides=overrides)
    return RunDir(path)


def end(run):
    """End the newest attempt; gives it."""
    last = newest(run)
    write_end(run, last, AttemptEnd(State.FAILED, Cause.NODE_LOST, 15, 0.0, "x"), read_plan(run, last.number))
    return last


def resumed(run, on=None, overrides=()) -> Plan:
    """The plan of the attempt that follows the newest, which has ended."""
    last = end(run)
    reopen(run, after=last.number, on=on, overrides=overrides)
    return read_plan(run, last.number + 1)


def place(plan):
    ssh = plan.spec.ssh
    return plan.cluster, [host.name for host in ssh.hosts], ssh.user, ssh.python, ssh.workdir


def test_resumed_on_another_pool_nothing_of_the_first_is_left(job):
    run = opened(job)
    assert place(resumed(run, "pool2")) == ("pool2", ["b1", "b2"], "bob", None, None)
    assert place(resumed(run, "pool1")) == ("pool1", ["a1", "a2"], None, "/opt/a/python", "/scratch/a")


def test_what_the_user_said_stays_wherever_it_goes(job):
    run = opened(job, overrides=("ssh.python=/mine", "resources.nodes=1"))
    first = read_plan(run, 1)
    assert (first.overrides, place(first)[3:]) == (("ssh.python=/mine", "resources.nodes=1"), ("/mine", "/scratch/a"))
    second = resumed(run, "pool2", ("ssh.user=me",))
    assert place(second) == ("pool2", ["b1", "b2"], "me", "/mine", None)
    assert (second.overrides, second.nodes_max) == (("ssh.python=/mine", "resources.nodes=1", "ssh.user=me"), 1)


def test_the_clusters_file_as_it_is_now_holds_where_the_cluster_is_named(job):
    run = opened(job)
    write_pools(job.parent, "pool1: {kind: ssh, hosts: [a1, a3]}\n")
    assert place(resumed(run)) == ("pool1", ["a1", "a2"], None, "/opt/a/python", "/scratch/a")
    assert place(resumed(run, overrides=("ssh.workdir=/other",)))[4] == "/other"
    assert place(resumed(run, "pool1")) == ("pool1", ["a1", "a3"], None, None, "/other")
    (job.parent / "clusters.yaml").unlink()
    assert place(resumed(run))[1] == ["a1", "a3"]


@pytest.mark.parametrize("apart", [True, False])
def test_copies_in_memory_that_hosts_without_a_common_disk_do_not_keep_are_warned_of(job, monkeypatch, apart):
    told = []
    monkeypatch.setattr(news, "_listeners", [told.append])
    monkeypatch.setattr(Noted, "machine", lambda *_: Machine(4, (), apart=True, disks_apart=apart))
    opened(job, overrides=("checkpoint.memory_every=5 steps", "checkpoint.buddy=true"))
    warned = "warning: checkpoint.buddy does nothing on pool1: its hosts have no disk in common"
    assert any(line.startswith(warned) for line in told) == apart


@pytest.mark.parametrize("made", ["writable", "another's"])
def test_a_run_that_others_could_have_put_there_is_not_resumed(job, made):
    run = opened(job)
    last = end(run)
    if made == "writable":
        run.path.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(run.path, 61002, 61002)
    else:
        pytest.skip("only root can give a folder away")
    with pytest.raises(BadInput, match="other users own it or can write to it"):
        reopen(run, after=last.number, on=None, overrides=())
    assert newest(run) == last


def test_of_two_resumes_that_saw_the_same_end_one_goes_on(job, monkeypatch):
    run = opened(job)
    end(run)
    resume = Run(run.path.name, run.path).resume

    class SlowToLook(Noted):
        """While it looks at its hosts, somebody else resumes the run."""

        def machine(self, spec):
            monkeypatch.setattr(SlowToLook, "machine", Noted.machine)
            resume(overrides=("resources.nodes=1",))
            return Noted.machine(self, spec)

    monkeypatch.setattr(reopening, "of_kind", lambda _: SlowToLook())
    with pytest.raises(Refused, match="was resumed meanwhile, as attempt 2"):
        resume()
    assert (Prepared.went, read_plan(run, 2).nodes_max) == ([1, 2], 1)
    end(run)
    resume()
    assert Prepared.went == [1, 2, 3]


@pytest.mark.parametrize("anew", [True, False])
def test_a_user_who_allows_it_moves_a_run_whose_hosts_are_silent(job, monkeypatch, anew):
    """The error said to allow it, and came again."""
    told = []
    monkeypatch.setattr(news, "_listeners", [told.append])
    run = opened(job)
    last = end(run)

    class Silent(Noted):
        remote, kind = True, "another"

        def bring_newest(self, run):
            raise Unreachable("no checkpoint can be found", "hint: launch resume --anew begins without it")

    places = iter([Noted(), Silent()])  # to which it goes, and from which it comes
    monkeypatch.setattr(reopening, "of_kind", lambda _: next(places))
    if not anew:
        with pytest.raises(Unreachable, match="--anew"):
            reopen(run, after=last.number, on="pool2", overrides=())
        return
    reopen(run, after=last.number, on="pool2", overrides=(), anew=True)
    assert told[-1] == "no checkpoint can be found; it begins with step 0, as --anew allows"
    assert newest(run).number == last.number + 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_user_who_allows_to_begin_anew_gets_what_the_store_has(job, monkeypatch, answers):
    """The store was not asked, and the run began with step 0 beside a good copy."""
    told, here = [], []
    monkeypatch.setattr(news, "_listeners", [told.append])
    run = opened(job)
    last = end(run)

    def fetched(_run, _which):
        if not answers:
            raise Unreachable("s3://bucket does not answer")
        here.append(20)

    monkeypatch.setattr(reopening, "has_store", lambda _: True)
    monkeypatch.setattr(reopening, "whole_here", lambda _: here)
    monkeypatch.setattr(reopening, "fetch_stored", fetched)
    if not answers:
        with pytest.raises(Unreachable, match="s3"):
            reopen(run, after=last.number, on=None, overrides=())
    reopen(run, after=last.number, on=None, overrides=(), anew=True)
    assert here == [20] * answers
    assert [line for line in told if "step 0" in line] == [
        "s3://bucket does not answer; it begins with step 0, as --anew allows"
    ] * (not answers)


def test_a_plan_of_before_there_were_defaults_is_read(job):
    run = opened(job)
    old = msgspec.to_builtins(read_plan(run, 1))
    old["overrides"] = [f"{key}={text}" for key, text in old.pop("defaults")]
    write_record(run.plan, old)
    assert place(resumed(run)) == ("pool1", ["a1", "a2"], None, "/opt/a/python", "/scratch/a")


def test_ranks_have_the_umask_of_who_submits_and_keep_it_when_somebody_else_resumes(job):
    before = os.umask(0o007)
    try:
        run = opened(job)
        os.umask(0o077)
        assert (read_plan(run, 1).umask, resumed(run).umask) == (0o007, 0o007)
    finally:
        os.umask(before)


def test_from_elsewhere_the_options_of_the_cluster_there_win(job):
    shipped = Shipped(job, (), job.parent, {}, (("ssh.python", "/theirs"),))
    plan, _ = prepare(job, on="pool1", overrides=(), shipped=shipped)
    assert place(plan) == ("pool1", ["a1", "a2"], None, "/theirs", "/scratch/a")
    assert plan.overrides == ()


def refused(job, *refusals, repeat=3):
    """The error of a submit where the first ones meet with these."""
    Prepared.refusals[:] = refusals
    with pytest.raises(LaunchError) as raised:
        open_runs([job], on="pool1", overrides=(), repeat=repeat)
    return raised.value


def test_where_the_first_is_refused_nothing_was_started(job):
    error = refused(job, NotStarted("no"))
    assert (type(error), error.exit_code, error.runs) == (NotStarted, Exit.BAD_INPUT, ())
    assert registry.registered() == []


@pytest.mark.parametrize(
    ("refusal", "kind", "code", "left"),
    [
        (NotStarted("no"), Refused, Exit.REFUSED, 2),
        (Unreachable("who knows"), Unreachable, Exit.UNREACHABLE, 3),
        (OSError("disk full"), LaunchError, Exit.INTERNAL, 3),
    ],
)
def test_where_a_later_one_is_refused_those_that_exist_are_named(job, refusal, kind, code, left):
    error = refused(job, None, None, refusal, repeat=4)
    assert (type(error), error.exit_code, error.lines[0]) == (kind, code, str(refusal))
    assert sorted(error.runs) == sorted((name, str(path)) for name, path in registry.registered())
    assert len(error.runs) == left
    assert error.lines[-1] == f"hint: {left} of 4 runs exist all the same: do not submit them again"


def test_a_run_that_nobody_knows_to_be_handed_over_is_named(job, capsys, monkeypatch):
    monkeypatch.chdir(job.parent)
    Prepared.refusals[:] = [Unreachable("the controller does not answer")]
    assert main(["submit", "job.yaml", "--on", "pool1"]) == Exit.UNREACHABLE
    said = capsys.readouterr()
    [(run, _)] = registry.registered()
    assert said.out == f"{run}\n"
    hint = f"hint: {run} exists all the same: `launch status` hands it over, `launch cancel {run}` gives it up"
    assert said.err == f"launch: the controller does not answer\n{hint}\n"


def test_problems_of_all_specs_are_told_whoever_finds_them(job):
    unread, unfit = job.with_name("unread.yaml"), job.with_name("unfit.yaml")
    unread.write_text("name: unread\nrun: {scirpt: train.py}\n")
    unfit.write_text("name: unfit\nrun: {script: train.py}\nresources: {gpus_per_node: 9}\n")
    with pytest.raises(BadInput) as raised:
        open_runs([unread, unfit], on="pool1", overrides=())
    assert "run.scirpt: unknown option" in str(raised.value)
    assert "resources.gpus_per_node: asks for 9" in str(raised.value)


def test_a_secret_that_is_no_text_is_refused_before_anything_is(job, monkeypatch):
    monkeypatch.setenv("TOKEN", os.fsdecode(b"\xff"))
    job.write_text(f"{job.read_text()}secrets: [TOKEN]\n")
    with pytest.raises(BadInput, match="secrets: TOKEN: expected text"):
        opened(job)
    assert registry.registered() == []


def test_code_that_a_cluster_copies_is_in_the_store_alone_until_it_is_needed(job, monkeypatch):
    monkeypatch.setitem(kinds.OURS, "ssh", replace(kinds.OURS["ssh"], path=f"{__name__}:Copying"))
    run = opened(job)
    digest = read_plan(run, 1).code.digest
    assert not run.code.exists() and (run.path.parent / ".code" / digest / "train.py").is_file()
    assert unused_code([run.path.parent]) == []
    (job.parent / "train.py").write_text("edited\n")
    resumed(run)
    assert (run.code / "train.py").read_text() == ""


def test_a_run_whose_code_nobody_has_is_not_resumed(job, monkeypatch):
    monkeypatch.setitem(kinds.OURS, "ssh", replace(kinds.OURS["ssh"], path=f"{__name__}:Copying"))
    run = opened(job)
    shutil.rmtree(run.path.parent / ".code")
    with pytest.raises(Refused, match="its code is not here"):
        resumed(run)
