"""The file of a host's votes: a power cut while it is written, and a disk that lost some of it."""

import os
import resource
import signal
from itertools import count

import pytest

from launcher.places.ssh.host.ballot import Ballot
from launcher.places.ssh.host.supervisor_messages import Agreed, Declined
from launcher.run.durable import Damaged
from launcher.run.fence import raise_fence
from tests.places.ssh.host.test_supervisors import Table, started_again

VOTER = 2


@pytest.fixture
def table(tmp_path):
    """Return three hosts without their leader; host 2 has voted for host 1 in attempt 2."""
    table = Table(tmp_path)
    table.lose(0)
    assert table.said(VOTER, table.vote(2, 1)) == Agreed()
    return table


def voter_file(table):
    return table.supervisors[VOTER].ballot.path


def after_a_restart(table):
    member = started_again(table, VOTER)
    member.returning, member.ballot.leaderless = False, True
    return member.ballot


def answered_before_the_power_went(table, question, at):
    """Return whether host 2 could answer if its machine dies as one of its files grows beyond `at` bytes."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (at, at))
        os._exit(0 if table.said(VOTER, question) == Agreed() else 1)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGXFSZ, "it neither voted nor died"
    return status == 0


def test_a_power_cut_at_any_byte_of_a_vote_leaves_the_vote_before_or_this_one(table):
    raise_fence(table.supervisors[VOTER].run, 3)  # else the power goes while that is written
    path = voter_file(table)
    for at in count():
        answered = answered_before_the_power_went(table, table.vote(3, 1), at)
        assert after_a_restart(table).voted == ((3, 1) if answered else (2, 1)), f"cut at byte {at}"
        assert isinstance(table.said(VOTER, table.vote(2, 0)), Declined), "it has voted for host 1"
        if answered:
            break
    assert at == path.stat().st_size, "the power went at each byte of the vote"
    assert isinstance(table.said(VOTER, table.vote(3, 0)), Declined)


def test_a_vote_that_a_power_cut_took_may_go_to_another(table):
    """Nobody had heard of it."""
    raise_fence(table.supervisors[VOTER].run, 3)
    assert not answered_before_the_power_went(table, table.vote(3, 1), 20)
    after_a_restart(table)
    assert table.said(VOTER, table.vote(3, 0)) == Agreed()
    assert isinstance(table.said(VOTER, table.vote(3, 1)), Declined)


def test_a_host_whose_disk_lost_some_of_its_vote_does_not_come_back_to_vote_again(table):
    path = voter_file(table)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # the last byte is a line end
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match=path.name):
            after_a_restart(table)
    path.write_bytes(whole[:-1])
    assert after_a_restart(table).voted == (2, 1)


@pytest.mark.parametrize("lost", [0, 7, 40])
def test_a_lost_vote_of_before_keeps_no_host_from_a_run_that_a_person_resumes(table, lost):
    """Its supervisors are other ones, with other numbers; the host could not be used for the run any more."""
    path = voter_file(table)
    path.write_bytes(path.read_bytes()[:lost])
    resumed = Ballot(table.supervisors[VOTER].run, VOTER, ["host0", "host1", "host2"], 4)
    assert resumed.voted == (4, 0)
