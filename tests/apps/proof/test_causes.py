"""Test the causes that are named for a difference, by what differs, where and when."""

import pytest

from launcher.apps.proof.findings import Departure, Kill, StateDeparture
from launcher.apps.proof.judging import Evidence, causes_of

KILLS = (Kill(5, went_on_from=4), Kill(9, missed="it had ended"), Kill(15, went_on_from=12))


def evidence(step, *, kept=(), repeats=True, has_checkpoints=True, size=1.0, alike=range(1, 99)):
    first = Departure(step, 0, "loss", 1.0, 1.0 + size)
    state = StateDeparture(step + 1, 3, 0, kept=kept) if kept else None
    return Evidence(first, state, KILLS, repeats, has_checkpoints, alike)


def first_words(evidence):
    return [cause.partition(":")[0] for cause in causes_of(evidence)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (evidence(3), ["state that no checkpoint has"][:0]),
        (evidence(5), ["state that no checkpoint has"]),
        (evidence(13), ["state that no checkpoint has"]),
        (evidence(9), ["state that is needed later"]),
        (evidence(9, alike=[3, 4, 9, 12]), ["state that no checkpoint has"]),
        (evidence(9, alike=[6, 9]), ["state that is needed later"]),
        (evidence(13, kept=["shared/objects/data/epoch"]), ["the order of samples", "state that no checkpoint has"]),
        (evidence(13, kept=["rank/00001/generators/torch"]), ["random numbers", "state that no checkpoint has"]),
        (evidence(13, kept=["shared/objects/mine/a"]), ["an object's own state", "state that no checkpoint has"]),
        (evidence(13, has_checkpoints=False), ["the script's own checkpoint", "state that no checkpoint has"]),
        (evidence(13, size=1e-7), ["state that no checkpoint has", "the order of a sum"]),
        (evidence(3, repeats=None), ["it differs before anything was killed", "random numbers without a seed"]),
        (evidence(13, repeats=False), ["the training does not repeat itself", "random numbers without a seed"]),
    ],
)
def test_the_likeliest_come_first(given, expected):
    assert first_words(given)[: len(expected)] == expected


def test_of_no_difference_there_is_no_cause():
    assert causes_of(Evidence(None, None, KILLS, None, True, ())) == ()


def test_it_is_said_how_long_it_was_alike():
    assert "the first 4 steps after the restart were alike" in causes_of(evidence(9))[0]
    some = causes_of(evidence(9, alike=[6, 9]))[0]
    assert "1 of the first 4 steps after the restart could be compared, and was alike" in some
    more = causes_of(evidence(9, alike=[5, 6, 9]))[0]
    assert "2 of the first 4 steps after the restart could be compared, and were alike" in more
