"""Worker processes: how they answer, how they fail, and how they end."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
from sample_sets import BlockedThread, Broken, Numbers, Pids, Slow, children, is_running
from torch.utils.data import get_worker_info

from tests.waits import until
from trainer.data import TrainData
from trainer.data.fetchers import in_turn
from trainer.data.pinning import in_thread
from trainer.data.workers import Workers
from trainer.errors import TrainerError

HERE = Path(__file__).parent


@pytest.fixture
def fetchers():
    """Makes workers for a function of a task; all are gone at the end."""
    made = []

    def make(work, size=2, dataset=None):
        made.append(Workers(lambda _: work, size, dataset))
        return made[-1]

    yield make
    for workers in made:
        workers.end()
    assert not multiprocessing.active_children()


@pytest.fixture
def program(tmp_path):
    """Runs lines as a rank of its own; what is left of it is killed."""
    started = []

    def run(text):
        file = tmp_path / "rank.py"
        file.write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\nfrom sample_sets import *\n{text}")
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(
                [sys.executable, file],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=HERE.parents[2],
                env=environ,
                start_new_session=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_answers_come_in_the_order_of_the_tasks(fetchers):
    def work(task):
        time.sleep(0.02 if task % 3 == 0 else 0)
        return task * 10, os.getpid()

    workers = fetchers(work, 3)
    found = list(in_turn(workers, range(20), 2))
    assert [(task, answer) for task, (answer, _) in found] == [(task, task * 10) for task in range(20)]
    assert len({pid for _, (_, pid) in found}) == 3


def test_what_nobody_took_is_not_mixed_up_with_what_comes_later(fetchers):
    workers = fetchers(lambda task: task)
    early = in_turn(workers, range(100), 3)
    assert next(early) == (0, 0)
    early.close()
    assert [answer for _, answer in in_turn(workers, "abcde", 3)] == list("abcde")


def test_a_thread_may_take_the_answers(fetchers):
    workers = fetchers(lambda task: task)
    assert list(in_thread(in_turn(workers, range(20), 2), lambda pair: pair[1], 2)) == list(range(20))


def test_a_thread_that_waits_for_a_worker_ends_with_it(fetchers, tmp_path):
    def fetch_for_ever(_task):
        (tmp_path / "fetching").touch()
        time.sleep(3600)

    workers = fetchers(fetch_for_ever)
    answers = in_thread(in_turn(workers, range(2), 1), str, 1)
    ender = threading.Timer(0, lambda: (until("it fetches", (tmp_path / "fetching").exists), workers.end()))
    ender.start()
    with pytest.raises(TrainerError, match="was killed by SIGKILL"):
        next(answers)
    ender.join()


def test_no_more_tasks_are_taken_than_asked_for(fetchers):
    taken = []

    def tasks():
        for task in range(100):
            taken.append(task)
            yield task

    answers = in_turn(fetchers(lambda task: task, 2), tasks(), 3)
    next(answers)
    assert len(taken) == 2 * 3 + 1


def test_big_tasks_and_big_answers_do_not_block_each_other(fetchers):
    big = list(range(200_000))
    for _, answer in in_turn(fetchers(lambda task: task, 2), [big] * 8, 3):
        assert answer == big


def test_tensors_come_through_small_and_big(fetchers):
    workers = fetchers(torch.arange)
    for size, answer in in_turn(workers, [3, 1_000_000, 0, 50], 2):
        assert torch.equal(answer, torch.arange(size))


def test_an_exception_comes_with_its_own_type_and_traceback(fetchers):
    def careful(task):
        raise FileNotFoundError(2, "no such image", f"{task}.png")

    with pytest.raises(FileNotFoundError, match="no such image") as caught:
        list(in_turn(fetchers(careful), [7], 1))
    assert caught.value.filename == "7.png"
    text = "".join(traceback.format_exception(caught.value))
    assert "in data worker 0" in text
    assert 'raise FileNotFoundError(2, "no such image", f"{task}.png")' in text
    assert text.strip().splitlines()[-1].startswith("FileNotFoundError: [Errno 2] no such image")


def test_an_exception_that_cannot_travel_comes_as_its_text(fetchers):
    class Odd(Exception):
        def __init__(self, one, other):
            super().__init__(f"{one} and {other}")

    def work(_task):
        raise Odd(1, 2)

    with pytest.raises(TrainerError, match="Odd: 1 and 2"):
        list(in_turn(fetchers(work), [7], 1))


def test_a_batch_that_cannot_travel_is_an_error(fetchers):
    with pytest.raises(Exception, match="pickle"):
        list(in_turn(fetchers(lambda _task: lambda: 1), [7], 1))


def test_a_data_sets_exception_is_seen_in_the_rank():
    data = TrainData(Broken(20, 9, ValueError("sample 9 is torn")), batch_size=4, shuffle=False, workers=2)
    with pytest.raises(ValueError, match="sample 9 is torn") as caught:
        list(data.epoch_batches())
    data.close()
    assert "sample_sets.py" in "".join(traceback.format_exception(caught.value))


def test_workers_know_who_they_are(fetchers):
    def who(_task):
        info = get_worker_info()
        return info.id, info.num_workers, info.dataset, torch.get_num_threads()

    answers = [answer for _, answer in in_turn(fetchers(who, 2, dataset="the set"), range(2), 1)]
    assert answers == [(0, 2, "the set", 1), (1, 2, "the set", 1)]
    assert get_worker_info() is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGXCPU])
def test_a_killed_worker_is_named_with_what_killed_it(fetchers, how):
    workers = fetchers(lambda task: os.kill(os.getpid(), how) if task == 5 else task)
    with pytest.raises(TrainerError, match=rf"data worker 1 \(pid \d+\) was killed by {how.name} at 5"):
        list(in_turn(workers, range(20), 2))
    assert not multiprocessing.active_children()


def test_a_worker_that_exits_is_named_too(fetchers):
    with pytest.raises(TrainerError, match=r"data worker 0 .* ended with exit code 9"):
        list(in_turn(fetchers(lambda _task: os._exit(9)), [1], 1))


def test_a_worker_killed_between_epochs_is_noticed():
    with contextlib.closing(TrainData(Numbers(16), batch_size=4, workers=2)) as data:
        list(data.epoch_batches())
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)  # a lab of other tests is our child too
        taken = []
        with pytest.raises(TrainerError, match="was killed by SIGKILL"):
            taken.extend(batch.samples for batch in data.epoch_batches())  # those before, of the other worker
        data.close()
        taken.extend(batch.samples for batch in data.epoch_batches())  # with new workers
        assert taken == [4] * 4


def test_workers_leave_the_ranks_signals_to_the_rank(fetchers):
    received = []
    old = signal.signal(signal.SIGTERM, lambda *_: received.append(1))
    try:
        workers = fetchers(lambda _task: os.getpid())
        pids = {answer for _, answer in in_turn(workers, range(4), 1)}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            for pid in pids:
                os.kill(pid, number)
        assert {answer for _, answer in in_turn(workers, range(4), 1)} == pids
        assert not received
    finally:
        signal.signal(signal.SIGTERM, old)


def test_a_program_of_a_worker_still_ends_by_a_signal(fetchers):
    def end_a_program(_task):
        with subprocess.Popen(["sleep", "60"]) as process:
            process.terminate()
            return process.wait(60)

    assert [answer for _, answer in in_turn(fetchers(end_a_program), [1], 1)] == [-signal.SIGTERM]


@pytest.fixture
def fork():
    """Runs a function as a rank: a process with a session of its own, that ends as programs do."""
    started = []

    def start(work, *args):
        def run():
            os.setsid()
            torch.set_num_threads(1)  # OpenMP's threads of the tests before do not survive the fork
            work(*args)

        started.append(multiprocessing.get_context("fork").Process(target=run))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def stop_on_request(pipe):
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    data = TrainData(Pids(40), batch_size=4, workers=2)
    list(data.epoch_batches())
    pipe.send(children())
    while not stop:
        time.sleep(0.01)
    pipe.send(sum(batch.samples for batch in data.epoch_batches()))
    data.close()
    pipe.send(children())


def test_a_signal_to_the_group_stops_the_rank_when_it_wants_and_not_its_workers(fork):
    ours, theirs = multiprocessing.Pipe()
    rank = fork(stop_on_request, theirs)
    workers = ours.recv()
    assert len(workers) == 2
    os.killpg(rank.pid, signal.SIGTERM)
    assert ours.recv() == 40
    assert ours.recv() == []
    rank.join(150)
    assert rank.exitcode == 0


def fetch_for_ever(folder):
    list(TrainData(Slow(40, folder), batch_size=4, workers=2).epoch_batches())


def fetch_without_a_break(folder):
    """Load batches in workers that only SIGKILL can end."""
    list(TrainData(BlockedThread(40, folder), batch_size=4, workers=2).epoch_batches())


def fetch_in_a_thread(folder):
    """The kernel must not end such a worker with its thread, so it has to notice by itself."""
    threading.Thread(target=fetch_for_ever, args=(folder,)).start()
    signal.pause()


def fetch_and_wait(folder):
    data = TrainData(Pids(40), batch_size=4, workers=2)
    list(data.epoch_batches())
    for pid in children():
        (folder / str(pid)).touch()
    signal.pause()


@pytest.mark.parametrize("work", [fetch_for_ever, fetch_without_a_break, fetch_in_a_thread, fetch_and_wait])
def test_workers_die_with_the_rank(fork, tmp_path, work):
    rank = fork(work, tmp_path)
    until("two workers", lambda: len(list(tmp_path.iterdir())) == 2)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert all(is_running(pid) for pid in workers)
    rank.kill()
    until("the workers are dead", lambda: not any(is_running(pid) for pid in workers))


@pytest.mark.parametrize("how", ["", "raise KeyError('x')"])
def test_a_rank_that_never_closes_ends_all_the_same(program, how):
    rank = program(
        f"""
