"""Test what an agent reports about its node."""

import errno

import pytest

from launcher.node.node import fault_of_start
from launcher.wire.messages import Fault


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_node_without_descriptors_processes_or_memory_for_a_rank_is_at_fault_itself(number: int) -> None:
    fault = fault_of_start(3, OSError(number, "no more"))
    assert fault == Fault(3, False, "node 3 could not start ranks: no more")


def test_a_full_disk_is_told_as_such_and_what_nobody_has_foreseen_is_not_told() -> None:
    full = fault_of_start(3, OSError(errno.ENOSPC, "No space left on device"))
    assert full is not None and full.disk
    assert fault_of_start(3, OSError(errno.EINVAL, "?")) is None
