"""From how a rank ended to its cause, and who began it."""

from typing import Any

import pytest

from launcher.coordinator.classify import (
    brief,
    classify,
    culprit,
    describe,
    error_kind,
    evidence,
    failed,
    fenced,
    finished,
)
from launcher.run.records import Raised, RankExit
from launcher.states import Cause, ErrorKind


def end(rank: int = 0, **how: Any) -> RankExit:
    return RankExit(1, rank, rank, 0, 100 + rank, **how)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"signal": 9}, Cause.KILLED),
        ({"signal": 11}, Cause.KILLED),
        ({"signal": 6}, Cause.KILLED),
        ({"signal": 15}, Cause.KILLED),
        ({}, Cause.KILLED),  # its end was not observed
        ({"signal": 9, "oom": True}, Cause.OUT_OF_MEMORY),
        ({"signal": 9, "hung": True}, Cause.HANG),
        ({"code": 1, "error": "MemoryError"}, Cause.OUT_OF_MEMORY),
        (
            {"code": 1, "error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"},
            Cause.OUT_OF_MEMORY,
        ),
        ({"code": 1, "error": "RuntimeError: DefaultCPUAllocator: can't allocate memory"}, Cause.OUT_OF_MEMORY),
        ({"code": 75, "stopping": True}, Cause.PREEMPTED),
        ({"code": 75, "asked": True}, Cause.PREEMPTED),
        ({"code": 75}, Cause.USER_ERROR),  # nobody wanted it to stop: the program means something else by it
        ({"code": 125, "not_started": "Too many open files"}, Cause.LAUNCHER_FAULT),
        ({"code": 3}, Cause.USER_ERROR),
        ({"code": 1, "error": "ValueError: bad shape"}, Cause.USER_ERROR),
        ({"code": 1, "error": "KeyError: 'gloom'"}, Cause.USER_ERROR),
        ({"code": 1, "error": "TimeoutError: Timed out waiting for the data set"}, Cause.USER_ERROR),
        ({"code": 1, "error": "ValueError: unknown district"}, Cause.USER_ERROR),
        ({"signal": 9, "error": "RuntimeError: Connection closed by peer"}, Cause.KILLED),
        ({"signal": 6, "error": "c10::DistBackendError: NCCL watchdog"}, Cause.COMMUNICATION),
        ({"signal": 6, "error": "gloo::IoException: [pair.cc:534] Connection closed"}, Cause.COMMUNICATION),
        ({"signal": 6, "error": "gloo::TimeoutException"}, Cause.COMMUNICATION),
        ({"signal": 6, "error": "std::runtime_error: NCCL Error 2: unhandled system error"}, Cause.COMMUNICATION),
        ({"signal": 6, "error": "std::runtime_error: Broken pipe"}, Cause.KILLED),  # of whatever the user links
        ({"signal": 6, "error": "std::out_of_range: vector"}, Cause.KILLED),
    ],
)
def test_causes(how: dict[str, Any], cause: Cause) -> None:
    assert classify(end(**how)) is cause


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"error": "ValueError: bad shape"}, ErrorKind.EXCEPTION),
        ({"error": "FileNotFoundError: [Errno 2] No such file or directory: 'x'"}, ErrorKind.EXCEPTION),
        ({"error": "requests.exceptions.ReadTimeout: read timed out"}, ErrorKind.PASSING),
        ({"error": "OSError: [Errno 116] Stale file handle"}, ErrorKind.PASSING),
        ({"raised": (Raised("RuntimeError: no data"), Raised("urllib.error.URLError: x"))}, ErrorKind.PASSING),
        ({"error": "ModuleNotFoundError: No module named 'torch'"}, ErrorKind.MODULE),
        ({"code": 2}, ErrorKind.USAGE),
        ({"code": 1, "left": True}, ErrorKind.USAGE),
        ({"code": 3}, ErrorKind.OTHER),
    ],
)  # fmt: skip
def test_what_a_user_error_says_of_another_start(how: dict[str, Any], kind: ErrorKind) -> None:
    assert error_kind(end(**{"code": 1, **how})) is kind


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5",
        "RuntimeError: [enforce fail at /pytorch/gloo/transport/tcp/pair.cc:72] Connection reset by peer",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms",
        "RuntimeError: [c10d] ProcessGroupGloo.cpp:12: the remote end was closed",
        "RuntimeError: Gloo connectFullMesh failed with [..] no error",
        "RuntimeError: Application timeout caused pair closure",
        "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
        "RuntimeError: Connection reset by peer",
        "RuntimeError: Broken pipe",
        "RuntimeError: NCCL Error 2: unhandled system error",
        "RuntimeError: Socket Timeout",
    ],
)
def test_words_of_a_lost_peer(text: str) -> None:
    assert classify(end(code=1, error=text)) is Cause.COMMUNICATION


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [enforce fail at /x/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
        "RuntimeError: [../third_party/gloo/gloo/allreduce.cc:90] unsupported data type",
        "RuntimeError: ProcessGroupGloo.cpp:2134: invalid argument: tensors must have the same shape",
        "RuntimeError: bad config in /home/me/gloo/train.cc:1",
    ],
)
def test_a_backends_place_alone_says_nothing_of_a_peer(text: str) -> None:
    for raised in ((), (Raised(text, "torch.distributed.c10d"),)):
        assert classify(end(code=1, error=text, raised=raised)) is Cause.USER_ERROR


