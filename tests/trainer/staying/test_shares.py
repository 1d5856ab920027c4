"""A rank's share of the optimizer in memory: read whole, or not at all, and put back bit for bit."""

import os
from dataclasses import replace

import pytest
import torch

from trainer.staying.packing import CannotKeep, Packed
from trainer.staying.shares import ShareFile, own_share

LIFE = "a0001.g0001"


class Shared:
    """What a ShareFile asks of an optimizer that is shared out."""

    def __init__(self, optimizer):
        self.optim = optimizer

    @property
    def stepped_here(self):
        return [one for group in self.optim.param_groups for one in group["params"]]


def shared(make=lambda parameters: torch.optim.AdamW(parameters, lr=0.1), seed=0):
    torch.manual_seed(seed)
    shapes = [(50, 30), (7,), (2, 4, 3, 3)]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    parameters[2].data = parameters[2].data.to(memory_format=torch.channels_last)
    return {"": Shared(make(parameters))}


def train(optimizers, *, without=()):
    for one in optimizers.values():
        for number, parameter in enumerate(one.stepped_here):
            parameter.grad = None if number in without else torch.randn(parameter.shape)
        one.optim.step()


def bits(value):
    if not torch.is_tensor(value):
        return value
    return value.dtype, value.stride(), value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def state(optimizers):
    """Weights, and what the optimizer keeps of each, in its order."""
    found = []
    for one in optimizers.values():
        for parameter in one.stepped_here:
            kept = one.optim.state.get(parameter)
            items = None if kept is None else [(key, bits(value)) for key, value in kept.items()]
            found.append((bits(parameter), items))
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),  # its state is None, by name
        lambda parameters: torch.optim.Adafactor(parameters, lr=0.1),
        lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
    ],
)
def test_a_successor_has_the_last_two_steps_bit_for_bit(tmp_path, make):
    optimizers, known = shared(make), {}
    file = ShareFile.begin(tmp_path / "rank", LIFE)
    file.write(0, optimizers)
    known[0] = state(optimizers)
    for step in (1, 2, 3):
        train(optimizers, without=[1] if step == 1 else [])  # what has had no gradient yet has no state
        file.write(step, optimizers)
        known[step] = state(optimizers)
        found = ShareFile.found(tmp_path / "rank")
        assert found.steps() == (step - 1, step)
        for one in (step - 1, step):
            fresh = shared(make, seed=5)
            assert found.put_back(one, fresh)
            assert state(fresh) == known[one]


def test_what_was_put_back_is_no_part_of_the_memory(tmp_path):
    optimizers = shared()
    train(optimizers)
    file = ShareFile.begin(tmp_path / "rank", LIFE)
    file.write(1, optimizers)
    fresh = shared(seed=5)
    file.put_back(1, fresh)
    before = state(optimizers)
    train(fresh)
    again = shared(seed=6)
    file.put_back(1, again)
    assert state(again) == before


def test_a_share_that_was_not_all_written_counts_for_nothing_and_the_one_before_does(tmp_path, monkeypatch):
    """Whichever of its tensors was the last to be written, all of them too, without the seal."""
    path, optimizers = tmp_path / "rank", shared()
    file = ShareFile.begin(path, LIFE)
    for step in (1, 2):
        train(optimizers)
        file.write(step, optimizers)
    known = state(optimizers)
    train(optimizers)
    tensors = len(own_share(optimizers).tensors)
    put = Packed.put
    for written in range(tensors + 1):

        def cut_short(share, content, written=written):
            put(replace(share, tensors=share.tensors[:written], places=share.places[:written]), content)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Packed, "put", cut_short)
            with pytest.raises(KeyboardInterrupt):
                file.write(3, optimizers)
        assert ShareFile.found(path).steps() == (2,)
    fresh = shared(seed=5)
    assert ShareFile.found(path).put_back(2, fresh)
    assert state(fresh) == known
    file.write(3, optimizers)
    assert ShareFile.found(path).steps() == (2, 3)


def test_what_is_forgotten_is_gone_and_what_is_older_is_not(tmp_path):
    optimizers = shared()
    file = ShareFile.begin(tmp_path / "rank", LIFE)
    for step in (4, 5):
        file.write(step, optimizers)
    file.forget_after(4)
    assert ShareFile.found(tmp_path / "rank").steps() == (4,)
    assert not file.put_back(5, optimizers)


def test_a_file_that_has_to_grow_keeps_what_it_has_and_is_never_half_there(tmp_path, monkeypatch):
    """The first update makes an optimizer's state. Who is killed before the larger file has its name leaves the old."""
    path, optimizers = tmp_path / "rank", shared()
    file = ShareFile.begin(path, LIFE)
    file.write(0, optimizers)
    train(optimizers)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            file.write(1, optimizers)
    assert ShareFile.found(path).steps() == (0,)
    file.write(1, optimizers)
    assert ShareFile.found(path).steps() == (0, 1)


def test_a_limit_and_a_strange_state_are_told(tmp_path):
    optimizers = shared()
    train(optimizers)
    with pytest.raises(CannotKeep, match="would take 0 MB of memory, allowed are 0 MB"):
        ShareFile.begin(tmp_path / "rank", LIFE, limit_bytes=100).write(1, optimizers)
    [parameter, *_] = optimizers[""].stepped_here
    optimizers[""].optim.state[parameter]["past"] = [1, 2]
    with pytest.raises(CannotKeep, match="keeps list as 'past': expected tensors, numbers or text"):
        ShareFile.begin(tmp_path / "rank", LIFE).write(1, optimizers)


def test_no_memory_is_told(tmp_path, monkeypatch):
    file = ShareFile.begin(tmp_path / "rank", LIFE)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CannotKeep, match="there is no memory for two copies of its optimizer: No space left"):
        file.write(1, shared())
    assert [path.name for path in tmp_path.iterdir()] == ["rank"]
