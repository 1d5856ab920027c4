"""Which role of a run may start, and what the end of one is for the run: without a process or a clock."""

from launcher.coordinator.roles import Roles
from launcher.run.records import AttemptEnd
from launcher.spec.model import Readiness, Role
from launcher.states import Cause, State

ROLES = {"main": Role(main=True, after=("server",)), "server": Role(ready=Readiness(port=True)), "actors": Role()}
PARTS = {"main": "main", "server": "server", "actors-0": "actors", "actors-1": "actors"}


def end(state, delay_s=0.0):
    return AttemptEnd(state, Cause.KILLED, 12, 1.0, "it fell", delay_s)


def test_who_waits_starts_once_all_that_it_waits_for_are_ready():
    roles = Roles(ROLES, PARTS)
    assert roles.due(0.0) == ["server", "actors-0", "actors-1"]
    assert roles.awaited() == ["server"]
    assert roles.due(1.0) == []
    roles.ready("server")
    assert roles.due(2.0) == ["main"]
    assert roles.awaited() == []


def test_one_that_is_to_start_again_does_so_after_its_delay_and_ends_nothing():
    roles = Roles(ROLES, PARTS)
    roles.due(0.0)
    assert roles.ended("actors-1", end(State.QUEUED, 3.0), 10.0) is None
    assert (roles.next_start(), roles.due(12.9), roles.due(13.0)) == (13.0, [], ["actors-1"])
    assert roles.next_start() is None


def test_one_that_cannot_go_on_ends_the_run_and_is_named():
    roles = Roles(ROLES, PARTS)
    roles.due(0.0)
    whole = roles.ended("actors-0", end(State.FAILED), 1.0)
    assert (whole.state, whole.cause, whole.exit_code) == (State.FAILED, Cause.KILLED, 12)
    assert whole.message == "role actors has failed: it fell"


def test_one_that_restarts_all_ends_the_attempt_of_the_run_and_not_the_run():
    roles = Roles(ROLES | {"server": Role(restart="all")}, PARTS)
    roles.due(0.0)
    whole = roles.ended("server", end(State.QUEUED, 3.0), 1.0)
    assert (whole.state, whole.cause, whole.delay_s) == (State.QUEUED, Cause.KILLED, 3.0)
    assert whole.message == "all roles start again, because of server: it fell"


def test_who_follows_a_role_starts_again_with_it_and_first_waits_until_it_is_ready_anew():
    ready = Readiness(port=True)
    roles = Roles(
        {
            "main": Role(main=True, ready=ready),
            "server": Role(follows=("main",), after=("main",), ready=ready),
            "actors": Role(follows=("server",)),
            "other": Role(),
        },
        PARTS | {"other": "other"},
    )
    roles.due(0.0)
    roles.ready("main")
    roles.due(0.0)
    roles.ready("server")
    assert roles.followed() == ["main", "server"]
    assert roles.restarted("server") == ["actors-0", "actors-1"]
    assert roles.restarted("main") == ["server", "actors-0", "actors-1"]
    assert roles.ended("server", AttemptEnd(State.QUEUED, None, 0, 1.0, "asked"), 1.0) is None
    assert roles.due(2.0) == []
    assert roles.awaited() == ["main"]
    roles.ready("main")
    assert roles.due(3.0) == ["server"]


def test_one_that_has_done_all_its_work_is_ready_and_does_not_come_back():
    roles = Roles(ROLES, PARTS)
    roles.due(0.0)
    assert roles.ended("server", end(State.SUCCEEDED), 1.0) is None
    assert roles.due(2.0) == ["main"]


def test_a_run_without_a_main_role_ends_once_all_have_as_the_worst_did():
    parts = {"a": "a", "b": "b", "c": "c"}
    for first, state in ((State.SUCCEEDED, State.SUCCEEDED), (State.FAILED, State.FAILED)):
        roles = Roles({"a": Role(), "b": Role(), "c": Role()}, parts)
        roles.due(0.0)
        assert roles.ended("b", end(first), 1.0) is None
        assert roles.ended("a", end(State.SUCCEEDED), 2.0) is None
        whole = roles.ended("c", end(State.SUCCEEDED), 3.0)
        assert whole.state is state
    assert (whole.cause, whole.exit_code, whole.message) == (Cause.KILLED, 12, "role b has failed: it fell")


def test_a_run_without_a_main_role_does_not_wait_for_those_that_can_never_start():
    some = {"a": Role(ready=Readiness(log="x")), "b": Role(after=("a",), ready=Readiness(log="y")), "c": Role()}
    roles = Roles(some | {"d": Role(after=("b",))}, {name: name for name in "abcd"})
    roles.due(0.0)
    assert roles.ended("c", end(State.SUCCEEDED), 1.0) is None
    assert roles.ended("a", end(State.FAILED), 1.0).state is State.FAILED


def test_a_run_of_one_program_starts_at_once():
    roles = Roles({}, {"": ""})
    assert (roles.due(0.0), roles.awaited(), roles.next_start()) == ([""], [], None)