NO_SPACE = "OSError: [Errno 28] No space left on device: '/data/x'"


@pytest.mark.parametrize(
    "text",
    [
        NO_SPACE,
        "OSError: [Errno 122] Disk quota exceeded",
        "OSError: [Errno 5] Input/output error: 'x'",
        "OSError: [Errno 30] Read-only file system: 'x'",
        "RuntimeError: unable to write to file </torch_1>: No space left on device (28)",
        "trainer.errors.SaveFailed: /r: 3 saves in a row have failed, the last with: rank 1: No space left on device",
    ],
)
def test_words_of_a_disk(text: str) -> None:
    assert classify(end(code=1, error=text)) is Cause.DISK
    assert classify(end(code=1, error="ValueError: x", raised=(Raised("ValueError: x"), Raised(text)))) is Cause.DISK
    assert classify(end(signal=9, error=text)) is Cause.KILLED


@pytest.mark.parametrize("text", ["OSError: [Errno 13] Permission denied", "ValueError: No space left on device"])
def test_what_a_disk_is_not_to_blame_for(text: str) -> None:
    assert classify(end(code=1, error=text)) is Cause.USER_ERROR


REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe"
RESET = "RuntimeError: Connection reset by peer"
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5"


@pytest.mark.parametrize(
    ("raised", "cause"),
    [
        ([(REFUSED, "__main__")], Cause.USER_ERROR),  # its own database
        ([(REFUSED, "psycopg.connection")], Cause.USER_ERROR),
        ([(BROKEN, "train")], Cause.USER_ERROR),  # its own program
        ([(BROKEN, "torch.multiprocessing.queue")], Cause.USER_ERROR),
        ([(REFUSED, "")], Cause.USER_ERROR),
        ([(RESET, "redis.connection")], Cause.USER_ERROR),
        ([("FileNotFoundError: [Errno 2] No such file: '/data/gloo/NCCL/ProcessGroup'", "train")], Cause.USER_ERROR),
        ([("RuntimeError: no NCCL section in /etc/gloo/x.ini", "train")], Cause.USER_ERROR),
        ([("mine.DistError: no district", "mine")], Cause.USER_ERROR),
        ([("ValueError: bad shape", "torch.distributed.fsdp")], Cause.USER_ERROR),
        ([(REFUSED, "torch.distributed.rendezvous")], Cause.COMMUNICATION),
        ([(RESET, "torch.autograd.graph")], Cause.COMMUNICATION),
        ([(RESET, "")], Cause.COMMUNICATION),
        ([(GLOO, "train")], Cause.COMMUNICATION),  # work.wait() has no frame of torch's
        ([("torch.distributed.DistBackendError: NCCL error", "torch.distributed.x")], Cause.COMMUNICATION),
        ([("train.StepFailed: step 7", "train"), (GLOO, "torch.distributed.x")], Cause.COMMUNICATION),
        ([("KeyError: 'x'", "train"), (REFUSED, "train")], Cause.USER_ERROR),
    ],
)
def test_only_a_traceback_that_names_a_peer_is_communication(raised: list[tuple[str, str]], cause: Cause) -> None:
    chain = tuple(Raised(line, module) for line, module in raised)
    assert classify(end(code=1, error=chain[0].line, raised=chain)) is cause


@pytest.mark.parametrize("text", [REFUSED, BROKEN])
def test_an_error_of_a_socket_alone_says_nothing_of_a_peer(text: str) -> None:
    assert classify(end(code=1, error=text)) is Cause.USER_ERROR


