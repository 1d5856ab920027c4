"""A model that no process could hold is made, trained, validated, saved, loaded and trained on by four of them; they
predict with it, too."""

import ctypes
import json
import resource
from functools import partial
from pathlib import Path

import pytest
import torch
from ranks import spawn_ranks
from torch import nn

from trainer.checkpoint.models import load_model
from trainer.loop.settings import Settings
from trainer.loop.trainer import Trainer
from trainer.tasks.predict import Prediction, predict
from trainer.world import join

pytestmark = pytest.mark.nightly

RANKS, WIDTH, BLOCKS = 4, 1024, 24
MODEL_BYTES = BLOCKS * WIDTH * (WIDTH + 1) * 4  # 101 MB
# Parameters, gradients and momentum; and parameters and momentum once more while they are saved.
TRAINING_BYTES = 5 * MODEL_BYTES
WHILE_MADE, WHILE_TRAINED = 2 * MODEL_BYTES // 3, TRAINING_BYTES // 3
_M_MMAP_THRESHOLD = -3
_ATTRIBUTES_BYTES = 64  # pthread_attr_t has 56


class Tall(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        for block in self.blocks:
            nn.init.normal_(block.weight, std=0.01)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class _Allowance:
    """A limit on how much more memory than now this process may take."""

    def __init__(self):
        libc = ctypes.CDLL(None)
        # Large blocks go back to the system when they are freed, and count no more.
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        # The stack of a thread counts in full, however little of it is used: 8 MB for each that waits for messages.
        attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
        assert libc.pthread_attr_init(attributes) == 0
        assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 20)) == 0
        assert libc.pthread_setattr_default_np(attributes) == 0
        # What the process that was forked had freed is there already: it is taken, so that it holds nothing.
        self._taken = [block for size in (MODEL_BYTES, 1 << 22, 1 << 20) for block in blocks_at_hand(size)]
        self._now = data_bytes()

    def set(self, more):
        resource.setrlimit(resource.RLIMIT_DATA, (self._now + more, resource.RLIM_INFINITY))


def blocks_at_hand(size):
    """Allocate all blocks of this size for which the system need not be asked."""
    while True:
        before = data_bytes()
        block = torch.empty(size, dtype=torch.uint8)
        if data_bytes() > before:
            return
        yield block


def data_bytes():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))


def _train(folder, steps):
    world = join(group=True, device="cpu", timeout_s=150)
    allowance = _Allowance()

    def optimizer(parameters):
        allowance.set(WHILE_TRAINED)
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=False)

    model, data = partial(_made, allowance), _data()
    trainer = Trainer(
        _settings(folder, steps), model=model, loss=_loss, data=data, validation=data[:RANKS], optimizer=optimizer
    )
    assert trainer.fit(world) == 0
    return trainer.fingerprint


def _predict(folder):
    join(group=True, device="cpu", timeout_s=150)
    prediction = Prediction(
        task="tall",
        model=partial(_made, _Allowance()),
        dataset=_data(),
        data="a few",
        answer=_answer,
        mean="mean",
        batch_size=1,
        settings=_settings(folder, 1),
    )
    return predict(prediction, folder / "predicted", str(folder / "checkpoints"))


def _made(allowance):
    allowance.set(WHILE_MADE)
    with pytest.raises(RuntimeError, match="allocate memory"):
        torch.empty(MODEL_BYTES, dtype=torch.uint8)
    return Tall()


def _settings(folder, steps):
    return Settings(
        max_steps=steps, strategy="fsdp", by_parts=True, batch_size=RANKS, validate_every=2,
        checkpoint_dir=folder / "checkpoints", out=folder / "metrics", device="cpu",
    )  # fmt: skip


def _data():
    return [torch.full((WIDTH,), 0.01 * number) for number in range(2 * RANKS)]


def _answer(model, batch):
    values = model(batch).mean(dim=1).tolist()
    return [{"mean": value} for value in values], values


def _loss(model, batch):
    return (model(batch) - 1).square().mean()


def test_a_model_that_no_process_could_hold_is_trained_and_asked(tmp_path):
    first = spawn_ranks(_train, RANKS, tmp_path, 2)
    then = spawn_ranks(_train, RANKS, tmp_path, 3)
    assert len({*first}) == len({*then}) == 1, "all ranks have saved the same"
    assert first[0] != then[0]
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} == {"step-00000002", "step-00000003"}
    assert spawn_ranks(_predict, RANKS, tmp_path) == [0] * RANKS
    model = Tall()
    assert load_model(model, tmp_path / "checkpoints") == 3
    with torch.no_grad():
        alone = [line for row in _data() for line in _answer(model, row[None])[0]]
    lines = [json.loads(line) for line in (tmp_path / "predicted").read_text().splitlines()]
    assert [line["mean"] for line in lines] == pytest.approx([line["mean"] for line in alone], abs=1e-6)
