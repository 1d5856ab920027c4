"""The ranks of tests: forked from pytest, and with nothing of what other tests have left there."""

import gc

from ranks import spawn_ranks


class Waits:
    """An object whose release waits for ever in a forked process, as that of a process group does."""

    def __init__(self, freed):
        self.freed, self.itself = freed, self

    def __del__(self):
        self.freed.append(1)


def freed_here(freed):
    gc.collect()
    return len(freed)


def test_what_the_tests_before_left_behind_is_not_freed_in_a_rank():
    freed = []
    gc.collect()
    gc.disable()
    try:
        Waits(freed)
        assert spawn_ranks(freed_here, 1, freed) == [0]
    finally:
        gc.enable()
    gc.collect()
    assert freed == [1]
