"""What an agent reads from the end of a rank's log."""

import pytest

from launcher.agent.ranks.logfile import last_exception
from launcher.rundir.records import Raised

LIBRARY = "/usr/lib/python3.11"
REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    ("files", "module", "where"),
    [
        (["/home/u/train.py", f"{LIBRARY}/socket.py"], "train", "socket.py:2 in f"),
        (
            ["/home/u/train.py", "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py"],
            "torch.distributed.rendezvous",
            "rendezvous.py:2 in f",
        ),
        (["/usr/lib/python3/dist-packages/redis/__init__.py"], "redis", "__init__.py:1 in f"),
        ([], "", ""),
    ],
)
def test_the_last_exception_of_a_log_and_whose_it_is(files, module, where):
    frames = [f'  File "{file}", line {number}, in f' for number, file in enumerate(files, 1)]
    found = last_exception(("step 1", "Traceback (most recent call last):", *frames, REFUSED))
    assert found is not None
    assert (found.line, found.where) == (REFUSED, where)
    assert found.raised == (Raised(REFUSED, module),)


def test_a_log_without_an_exception():
    assert last_exception(("step 1", "step 2")) is None


def test_a_traceback_that_torch_has_put_the_rank_before():
    lines = ("Traceback (most recent call last):", '  File "/home/u/train.py", line 3, in f', "ValueError: bad shape")
    found = last_exception(tuple(f"[rank0]: {line}" for line in lines))
    assert found is not None
    assert (found.line, found.where) == ("ValueError: bad shape", "train.py:3 in f")
    assert found.raised == (Raised("ValueError: bad shape", "train"),)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        (("  what():  [PG 0] NCCL watchdog", "Exception raised from x"), "c10::DistBackendError: [PG 0] NCCL watchdog"),
        ((), "c10::DistBackendError"),
    ],
)
def test_what_cpp_says_before_it_aborts(what, line):
    found = last_exception(("x", "terminate called after throwing an instance of 'c10::DistBackendError'", *what))
    assert found is not None
    assert (found.line, found.raised) == (line, (Raised(line),))
