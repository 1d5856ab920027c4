"""A thread that waits in torch without work is told from one that works there, and from one that waits elsewhere."""

import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.waits import until
from trainer import connections
from trainer.connections import BlockedThread, Connections

BOUND_S = 60.0
WAIT, WORK = "    lock.acquire()", "    while not lock.acquire(blocking=False):\n        sum(range(1000))"
OF_RANKS, OF_A_BACKWARD_PASS = "torch.distributed.distributed_c10d", "torch.autograd.graph"


@contextlib.contextmanager
def a_thread_in(module, body, before=lambda: None):
    """Run a thread that waits in a function of that module until the block ends; yield the thread and its lock."""
    lock = threading.Lock()
    namespace = {"__name__": module, "lock": lock}
    exec(f"def operation():\n{body}\n", namespace)

    def run():
        before()
        namespace["operation"]()

    lock.acquire()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        until("the operation", lambda: is_in_it(thread, sleeps=body == WAIT))
        yield thread, lock
    finally:
        if lock.locked():
            lock.release()
        thread.join(BOUND_S)
        assert not thread.is_alive()


def is_in_it(thread, *, sleeps):
    state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
    return sys._current_frames()[thread.ident].f_code.co_name == "operation" and (state == "S" or not sleeps)


@pytest.mark.parametrize(
    ("module", "body", "blocked_s"),
    [
        (OF_RANKS, WAIT, [0.0, 0.75, 1.0]),
        (OF_A_BACKWARD_PASS, WAIT, [0.0, 0.75, 1.0]),  # in which DDP waits
        (OF_A_BACKWARD_PASS, WORK, [0.0, 0.0, 0.0]),
        ("torch.utils.data.dataloader", WAIT, [0.0, 0.0, 0.0]),
        ("users.model", WAIT, [0.0, 0.0, 0.0]),
    ],
)
def test_how_long_it_has_slept_in_there(module, body, blocked_s):
    clock = [100.0]
    with a_thread_in(module, body) as (thread, _):
        stuck = BlockedThread(thread.ident, thread.native_id, lambda: clock[0])
        found = [stuck.blocked_s()]
        for passes in (0.75, 0.25):
            clock[0] += passes
            if body == WORK:
                works_on(stuck)
            found.append(stuck.blocked_s())
    assert found == blocked_s


def works_on(stuck):
    """Wait until the thread has used the CPU for a while since the last look."""
    spent = stuck._processor_s()
    until("work in it", lambda: stuck._processor_s() - spent > 0.2)


def test_it_begins_anew_once_it_has_worked():
    clock = [100.0]
    with a_thread_in(OF_RANKS, WAIT) as (thread, _):
        stuck = BlockedThread(thread.ident, thread.native_id, lambda: clock[0])
        clock[0] += 0.5
        assert stuck.blocked_s() == 0.5
        stuck._spent -= 1.0  # as if it had
        assert stuck.blocked_s() == 0.0
        clock[0] += 0.25
        assert stuck.blocked_s() == 0.25


def test_a_process_that_was_stopped_meanwhile_has_not_waited_all_the_time():
    clock = [100.0]
    with a_thread_in(OF_RANKS, WAIT) as (thread, _):
        stuck = BlockedThread(thread.ident, thread.native_id, lambda: clock[0])
        clock[0] += 3600.0
        assert stuck.blocked_s() == 1.0


@pytest.mark.parametrize(("module", "ended"), [(OF_RANKS, True), ("users.model", False)])
def test_a_rank_that_sleeps_in_what_was_cut_is_ended_and_one_that_sleeps_elsewhere_is_not(monkeypatch, module, ended):
    made, ends, cuts, (word, end) = Connections(stuck_s=0.3), [], [], os.pipe()
    monkeypatch.setattr(made, "cut", lambda *_: cuts.append(1))
    lookouts = []
    with a_thread_in(module, WAIT, lambda: lookouts.append(made.cut_on(word))) as (_, lock):

        def over(stuck):
            ends.append(stuck)
            if lock.locked():
                lock.release()

        monkeypatch.setattr(BlockedThread, "end_process", over)
        os.write(end, b"a word")
        until("looks or an end", lambda: ends or len(cuts) > 60)  # one in 20 ms: four times as long
    lookouts[0].close()
    os.close(word)
    os.close(end)
    assert bool(ends) == ended


def test_a_process_that_ends_itself_was_killed_and_has_said_where_it_waited(tmp_path):
    pid = os.fork()
    if pid == 0:
        connections.log.addHandler(logging.FileHandler(tmp_path / "log"))
        BlockedThread(threading.get_ident(), threading.get_native_id()).end_process()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    said = (tmp_path / "log").read_text()
    assert "this process kills itself, to be replaced: for 0 s it waited" in said
    assert "in test_a_process_that_ends_itself_was_killed_and_has_said_where_it_waited" in said


def test_the_first_thread_of_a_forked_process_as_that_of_a_rank():
    pid = os.fork()
    if pid == 0:
        made, (word, end) = Connections(stuck_s=0.3), os.pipe()
        made.cut_on(word)
        os.write(end, b"a word")
        namespace = {"__name__": OF_RANKS, "lock": threading.Lock()}
        exec(f"def operation():\n    lock.acquire(timeout={BOUND_S})\n", namespace)
        namespace["lock"].acquire()
        namespace["operation"]()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