from trainer.data import TrainData
data = TrainData(Numbers(400), batch_size=4, workers=2)
batches = data.epoch_batches()
next(batches)
print(*children(), flush=True)
{how}
"""
    )
    out, _ = rank.communicate(timeout=200)
    assert rank.returncode == (1 if how else 0), out
    pids = [int(pid) for pid in out.splitlines()[0].split()]
    until("its workers are gone", lambda: not any(map(is_running, pids)))


def test_close_ends_workers_in_the_middle_of_a_fetch(tmp_path):
    data = TrainData(Slow(40, tmp_path), batch_size=4, workers=2)
    ended = []

    def fetch():
        try:
            list(data.epoch_batches())
        except TrainerError as error:
            ended.append(str(error))

    thread = threading.Thread(target=fetch)
    thread.start()
    until("two workers fetch", lambda: len(list(tmp_path.iterdir())) == 2)
    began = time.monotonic()
    data._source.close()
    thread.join(150)
    assert time.monotonic() - began < 150
    assert ended and not multiprocessing.active_children()


def test_workers_started_by_a_thread_outlive_it(fetchers):
    """The kernel would end them with the thread that forked them, if they asked it to."""
    made = []
    thread = threading.Thread(target=lambda: made.append(fetchers(lambda task: task)))
    thread.start()
    thread.join()
    assert [answer for _, answer in in_turn(made[0], range(4), 1)] == [0, 1, 2, 3]


def test_workers_collect_garbage_whatever_the_rank_does(fetchers):
    gc.disable()
    try:
        workers = fetchers(lambda _: gc.isenabled(), 1)
    finally:
        gc.enable()
    workers.ask(0, "is it on?")
    assert workers.take(0)


def test_the_parents_mask_and_handlers_are_as_before(fetchers):
    before = (signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGTERM))
    fetchers(lambda task: task)
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGTERM)) == before


def lose_workers(folder):
    tempfile.tempdir = str(folder)
    data = TrainData([torch.zeros(100_000)] * 8, batch_size=4, workers=2)
    assert len(list(data.epoch_batches())) == 2
    assert list(folder.glob("pymp-*"))
    for pid in children():
        os.kill(pid, signal.SIGKILL)


def test_no_socket_folder_is_left_of_killed_workers(fork, tmp_path):
    multiprocessing.current_process()._config.pop("tempdir", None)  # of an earlier test; the rank makes its own
    rank = fork(lose_workers, tmp_path)
    rank.join(150)
    assert rank.exitcode == 0
    assert not list(tmp_path.glob("pymp-*"))
