"""A thread works ahead; what has a place for tensors keeps its shape."""

import threading
from collections import namedtuple

import pytest
import torch

from trainer.data.pinning import in_thread, pinned

Pair = namedtuple("Pair", "one other")  # noqa: PYI024 - a stranger's type


def test_everything_comes_in_order_and_the_thread_ends():
    before = threading.active_count()
    assert list(in_thread(iter(range(50)), lambda item: item * 2, 3)) == [item * 2 for item in range(50)]
    assert threading.active_count() == before


def test_it_works_ahead_no_further_than_asked():
    before = threading.active_count()
    taken = []
    ahead = threading.Event()

    def items():
        for item in range(50):
            taken.append(item)
            if item == 3:
                ahead.set()
            yield item

    changed = in_thread(items(), str, 3)
    assert next(changed) == "0"
    assert ahead.wait(60)
    assert max(taken) <= 4
    changed.close()
    assert threading.active_count() == before


def test_an_error_comes_out_where_it_is_waited_for():
    def items():
        yield 1
        raise OSError("gone")

    changed = in_thread(items(), str, 2)
    assert next(changed) == "1"
    with pytest.raises(OSError, match="gone"):
        next(changed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_are_pinned_wherever_they_are():
    batch = pinned({"image": [torch.zeros(3)], "pair": Pair(torch.ones(1), "text"), "more": (torch.ones(2), 5)})
    assert batch["image"][0].is_pinned() and batch["pair"].one.is_pinned() and batch["more"][0].is_pinned()
    assert isinstance(batch["pair"], Pair) and batch["pair"].other == "text"


def test_what_holds_no_tensor_stays_as_it_is():
    batch = {"words": ["a", b"b"], "pair": Pair(1, None), "numbers": (1.5, {2})}
    assert pinned(batch) == batch
