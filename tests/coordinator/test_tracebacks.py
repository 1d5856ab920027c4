"""Test what an agent reads from the end of a rank's log, and from the error file of torch's `@record`."""

import json

import pytest

from launcher.coordinator.tracebacks import last_exception, likeliest, main_stack, read_error_file, stuck_at
from launcher.coordinator.verdict import failure_of
from launcher.node.ranks.reports.logfile import LogFile
from launcher.run.hangs import Frame
from launcher.run.records import Event, Raised
from launcher.states import Cause
from launcher.wire.progress import ExceptionReport

LIBRARY = "/usr/lib/python3.11"
REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    ("files", "module", "where"),
    [
        (["/home/u/train.py", f"{LIBRARY}/socket.py"], "train", "train.py:1 in f"),
        (
            ["/home/u/train.py", "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py"],
            "torch.distributed.rendezvous",
            "train.py:1 in f",
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


def test_frames_of_an_earlier_traceback_are_not_of_this_one():
    lines = ("Traceback (most recent call last):", '  File "/home/u/a.py", line 3, in f', "KeyError: 'x'", "went on")
    lines += ("Traceback (most recent call last):", '  File "/usr/lib/python3.11/json/decoder.py", line 7, in g')
    found = last_exception((*lines, "json.decoder.JSONDecodeError: no"))
    assert found is not None and found.where == "decoder.py:7 in g"


CALLS = 'Traceback (most recent call last):\n  File "/home/u/a.py", line 3, in f\n    g()\nRuntimeError: boom\n'
OF_A_WORKER = f"ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n{CALLS}"


@pytest.mark.parametrize(
    ("written", "line", "where"),
    [
        ({"message": "boom"}, "boom", ""),
        ({"message": {"message": "RuntimeError: boom"}}, "RuntimeError: boom", ""),
        (
            {"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": CALLS, "timestamp": "1"}}},
            "RuntimeError: boom",
            "a.py:3 in f",
        ),
        ({"message": {"message": OF_A_WORKER, "errorCode": 1}}, "RuntimeError: boom", "a.py:3 in f"),
    ],
)
def test_what_an_error_file_says(tmp_path, written, line, where):
    (tmp_path / "error.json").write_text(json.dumps(written))
    found = read_error_file(tmp_path / "error.json")
    assert found is not None
    assert (found.line, found.where) == (line, where)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"message": 3}', '{"message": "\\n"}', '{"message": "' + "x" * (1 << 20) + '"}']
)
def test_an_error_file_that_says_nothing(tmp_path, text):
    path = tmp_path / "error.json"
    assert read_error_file(path) is None
    path.write_text(text)
    assert read_error_file(path) is None
    path.unlink()
    path.mkdir()
    assert read_error_file(path) is None


OTHER = '  File "/usr/lib/python3.11/threading.py", line 982 in run\n'
CRASHED = """\
step 3
terminate called after throwing an instance of 'std::out_of_range'
  what():  vector
Fatal Python error: Aborted
Thread 0x00007f3494 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
Current thread 0x00007f3495 [python] (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 70 in _call
  File "/home/u/train.py", line 4 in step
  File "/opt/launcher/node/zygote.py", line 520 in <module>
Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


def test_a_crash_is_told_by_the_stack_of_its_thread_and_by_what_it_threw(tmp_path):
    (tmp_path / "rank.log").write_text(CRASHED.replace(OTHER, OTHER * 200))
    tail = LogFile(tmp_path / "rank.log").tail()
    assert [line[:20] for line in tail] == [
        "step 3", "terminate called aft", "  what():  vector", "Fatal Python error: ", "Current thread 0x000",
        '  File "/venv/lib/py', '  File "/home/u/trai',
    ]  # fmt: skip
    found = last_exception(tail)
    assert found is not None
    assert (found.line, found.where) == ("std::out_of_range: vector", "train.py:4 in step")


@pytest.mark.parametrize(
    ("log", "where"),
    [
        ("KeyError: 'dealt with'\nFatal Python error: Segmentation fault\n<no Python frame>\n", ""),
        (
            'Fatal Python error: Bus error\nThread 0x1 (most recent call first):\n  File "/a.py", line 1 in f\n',
            "a.py:1 in f",
        ),
        ("Fatal Python error: Illegal instruction\n", ""),
    ],
)
def test_a_crash_of_which_little_is_known(log, where):
    found = last_exception(log.splitlines())
    assert found is not None
    assert (found.line, found.where) == ("", where)


def test_the_starters_word_is_taken_only_for_the_same_exception():
    reported = ExceptionReport("torch.distributed.DistBackendError: x", "train.py:3 in f")
    same, root = ExceptionReport("DistBackendError: x"), ExceptionReport("ValueError: bad shape", "net.py:1 in g")
    assert likeliest(reported, None) is reported and likeliest(None, root) is root
    assert likeliest(reported, same) is reported
    assert likeliest(reported, root) is root


STUCK = """\
step 3
Thread 0x00007f3494 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
Current thread 0x00007f3495 [python] (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 70 in all_reduce
  File "/home/u/train.py", line 4 in step
  File "/home/u/train.py", line 9 in <module>
  File "/opt/launcher/node/zygote.py", line 520 in <module>
"""


@pytest.mark.parametrize(
    ("log", "where"),
    [
        (STUCK, "train.py:4 in step"),
        (f"{STUCK}{STUCK.replace('line 4', 'line 5')}", "train.py:5 in step"),
        ('Thread 0x1 (most recent call first):\n  File "/a.py", line 1 in f\n', "a.py:1 in f"),
        ("", ""),
        ('  File "/a.py", line 1 in f\n', ""),
    ],
)
def test_where_a_rank_is_stuck(log, where):
    assert stuck_at(log.splitlines()) == where


@pytest.mark.parametrize(("cause", "where"), [(Cause.HANG, "train.py:4 in step"), (Cause.KILLED, None)])
def test_the_failure_of_a_hung_rank_names_the_place(cause, where):
    failure = failure_of(Event(1.0, 1, "failure", "rank 0", cause=cause), "rank-00000.log", tuple(STUCK.splitlines()))
    assert failure is not None and failure.where == where


def test_the_main_thread_is_the_last_that_faulthandler_writes_of() -> None:
    lines = [
        "an earlier line of the log",
        "Thread 0x00007f01 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 324 in wait',
        "",
        "Current thread 0x00007f02 (most recent call first):",
        '  File "/job/train.py", line 12 in step',
        '  File "/job/train.py", line 40 in <module>',
        '  File "/venv/lib/launcher/node/zygote.py", line 1 in <module>',
    ]
    assert main_stack(lines) == (Frame("/job/train.py", 12, "step"), Frame("/job/train.py", 40, "<module>"))
    assert main_stack(lines[:1]) == ()
