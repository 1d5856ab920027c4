import logging

from trainings import idle_training

from trainer.loop.callbacks import Callback, Callbacks


class Counter(Callback):
    def __init__(self):
        self.steps = 0

    def on_step(self, training):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Order(Callback):
    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def on_start(self, training):
        self.calls.append(self.name)


def test_hooks_are_called_in_order_and_a_callback_needs_only_its_own():
    calls = []
    counter = Counter()
    all_of_them = Callbacks([Order("first", calls), counter, Callback(), Order("second", calls)])
    training = idle_training()
    all_of_them.on_start(training)
    all_of_them.on_step(training)
    all_of_them.on_step(training)
    all_of_them.on_log(training, {"step": 2})
    all_of_them.on_validation(training, {})
    all_of_them.on_epoch(training)
    all_of_them.on_end(training)
    assert calls == ["first", "second"]
    assert counter.steps == 2


def test_state_goes_back_to_the_callback_that_it_came_from():
    first, second = Counter(), Counter()
    first.steps, second.steps = 3, 8
    state = Callbacks([first, Callback(), second]).state_dict()
    assert state == {"Counter": {"steps": 3}, "Counter#2": {"steps": 8}}
    others = [Counter(), Counter()]
    Callbacks(others).load_state_dict(state)
    assert [one.steps for one in others] == [3, 8]


def test_state_of_a_callback_that_is_not_here_any_more_is_mentioned(caplog):
    with caplog.at_level(logging.WARNING, "trainer"):
        Callbacks([]).load_state_dict({"Counter": {"steps": 3}})
    assert "state of Counter, which is not here now" in caplog.text
