"""Why a job waits, in plain words."""

import pytest

from launcher.places.gridengine.gridengine import reason_of


@pytest.mark.parametrize(
    ("state", "messages", "said"),
    [
        (
            "qw",
            ['cannot run in PE "mpi" because it only offers 0 slots'],
            "the parallel environment mpi has no host free for it",
        ),
        ("qw", ['queue instance "all.q@n1" dropped because it is full'] * 2, "queues that it may use are full"),
        ("qw", ['queue instance "all.q@n1" dropped because it is disabled'], "queues that it may use are disabled"),
        ("qw", ["something new of version 9"], "Grid Engine says: something new of version 9"),
        ("qw", ["There are no messages available"], "Grid Engine gives no reason yet"),
        ("hqw", [], "it is held, by its owner or an administrator: qrls lets it go"),
        ("Rq", [], "Grid Engine gives no reason yet to start it again"),
    ],
)
def test_words(state, messages, said):
    assert reason_of(state, [], messages) == said


def test_an_error_comes_first_with_what_to_do():
    said = reason_of("Eqw", ["error: can't chdir to /gone"], ["Job is in error state"])
    assert (
        said == "it could not be started: error: can't chdir to /gone; once that is mended, qmod -cj lets it try again"
    )
