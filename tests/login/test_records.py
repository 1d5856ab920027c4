"""Test that reports of a login node are kept in the run's folder here, and only facts that it alone can know."""

import msgspec
import pytest
from run_folder import RunFolder, state_of

from launcher.errors import Exit, LaunchError
from launcher.places.login import records
from launcher.places.login.messages import AttemptNews, KnownRun, RunNews
from launcher.run.attempts import last_seen
from launcher.run.durable import read_record, write_record
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd, ClusterAnswer, Exclusion, Handle, Intent, RunState
from launcher.states import Cause, State


@pytest.fixture
def here(tmp_path):
    """A run that was handed to a login node."""
    folder = RunFolder(tmp_path / "job-aaaa").plan().intent(kind="login")
    write_record(
        folder.run.attempt(1).handle, Handle("login", submit_token="ab" * 8, run="job-bbbb", path="/far/job-bbbb")
    )
    folder.run.events.write_bytes(b'{"ours": 1}\n')
    return folder.run


def news(*attempts, state=State.RUNNING, **more):
    known = {"message": "", "cause": None, "job": None, "last": None, "avoided": (), "events_at": 0, "events": b""}
    return RunNews(state=state, attempts=attempts or (began(1),), **{**known, **more})


def began(number, end=None, stop=None):
    return AttemptNews(number, "submit" if number == 1 else "requeue", None, 5.0, end, stop)


def ended(state):
    return AttemptEnd(state, None, 0, 7.0)


def keep(run, told):
    records.keep(run, run.attempt(1), told)


def test_an_end_is_kept_and_the_state_is_as_it_is_called_here(here):
    last = msgspec.structs.replace(state_of("job-bbbb"), cluster="slurm", state=State.SUCCEEDED)
    keep(here, news(began(1, ended(State.SUCCEEDED)), state=State.SUCCEEDED, last=last))
    state = read_record(here.state, RunState)
    assert (state.run, state.cluster, state.state) == (here.path.name, read_plan_cluster(here), State.SUCCEEDED)
    assert here.attempt(1).end.exists()
    assert read_record(here.attempt(1).handle, Handle).run == "job-bbbb"


def read_plan_cluster(run):
    return msgspec.json.decode(run.plan.read_bytes())["cluster"]


def test_the_attempt_that_a_requeue_began_is_known_here_and_no_token_is(here):
    keep(here, news(began(1, ended(State.QUEUED)), began(2), job="77"))
    intent = read_record(here.attempt(2).intent, Intent)
    assert (intent.reason, intent.token, intent.cluster_kind) == ("requeue", "", "login")
    handle = read_record(here.attempt(2).handle, Handle)
    assert (handle.run, handle.job_id) == ("job-bbbb", "77")


def test_attempts_that_cannot_be_are_refused(here):
    for wrong in (began(7), began(-1), began(0)):
        with pytest.raises(LaunchError, match="expected attempt"):
            keep(here, news(began(1), wrong))
    assert [path.name for path in here.attempts.iterdir()] == ["0001"]


def test_what_is_said_of_an_attempt_before_the_newest_is_no_news(here):
    RunFolderOf(here).intent(2)
    keep(here, news(began(1, ended(State.FAILED)), state=State.FAILED))
    assert not here.attempt(1).end.exists()


def RunFolderOf(run):  # noqa: N802 - a folder that is there already
    folder = RunFolder.__new__(RunFolder)
    folder.run = run
    return folder


def test_events_come_from_where_those_here_end(here, tmp_path):
    there = RunDir(tmp_path / "there")
    there.path.mkdir()
    there.events.write_bytes(b'{"theirs": 1}\n{"theirs": 2}\nhalf a li')
    for _ in range(2):
        known = records.known_of(here, here.attempt(1), "job-bbbb")
        at, new = records.events_after(there, known)
        keep(here, news(events_at=at, events=new))
        assert here.events.read_bytes() == b'{"theirs": 1}\n{"theirs": 2}\n', "others are not added to ours"
    with there.events.open("ab") as file:
        file.write(b"ne\n")
    at, new = records.events_after(there, records.known_of(here, here.attempt(1), "job-bbbb"))
    assert (at, new) == (len(b'{"theirs": 1}\n{"theirs": 2}\n'), b"half a line\n")
    assert records.events_after(RunDir(tmp_path / "none"), KnownRun("x", 1, 0, "")) == (0, b"")


