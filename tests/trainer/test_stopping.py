import itertools
import random
import signal
import threading

import pytest
import torch.distributed as dist
from ranks import Ranks, spawn_ranks

from tests.sizes import SEED
from trainer.stopping import StopRequest, Votes
from trainer.world import join


@pytest.fixture
def request_to_stop():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    request = StopRequest()
    yield request
    request.unlisten()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_sets_a_flag_and_does_nothing_else(request_to_stop, number):
    request_to_stop.listen()
    assert not request_to_stop.asked
    signal.raise_signal(number)
    assert request_to_stop.asked


def test_what_handled_the_signals_before_handles_them_again(request_to_stop):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    request_to_stop.listen()
    signal.raise_signal(signal.SIGTERM)
    request_to_stop.unlisten()
    assert heard == []
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_a_handler_that_came_later_stays(request_to_stop):
    request_to_stop.listen()
    signal.signal(signal.SIGTERM, later := lambda *_: None)
    request_to_stop.unlisten()
    assert signal.getsignal(signal.SIGTERM) is later


def test_two_that_end_in_the_order_in_which_they_began(request_to_stop):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    other = StopRequest()
    request_to_stop.listen()
    other.listen()
    request_to_stop.unlisten()
    other.unlisten()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM] and not request_to_stop.asked and not other.asked


def leave_by_default():
    first, second = StopRequest(), StopRequest()
    first.listen()
    second.listen()
    first.unlisten()
    second.unlisten()
    signal.raise_signal(signal.SIGTERM)
    return "still here"


def test_the_default_ends_the_process_again():
    assert Ranks(leave_by_default, 1).outcomes() == [("killed", -signal.SIGTERM)]


def test_beside_the_main_thread_asking_is_what_is_left(request_to_stop):
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=request_to_stop.listen)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    request_to_stop.ask()
    assert request_to_stop.asked


def test_a_world_of_one_votes_alone_and_always():
    votes = Votes(None)
    for step in range(5):
        assert votes.due(step) and votes.vote(step, [step == 3, False]) == [step == 3, False]


def vote_through(seconds, flags):
    """Return (step, flags that are set) of each vote of each rank, with a clock of its own."""
    world, clock, seen = join(), [0.0], []
    votes = Votes(world.control, lambda: clock[0])
    for step, duration in enumerate(seconds):
        clock[0] += duration * (1 + world.rank)  # only the first one's clock counts
        if votes.due(step):
            seen.append((step, votes.vote(step, [step >= at and rank == world.rank for rank, at in flags])))
    dist.barrier(world.control)
    return seen


def test_all_see_a_flag_of_one_at_the_same_step():
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    seconds = [draw.choice((0.0005, 0.01, 0.3)) for _ in range(300)]
    flags = [(0, 250), (1, draw.randrange(200)), (2, draw.randrange(200))]
    one, *others = spawn_ranks(vote_through, 3, seconds, flags)
    assert others == [one, one]
    for number, (_, at) in enumerate(flags):
        first = next(step for step, up in one if up[number])
        assert at <= first <= at + 32


def test_votes_come_about_ten_times_a_second():
    (seen, _) = spawn_ranks(vote_through, 2, [0.01] * 400, [(0, 1000)])
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen)]
    assert gaps[:4] == [1, 2, 4, 8]  # one quick step is no reason to look away for long
    assert set(gaps[4:]) <= {9, 10}


def test_slow_steps_are_all_voted_on_and_quick_ones_at_least_every_32nd():
    (slow, _) = spawn_ranks(vote_through, 2, [1.0] * 20, [(0, 99)])
    assert [step for step, _ in slow] == list(range(20))
    (quick, _) = spawn_ranks(vote_through, 2, [1e-6] * 200, [(0, 999)])
    assert max(later - earlier for (earlier, _), (later, _) in itertools.pairwise(quick)) == 32


def test_a_clock_that_goes_back_does_no_harm():
    (seen, other) = spawn_ranks(vote_through, 2, [0.01, 0.01, -5.0, 0.01, 0.01, 0.01], [(0, 99)])
    assert seen == other and len(seen) >= 3
