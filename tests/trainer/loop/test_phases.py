import torch

from trainer.loop.phases import HostPhases, phases_on


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
    assert list(phases.take().items()) == [("data", 18), ("forward", 4), ("backward", 8), ("optimizer", 1), ("odd", 32)]


def test_what_was_taken_is_gone_and_the_lap_under_way_is_not():
    clock = Clock()
    phases = HostPhases(clock)
    clock.now += 1
    phases.lap("data")
    clock.now += 2
    assert phases.take() == {"data": 1}
    clock.now += 3
    phases.lap("forward")
    assert phases.take() == {"forward": 5}
    assert phases.take() == {}


def test_a_processor_is_timed_by_the_clock():
    assert isinstance(phases_on(torch.device("cpu")), HostPhases)