def test_events_lie_nowhere_but_behind_those_that_are_here(here):
    before = here.events.read_bytes()
    with pytest.raises(LaunchError, match="expected events of job-aaaa from byte 12 on"):
        keep(here, news(events_at=1 << 40, events=b"{}\n"))
    assert here.events.read_bytes() == before
    here.events.unlink()
    with pytest.raises(LaunchError, match="expected events of job-aaaa from byte 0 on"):
        keep(here, news(events_at=12, events=b"{}\n"))


@pytest.mark.parametrize(
    ("state", "cause", "said", "code"),
    [
        (State.FAILED, Cause.KILLED, 0, Exit.KILLED),
        (State.FAILED, None, 256, Exit.LOST),
        (State.FAILED, Cause.HANG, Exit.BAD_INPUT, Exit.HANG),
        (State.SUCCEEDED, None, 10, Exit.OK),
        (State.FAILED, Cause.USER_ERROR, Exit.USER_ERROR, Exit.USER_ERROR),
    ],
)
def test_an_exit_code_goes_with_the_state(here, state, cause, said, code):
    last = msgspec.structs.replace(state_of("job-bbbb"), state=state, cause=cause, exit_code=said)
    keep(here, news(began(1, AttemptEnd(state, cause, said, 7.0)), state=state, last=last))
    assert read_record(here.attempt(1).end, AttemptEnd).exit_code == code
    assert read_record(here.state, RunState).exit_code == code


def test_what_other_places_hold_against_nodes_is_not_for_a_login_node_to_say(here):
    RunFolderOf(here).intent(2)  # on this machine
    ours, theirs, forged = (Exclusion(host, "", attempt, 1.0, 1e10) for host, attempt in (("a", 2), ("b", 1), ("c", 2)))
    write_record(here.avoided, [ours])
    records.keep(here, here.attempt(1), news(began(1), began(2), avoided=(theirs, forged)))
    assert read_record(here.avoided, list[Exclusion]) == [ours, theirs]


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (State.QUEUED, "queued"),
        (State.STARTING, "running"),
        (State.RUNNING, "running"),
        (State.REGROUPING, "running"),
        (State.UNKNOWN, "unknown"),
        (State.LOST, "ended"),
        (State.FAILED, "ended"),
        (State.CANCELLED, "ended"),
        (State.SUCCEEDED, "ended"),
    ],
)
def test_the_word_of_a_login_node(here, state, phase):
    word = records.answer_of(here.attempt(1), news(state=state, message="because", cause=Cause.KILLED))
    assert (word.phase, word.text) == (phase, "because")
    assert word.ended_as == (state if phase == "ended" else None)


def test_silence_says_when_it_was_last_seen(here):
    assert last_seen(here.attempt(1), "away").at == 0.0
    seen = records.answer_of(here.attempt(1), news())
    told = last_seen(here.attempt(1), "away")
    assert (told.silent, told.word, told.at) == ("away", "RUNNING", seen.at)
    assert read_record(here.attempt(1).seen, ClusterAnswer).silent == "", "that is never on disk"


def test_no_end_is_kept_before_all_events_are_here(here):
    """An ended run is not asked again: what did not fit into that answer never came."""
    last = msgspec.structs.replace(state_of("job-bbbb"), state=State.SUCCEEDED)
    told = {"state": State.SUCCEEDED, "last": last, "events": b"{}\n"}
    keep(here, news(began(1, ended(State.SUCCEEDED)), **told, more=True))
    assert here.events.read_bytes() == b"{}\n"
    assert not here.attempt(1).end.exists() and not here.state.exists()
    assert records.answer_of(here.attempt(1), news(**told, more=True)).phase == "running"
    keep(here, news(began(1, ended(State.SUCCEEDED)), **told))
    assert here.attempt(1).end.exists() and read_record(here.state, RunState).state is State.SUCCEEDED