def test_the_culprit_failed_first_and_by_itself() -> None:
    peer = end(0, code=1, error="Connection closed by peer")
    own = end(1, code=1, error="ValueError: x")
    later = end(2, signal=9)
    told = end(3, signal=9, stopping=True)
    good = end(4, code=0)
    assert culprit([good, peer, told, own, later]) is own
    assert culprit([good, peer, told]) is peer
    assert culprit([told]) is told


def test_of_those_that_failed_alike_the_lowest_is_named() -> None:
    how = {"code": 1, "error": "KeyError: 'x'", "where": "train.py:4"}
    lower, first = end(1, **how), end(3, **how)
    assert culprit([first, lower]) is culprit([lower, first]) is lower
    assert culprit([first, late := end(2, **how, stopping=True)]) is late  # it fell before the word reached it
    assert culprit([end(2, signal=11), killed := end(1, signal=11)]) is killed


@pytest.mark.parametrize(
    "how",
    [
        {"code": 1, "error": "KeyError: 'y'", "where": "train.py:4"},
        {"code": 1, "error": "KeyError: 'x'", "where": "train.py:5"},
        {"code": 2, "error": "KeyError: 'x'", "where": "train.py:4"},
        {"signal": 9, "error": "KeyError: 'x'", "where": "train.py:4", "stopping": True},  # it may have caught that
        {"code": 1, "error": "KeyError: 'x'", "where": "train.py:4", "done": True},
    ],
)
def test_what_failed_in_another_way_is_not_named_for_the_first(how: dict[str, Any]) -> None:
    first = end(3, code=1, error="KeyError: 'x'", where="train.py:4")
    assert culprit([first, end(0, **how)]) is first


def test_a_rank_that_leaves_as_it_was_told_is_not_named_for_one_with_that_code() -> None:
    first = end(3, code=1)
    assert culprit([first, end(0, code=1, stopping=True)]) is first


def test_failed_and_finished() -> None:
    assert not failed(end(signal=6, done=True))
    assert finished(end(signal=6, done=True))
    assert failed(end(code=1))
    assert not finished(end(code=0, stopping=True))
    assert not failed(end(code=0, stopping=True))
    assert failed(end())


def test_fenced_is_what_the_agent_found_evidence_for() -> None:
    assert fenced(end(code=22, fenced=True))
    assert fenced(end(code=22, fenced=True, stopping=True))
    assert not fenced(end(code=22))
    assert not fenced(end(code=22, fenced=True, done=True))
    assert classify(end(code=22)) is Cause.USER_ERROR


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"signal": 9}, "rank 2 on node 0 was killed by SIGKILL"),
        ({"signal": 9, "oom": True}, "rank 2 on node 0 was killed by SIGKILL: out of memory"),
        ({"signal": 99}, "rank 2 on node 0 was killed by signal 99"),
        ({"code": 3}, "rank 2 on node 0 ended with exit code 3"),
        ({}, "rank 2 on node 0 is gone, and its end was not observed"),
        ({"hung": True, "signal": 9}, "rank 2 on node 0 hung: no progress and no output"),
        (
            {"code": 1, "error": "ValueError: a\nb", "where": "t.py:4 in f"},
            "rank 2 on node 0: ValueError: a b (t.py:4 in f)",
        ),
    ],
)
def test_one_line_for_people(how: dict[str, Any], line: str) -> None:
    ended = end(2, **how)
    assert describe(ended, classify(ended)) == line


def test_evidence() -> None:
    assert evidence(end(signal=9, oom=True)) == "SIGKILL, the kernel or CUDA reported that memory ran out"
    assert evidence(end(code=3)) == "exit code 3"
    assert evidence(end()) == "its end was not observed"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"code": 1, "error": "KeyError: 'x'", "where": "train.py:3 in f"}, "KeyError in train.py:3, rank 1"),
        ({"code": 1, "error": "torch.cuda.OutOfMemoryError: x"}, "out of memory, rank 1"),
        ({"code": 3}, "exit code 3, rank 1"),
        ({"signal": 11, "where": "net.py:3 in f"}, "SIGSEGV in net.py:3, rank 1"),
        ({"signal": 9, "hung": True}, "hang, rank 1"),
        ({}, "its end was not observed, rank 1"),
    ],
)
def test_in_a_few_words(how: dict[str, Any], words: str) -> None:
    of = end(1, **how)
    assert brief(of, classify(of)) == words
