"""Hosts in place of lost ones: when a wait for a run asks the pool's command, and when nothing may be resumed."""

import pytest
from msgspec.structs import replace

from launcher.places.ssh.host_client import Place
from launcher.spec.model import Ssh, SshHost
from launcher.states import Cause, State
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.submission.replacing import Replacement, may_replace, unlisted
from tests.run_folder import RunFolder, plan_of

HOSTS = (SshHost("a"), SshHost("b"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run on a and b of a pool whose command lists what is in a file."""
    clusters = tmp_path / "clusters.yaml"
    clusters.write_text("lab: {kind: ssh, hosts: {command: [cat, listed]}}\n")
    clusters.chmod(0o600)
    monkeypatch.setenv("LAUNCH_CLUSTERS", str(clusters))
    made = RunFolder(tmp_path / "job-2345")
    spec = plan_of(made.path).spec
    plan = replace(
        plan_of(made.path, 2), cluster="lab", cluster_kind="ssh", defaults=(("ssh.hosts", "[a, b]"),),
        spec=replace(spec, ssh=Ssh(HOSTS), recovery=replace(spec.recovery, gone_after_s=900.0)),
    )  # fmt: skip
    made.intent(kind="ssh").write(made.run.plan, plan).state()
    return made.write(made.run.attempt(1).hosts, [Place(one, False, "python", "w", "") for one in HOSTS])


@pytest.fixture
def watch(folder):
    """A wait, the state of the run that it is given each time, and how often it has resumed the run."""
    resumed = []
    wait = Replacement(folder.run, lambda: resumed.append(1), every_s=0.0)
    status = derive(read_facts(folder.path))

    def show(state, cause=None):
        return wait.poll(replace(status, state=state, cause=cause, message="ended")), resumed

    return show


def test_an_end_that_was_there_before_is_left_to_a_person(watch):
    shown, resumed = watch(State.FAILED, Cause.NODE_LOST)
    assert (shown.state, shown.message, resumed) == (State.FAILED, "ended", [])


def test_it_waits_while_the_command_fails_or_names_no_other_host(folder, watch):
    watch(State.RUNNING)
    shown, _ = watch(State.FAILED, Cause.NODE_LOST)
    assert (shown.state, shown.message) == (State.QUEUED, "lab: cat, which names its hosts: exit code 1")
    (folder.path.parent / "listed").write_text("a\nb\n")
    shown, resumed = watch(State.FAILED, Cause.NODE_LOST)
    assert (shown.state, resumed) == (State.QUEUED, [])
    assert shown.message == "waits until the command of lab names hosts in place of lost ones"
    assert watch(State.FAILED, Cause.USER_ERROR)[0].state is State.FAILED


def test_a_pool_without_a_command_has_its_run_end_at_once(folder, watch):
    (folder.path.parent / "clusters.yaml").write_text("lab: {kind: ssh, hosts: [a, b, c]}\n")
    watch(State.RUNNING)
    shown, resumed = watch(State.FAILED, Cause.NODE_LOST)
    assert (shown.state, shown.message, resumed) == (State.FAILED, "ended", [])


def test_hosts_that_are_named_no_more_count_as_gone(folder):
    (folder.path.parent / "listed").write_text("b\nc\n")
    assert unlisted(folder.run) == {"a"}
    assert unlisted(RunFolder(folder.path.parent / "none").run) == set()


@pytest.mark.parametrize(
    ("state", "listed", "over", "may"),
    [
        (State.FAILED, {"a", "b", "c"}, set(), True),  # a majority has said that b is lost
        (State.INTERRUPTED, {"b", "c"}, {"b"}, True),
        (State.INTERRUPTED, {"a", "b", "c"}, {"b"}, False),  # nobody says that the silent one is gone
        (State.UNKNOWN, {"b", "c"}, set(), False),  # b is silent and still there, or lives: it may go on
        (State.UNKNOWN, {"b", "c"}, {"b"}, True),
        (State.UNKNOWN, {"c"}, set(), True),
    ],
)
def test_a_host_that_may_go_on_is_never_replaced(state, listed, over, may):
    assert may_replace(state, {"a", "b"}, listed, over) is may
