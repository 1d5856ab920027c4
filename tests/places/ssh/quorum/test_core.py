"""Each rule of a quorum by itself; test_exploration.py has them together."""

import pytest

from launcher.places.ssh.quorum.core import (
    Append,
    Open,
    Opening,
    Records,
    RequestVote,
    Settle,
    Voter,
    may_start_from,
    may_vote_from,
)

FIRST = Opening(1, 0, frozenset(range(4)))
OLD, NEW = Records(1, 10, "old"), Records(1, 20, "new")


def voter(me=1, voted=(1, 0), openings=(FIRST,)):
    return Voter(me, voted, openings)


@pytest.mark.parametrize(
    ("size", "candidate", "together", "enough"),
    [
        (2, 0, {0}, True),  # the leader goes on alone
        (2, 1, {1}, False),  # the other one never takes over
        (2, 1, {0, 1}, True),
        (3, 0, {0}, False),
        (3, 1, {1, 2}, True),
        (4, 0, {0, 3}, True),
        (4, 1, {1, 2}, False),  # beside {0, 3}
        (4, 1, {1, 2, 3}, True),
        (5, 0, {0, 1}, False),
        (5, 0, {0, 1, 7, 8}, False),  # hosts that do not vote count for nothing
    ],
)
def test_a_leader_needs_half_of_the_voters_and_a_candidate_more(size, candidate, together, enough):
    assert Opening(1, 0, frozenset(range(size))).carried_by(together, candidate) == enough


@pytest.mark.parametrize(
    ("mine", "theirs", "as_new"),
    [
        (OLD, OLD, True),
        (NEW, OLD, True),
        (OLD, NEW, False),
        (Records(2, 1, "x"), NEW, True),
        (OLD, Records(2, 1, "x"), False),
        (Records(1, 10, "damaged"), OLD, False),
    ],
)
def test_records_are_compared_by_attempt_then_by_length_and_never_differ_in_one_length(mine, theirs, as_new):
    assert mine.as_new_as(theirs) == as_new


@pytest.mark.parametrize(
    ("known", "asked", "hears", "refused"),
    [
        (voter(), RequestVote(2, 2, OLD), False, ""),
        (voter(), RequestVote(2, 2, OLD), True, "it hears its leader"),
        (voter(), RequestVote(2, 0, OLD), True, ""),  # its leader itself opens the next attempt
        (voter(), RequestVote(1, 2, OLD), False, "attempt 1 is not newer than attempt 1, which it knows"),
        (voter(voted=(2, 3)), RequestVote(2, 2, OLD), False, "attempt 2 is not newer than attempt 2, which it knows"),
        (voter(voted=(2, 2)), RequestVote(2, 2, OLD), True, ""),  # asked again
        (voter(), RequestVote(2, 2, Records(1, 9, "shorter")), False, "the candidate's records are older than its own"),
    ],
)
def test_who_gets_a_vote(known, asked, hears, refused):
    assert known.against_vote(asked, OLD, hears_leader=hears) == refused


def test_a_number_is_voted_for_once():
    assert voter().vote(RequestVote(5, 2, OLD)).next_number == 6
    assert voter().stand(2).voted == (2, 1)
    with pytest.raises(ValueError, match="attempt 2 had the vote of host 1 already"):
        voter(voted=(2, 3)).stand(2)
    with pytest.raises(ValueError, match="host 1 was not elected for attempt 2"):
        voter().open(2, {1, 2})


def test_until_an_attempt_is_settled_the_voters_of_both_have_to_agree():
    opened = voter().stand(2).open(2, {1, 2, 3})
    assert not opened.carries({2}) and opened.carries({2, 3}), "{1, 2} are half of the first four"
    assert not opened.settled and not opened.leads
    settled = opened.settle(Settle(2, 1))
    assert settled.openings == (Opening(2, 1, frozenset({1, 2, 3})),) and settled.leads
    assert settled.carries({2}) and settled.missing({2}) == {3}
    assert opened.settle(Settle(1, 0)) == opened


def test_an_attempt_is_accepted_once_the_history_is_there():
    leader = voter().stand(2).open(2, {1, 2, 3})
    said, follower = Open(leader.openings, NEW), voter(me=2)
    assert follower.against_open(said, OLD) == "it lacks some of the leader's history"
    assert follower.against_open(said, NEW) == ""
    accepted = follower.accept(said)
    assert (accepted.voted, accepted.openings) == ((2, 1), leader.openings)
    assert accepted.accept(said) == accepted and accepted.against_open(said, OLD) == ""
    assert voter(me=2, voted=(3, 3)).against_open(said, NEW) == "attempt 3 has its vote"
    assert voter(me=2, voted=(2, 3)).against_open(said, NEW) == "attempt 2 has its vote for another"
    newer = Open((FIRST, Opening(1, 3, frozenset({2, 3}))), NEW)
    assert follower.against_open(newer, NEW) == "attempt 1 has its vote for another"


@pytest.mark.parametrize(
    ("known", "said", "refused"),
    [
        (voter(), Append(1, 0), ""),
        (voter(), Append(1, 3), "attempt 1 has its vote for another"),
        (voter(), Append(2, 3), "host 3 does not lead attempt 2 for it"),
        (voter(voted=(2, 3)), Append(2, 3), ""),  # the candidate that it voted for brings its history
        (voter(voted=(2, 3)), Append(1, 0), "attempt 2 has its vote"),
    ],
)
def test_whose_history_is_kept(known, said, refused):
    assert known.against_append(said) == refused


def test_who_has_voted_for_another_is_not_counted_as_heard():
    assert voter().counts and not voter(voted=(2, 3)).counts
    guest = voter(me=7)
    assert not guest.has_vote and not guest.counts


def test_a_voter_of_the_newest_attempt_votes_also_while_one_without_it_is_not_settled():
    before = (Opening(1, 0, frozenset({0, 1, 2, 3})), Opening(2, 0, frozenset({0, 1})))
    late = Voter(3, (3, 1), (*before, Opening(3, 1, frozenset({1, 2, 3}))))
    assert late.has_vote and late.counts
    assert not late.carries({1, 2}), "half of the voters of attempt 2 are not enough without its leader"
    assert late.carries({0, 1, 2})
    assert not Voter(3, (2, 0), before).has_vote


def test_ranks_start_once_those_of_the_last_attempt_have_ended():
    assert may_vote_from(101.0, 10.0) == 111.0
    assert [may_start_from(50.0, 10.0, all_ended=ended) for ended in (True, False)] == [50.0, 60.0]
