import pytest
import torch

from trainer.loop.phases import VALIDATION, DevicePhases, HostPhases, phases_on


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_each_lap_goes_to_its_phase_and_phases_are_told_in_the_order_of_a_step():
    clock = Clock()
    phases = HostPhases(clock)
    for seconds, phase in ((1, "optimizer"), (2, "data"), (4, "forward"), (8, "backward"), (16, "data"), (32, "odd")):
        clock.now += seconds
        phases.lap(phase)
    seconds, passed = phases.take()
    assert list(seconds.items()) == [("data", 18), ("forward", 4), ("backward", 8), ("optimizer", 1), ("odd", 32)]
    assert passed == 63


def test_what_was_taken_is_gone_and_the_lap_under_way_is_not():
    clock = Clock()
    phases = HostPhases(clock)
    clock.now += 1
    phases.lap("data")
    clock.now += 2
    assert phases.take() == ({"data": 1}, 3)
    clock.now += 3
    phases.lap("forward")
    assert phases.take() == ({"forward": 5}, 3)
    assert phases.take() == ({}, 0)


def test_a_validation_is_no_time_of_steps():
    clock = Clock()
    phases = HostPhases(clock)
    for seconds, phase in ((1, "data"), (8, VALIDATION), (2, "forward")):
        clock.now += seconds
        phases.lap(phase)
    assert phases.take() == ({"data": 1, "forward": 2}, 3)


def test_what_was_spent_before_ranks_met_anew_counts_and_the_time_between_does_not():
    clock = Clock()
    phases = HostPhases(clock)
    for seconds, phase in ((1, "data"), (8, VALIDATION), (2, "forward"), (4, "data")):
        clock.now += seconds
        phases.lap(phase)
    clock.now += 1
    spent = phases.so_far()
    assert phases.so_far() == spent == ({"data": 5, "forward": 2}, 8)
    clock.now += 100
    anew = HostPhases(clock)
    anew.go_on_from(spent)
    clock.now += 3
    anew.lap("data")
    assert anew.take() == ({"data": 8, "forward": 2}, 11)
    assert spent == ({"data": 5, "forward": 2}, 8), "it may be put back once more"


class Stream:
    """A GPU that is busy until `free`: an event is due when all before it is done."""

    def __init__(self, clock):
        self.clock, self.free = clock, clock.now

    def work(self, seconds):
        self.free = max(self.free, self.clock.now) + seconds


class Event:
    def __init__(self, enable_timing):
        self.due = 0.0

    def record(self, stream):
        self.stream, self.due = stream, max(stream.free, stream.clock.now)

    def synchronize(self):
        self.stream.clock.now = max(self.stream.clock.now, self.due)

    def elapsed_time(self, other):
        return 1000 * (other.due - self.due)


@pytest.fixture
def gpu(monkeypatch):
    """The host's clock, and the GPU's stream."""
    clock = Clock()
    stream = Stream(clock)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return clock, stream


def test_on_a_gpu_the_time_of_a_step_is_that_on_the_wall(gpu):
    """Data is fetched for 1 s while the GPU works for 2: two steps take 4 s and a bit, not 6."""
    clock, stream = gpu
    phases = DevicePhases(torch.device("cuda", 0), clock)
    for _ in range(2):
        clock.now += 1
        phases.lap("data")
        stream.work(2)
        phases.lap("forward")
    seconds, passed = phases.take()
    assert passed == 5, "the first batch, and then the GPU is never idle"
    assert seconds["data"] == 2
    assert seconds["forward"] == 4


def test_on_a_gpu_what_was_spent_before_counts_by_the_clock_of_its_host(gpu):
    clock, stream = gpu
    phases = DevicePhases(torch.device("cuda", 0), clock)
    stream.work(50)
    clock.now += 1
    phases.lap("forward")
    spent = phases.so_far()
    assert spent == ({"forward": 1}, 1), "nobody has waited for the GPU"
    clock.now += 100
    phases = DevicePhases(torch.device("cuda", 0), clock)
    phases.go_on_from(spent)
    assert phases.so_far() == spent, "ranks may meet anew once more"
    stream.work(2)
    phases.lap("forward")
    assert phases.take() == ({"forward": 3}, 3)
    assert phases.take() == ({}, 0), "once"


def test_a_processor_is_timed_by_the_clock():
    assert isinstance(phases_on(torch.device("cpu")), HostPhases)
