import math

import pytest
from trainings import idle_training

from trainer.errors import BadSettings
from trainer.loop.monitors import Best, BestModel, EarlyStopping


def validate(callback, training, *values, name="val_loss"):
    for value in values:
        callback.on_validation(training, {name: value})


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "better"),
    [
        ("min", 0.0, [3, 2, 2, 1], [True, True, False, True]),
        ("max", 0.0, [1, 2, 2, 3], [True, True, False, True]),
        ("min", 0.5, [3, 2.6, 2.4, 2.0, 1.8], [True, False, True, False, True]),
        ("min", 0.0, [math.nan, 5, math.nan, 4], [False, True, False, True]),
        ("min", 0.0, [math.inf, math.inf, 1, -math.inf, -math.inf], [True, False, True, True, False]),
    ],
)
def test_what_counts_as_better(mode, min_delta, values, better):
    best = Best(mode, min_delta)
    assert [best.take(float(value)) for value in values] == better


def test_early_stopping_ends_after_patience_bad_validations_in_a_row():
    training = idle_training(step=7)
    stopping = EarlyStopping(patience=2)
    validate(stopping, training, 3.0, 3.1, 2.9, 2.9)
    assert not training.progress.ending
    validate(stopping, training, 3.0)
    assert training.progress.ending == "early stopping: 2 validations without a better val_loss"


def test_early_stopping_goes_on_counting_where_it_was():
    before = EarlyStopping(patience=2)
    validate(before, idle_training(), 1.0, 2.0)
    after, training = EarlyStopping(patience=2), idle_training()
    after.load_state_dict(before.state_dict())
    validate(after, training, 1.5)
    assert training.progress.ending


def test_the_best_model_is_saved_when_it_is_better_and_only_then():
    saved = []
    best = BestModel(lambda step, values: saved.append((step, values)), monitor="val_accuracy", mode="max")
    for step, value in ((1, 0.2), (2, 0.1), (3, 0.5)):
        validate(best, idle_training(step), value, name="val_accuracy")
    again = BestModel(lambda step, values: saved.append((step, values)), monitor="val_accuracy", mode="max")
    again.load_state_dict(best.state_dict())
    validate(again, idle_training(4), 0.4, name="val_accuracy")
    assert saved == [(1, {"val_accuracy": 0.2}), (3, {"val_accuracy": 0.5})]
    assert again.state_dict() == {"best": 0.5, "step": 3}


def test_a_start_at_the_best_step_keeps_it_apart_once_more():
    saved = []
    best = BestModel(lambda step, values: saved.append((step, values)))
    best.on_start(idle_training(0))
    best.load_state_dict({"best": 0.5, "step": 3})
    best.on_start(idle_training(4))
    assert saved == []
    best.on_start(idle_training(3))
    assert saved == [(3, {"val_loss": 0.5})]


def test_a_value_that_no_validation_gives_is_refused_with_those_that_there_are():
    with pytest.raises(BadSettings, match="monitor: expected one of val_accuracy, got 'val_loss'"):
        validate(EarlyStopping(1), idle_training(), 1.0, name="val_accuracy")
