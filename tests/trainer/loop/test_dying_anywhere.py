"""Ranks are killed wherever they are, again and again, most of all while they meet others: the numbers stay right."""

import pytest
from replaced_ranks import Launched

from tests.sizes import SEED

STEPS, GENERATIONS = 24, 26
OF_TWO = ("--shard-size", "2")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "size", "more"), [("ddp", 3, ()), ("zero1", 3, ()), ("hsdp", 4, OF_TWO), ("fsdp", 3, ())]
)
def test_the_numbers_are_those_of_a_run_left_alone(tmp_path, strategy, size, more):
    print("seed", SEED)
    words = ("--steps", str(STEPS), "--strategy", strategy, *more)
    alone = Launched(tmp_path / "alone", size, *words)
    assert alone.run() == [0] * size, alone.said()
    (tmp_path / "die-0").write_text(f"{size - 1} 5 backward")
    how = ("--die", str(tmp_path / "die"), "--mortal", str(SEED), str(GENERATIONS))
    run = Launched(tmp_path / "run", size, *words, *how, memory_every="2 steps")
    assert run.run() == [0] * size, run.said()
    assert len(run.replaced) >= 10, run.replaced
    assert (run.fingerprint(), run.numbers()) == (alone.fingerprint(), alone.numbers())
