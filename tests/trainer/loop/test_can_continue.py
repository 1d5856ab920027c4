"""Test what a training on GPUs needs to continue in place, and that gradients are checked before each update."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from trainer.connections import group_connections
from trainer.loop import can_continue
from trainer.loop.callbacks import Callback, Callbacks
from trainer.loop.can_continue import Pace, PlainState, reasons
from trainer.loop.settings import Settings
from trainer.loop.step_snapshots import StepSnapshots
from trainer.loop.survivor import Survivor
from trainer.strategies.settings import StrategySettings
from trainer.wire import Launched, Wire
from trainer.world import World


def why_not(monkeypatch, strategy, heeds="0", device="cuda", environ=(), *, loads=False, buffers=0, callbacks=()):
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    if heeds is not None:
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", heeds)
    world = World(0, 2, 0, 2, torch.device(device), backend="nccl" if device == "cuda" else "gloo")
    loop = SimpleNamespace(
        training=SimpleNamespace(world=world),
        strategy=SimpleNamespace(
            settings=StrategySettings(strategy=strategy),
            pipeline=None,
            module=torch.nn.Linear(2, 2),
            buffers=[torch.zeros(buffers, dtype=torch.uint8)],
        ),
        callbacks=Callbacks(callbacks),
        own_step=None,
    )
    launched = Launched.from_environment(dict(environ))
    return list(reasons(loop, Settings(max_steps=1), [1, 2], launched, met_once=True, loads=loads, made=True))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2"])
def test_what_goes_on_in_place_on_gpus(monkeypatch, strategy):
    assert why_not(monkeypatch, strategy) == []


@pytest.mark.parametrize("strategy", ["zero1", "hsdp"])
def test_what_does_not(monkeypatch, strategy):
    assert why_not(monkeypatch, strategy) == [
        f"strategy {strategy} on cuda: expected ddp, zero2 or fsdp, or CPUs",
    ]
    assert why_not(monkeypatch, strategy, device="cpu") == []


@pytest.mark.parametrize("heeds", [None, "1", "2", "3"])
def test_not_where_torch_itself_acts_on_the_end_of_another_rank(monkeypatch, heeds):
    """It would end this one, or let it go on with numbers that mean nothing."""
    assert why_not(monkeypatch, "ddp", heeds) == [
        f"TORCH_NCCL_ASYNC_ERROR_HANDLING={heeds or ''}: expected 0, or torch ends this process when another rank ends"
    ]
    assert why_not(monkeypatch, "ddp", heeds, device="cpu") == []


@pytest.mark.parametrize(("noted_s", "felt"), [(0.0, False), (0.009, False), (0.011, True), (0.9, True)])
def test_what_is_noted_is_felt_where_it_is_a_part_of_each_step(monkeypatch, noted_s, felt):
    """The first ones count for nothing, and it is asked once."""
    pace, now, spent, found = Pace(), 0.0, [0.0], []
    monkeypatch.setattr(can_continue.time, "thread_time", lambda: spent[0])
    for step in range(1, 101):
        now += 1.0
        with pace.measuring():
            spent[0] += noted_s if step > 5 else 1.0
        spent[0] += 1.0  # of the step itself
        found += [step] if pace.count_step(now) else []
    assert found == ([25] if felt else [])


UNASKED = {"LAUNCH_STAYS": "auto"}


@pytest.mark.parametrize(
    ("strategy", "device", "loads", "free"),
    [
        ("ddp", "cpu", False, True),
        ("hsdp", "cpu", False, True),
        ("hsdp", "cpu", True, False),  # it would go back to what was saved
        ("zero1", "cpu", True, False),
        ("fsdp", "cpu", True, False),
        ("zero2", "cpu", True, False),
        ("ddp", "cuda", False, False),  # it waits for the device in each step
    ],
)
def test_nobody_stays_unasked_where_that_costs_something_or_loses_steps(monkeypatch, strategy, device, loads, free):
    assert why_not(monkeypatch, strategy, device=device, loads=loads) == []
    unasked = why_not(monkeypatch, strategy, device=device, loads=loads, environ=UNASKED)
    assert unasked == ([] if free else ["recovery.mode is not hot"])


class Ends(Callback):
    def on_end(self, training):
        """Closes a file, say."""


@pytest.mark.parametrize(
    ("how", "free"),
    [
        ({"buffers": 1 << 20}, True),
        ({"buffers": 1 + (1 << 20)}, False),
        ({"callbacks": [Callback(), Callback()]}, True),
        ({"callbacks": [Callback(), Ends()]}, False),
    ],
)
def test_nobody_stays_unasked_with_large_buffers_or_with_a_callback_that_hears_of_ends(monkeypatch, how, free):
    assert why_not(monkeypatch, "ddp", device="cpu", **how) == []
    assert (why_not(monkeypatch, "ddp", device="cpu", environ=UNASKED, **how) == []) == free


class Loss:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1

    def other(self):
        self.calls += 1


@pytest.mark.parametrize("of", [lambda one: one, lambda one: one.other, lambda one: partial(partial(one.other))])
def test_so_is_one_of_a_loss_that_is_no_module(of):
    loss, plain = of(Loss()), PlainState()
    found = [(loss(), plain.changing(model=torch.nn.ReLU(), loss=loss))[1] for _ in range(4)]
    assert found == ["", "loss.calls", "loss.calls", ""]


@pytest.mark.parametrize("loss", [lambda: None, torch.nn.functional.mse_loss, len, Loss])
def test_a_function_is_not_looked_into(loss):
    plain = PlainState()
    assert not any(plain.changing(model=torch.nn.ReLU(), loss=loss) for _ in range(4))


class Counting(torch.nn.Linear):
    """`count` goes up in each of the steps that are named, `width` is known from the first one on."""

    def __init__(self, *steps):
        super().__init__(2, 2)
        self.step, self.count, self.width, self._steps = [0], 0, None, steps

    def forward(self, x):
        self.step[0] += 1
        self.count += self.step[0] in self._steps
        self.width = x.shape[-1]
        return super().forward(x)


@pytest.mark.parametrize(
    ("steps", "found"),
    [((), 0), ((1,), 0), ((1, 2, 3, 4), 2), ((3,), 3), ((4, 5), 0)],
    ids=["none", "once, as it begins", "each", "a later one", "later than anybody looks"],
)
@pytest.mark.parametrize("what", ["model", "loss"])
def test_a_number_that_a_module_counts_up_is_found_within_a_few_steps(steps, found, what):
    counting, plain = Counting(*steps), PlainState()
    modules = {"model": torch.nn.Sequential(torch.nn.ReLU(), counting), "loss": lambda: None}
    if what == "loss":
        modules = {"model": torch.nn.ReLU(), "loss": counting}
    seen = {}
    for step in range(1, 6):
        counting(torch.ones(1, 2))
        if name := plain.changing(**modules):
            seen.setdefault(name, step)
    assert seen == ({"loss.count" if what == "loss" else "model.1.count": found} if found else {})


def test_a_pass_is_left_at_the_word_until_the_training_is_over(monkeypatch):
    monkeypatch.setattr(Wire, "report", lambda *_, **__: None)
    member = SimpleNamespace(world=World(0, 2, 0, 2, torch.device("cpu")))
    launched = Launched.from_environment({})
    snapshots = StepSnapshots(launched, loads=False, has_replica=True, made=True, node_suffices=True)
    survivor, module = Survivor(Wire(None), member, arriving=False, snapshots=snapshots), torch.nn.Linear(2, 2)
    survivor._activate(SimpleNamespace(strategy=SimpleNamespace(module=module)))
    monkeypatch.setattr(group_connections, "given_up", True)
    module(torch.ones(2))
    counters.clear()  # of what other tests have compiled
    survivor.messages.leave_passes()
    with pytest.raises(dist.DistNetworkError):
        module(torch.ones(2))
    snapshots.updating = True
    module(torch.ones(2))
    survivor.close()
    snapshots.updating = False
    module(torch.ones(2))


def test_gradients_that_were_cut_off_make_no_update(monkeypatch):
    snapshots = SimpleNamespace(await_copies=lambda: None, updating=False)
    member = SimpleNamespace(world=World(0, 2, 0, 2, torch.device("cpu")))
    survivor = Survivor(None, member, arriving=False, snapshots=snapshots)
    monkeypatch.setattr(group_connections, "given_up", True)
    with pytest.raises(dist.DistNetworkError):
        survivor.updating()
    assert not snapshots.updating
    monkeypatch.setattr(group_connections, "given_up", False)
    survivor.updating()
    assert snapshots.updating
