"""Garbage is collected at steps of the schedule, and everything is as it was afterwards."""

import gc

from trainings import idle_training

from trainer.loop.garbage_collection import Collecting


def test_garbage_is_collected_at_steps_of_the_schedule_alone():
    training, collecting = idle_training(), Collecting(2)
    collected = []
    gc.callbacks.append(lambda phase, info: collected.append((training.progress.step, info["generation"])))
    try:
        collecting.on_start(training)
        assert not gc.isenabled() and gc.get_freeze_count() > 0
        collected.clear()
        for step in range(1, 6):
            training.progress.step = step
            collecting.on_step(training)
    finally:
        collecting.on_end(training)
        gc.callbacks.pop()
    assert sorted(set(collected)) == [(2, 2), (4, 2)]
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_a_collector_that_was_off_stays_off():
    collecting = Collecting(1)
    gc.disable()
    try:
        collecting.on_start(idle_training())
        collecting.on_end(idle_training())
        assert not gc.isenabled()
    finally:
        gc.enable()
