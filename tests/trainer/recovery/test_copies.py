"""Notes on their way to a rank of another node, whatever their length."""

from ranks import Ranks

from trainer.recovery.copies import Copies
from trainer.world import join

FRAME = (1 << 14) - 16  # what the first message takes
NOTES = {1: b"x", 2: b"y" * FRAME, 3: b"z" * (FRAME + 1), 4: b"w" * 100_000, 5: b"", 6: b"v"}


def exchanged(last):
    """Exchange notes up to step `last` between ranks on nodes of their own; return what this rank keeps."""
    world = join()
    copies = Copies(world)
    for step, note in NOTES.items():
        if step <= last:
            copies.exchange(step, bytes([world.rank]) + note if note else b"")
            copies.finish()
    return copies.kept


def of(rank, *steps):
    return {step: bytes([rank]) + NOTES[step] for step in steps}


def test_a_rank_has_the_newest_three_of_the_rank_on_the_next_node():
    assert Ranks(exchanged, 3, 4, local_size=1, stay=True).results() == [of(1, 2, 3, 4), of(2, 2, 3, 4), {}]


def test_who_has_none_any_more_leaves_what_there_was():
    assert Ranks(exchanged, 2, 6, local_size=1, stay=True).results() == [of(1, 3, 4, 6), {}]
