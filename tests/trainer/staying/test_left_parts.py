"""What the last rank that has a part of a training leaves of it in memory: read whole, or not at all, bit for bit."""

import copy
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.checkpoint.contents import Subjects
from trainer.staying.left_parts import LeftPart, leave, left
from trainer.staying.packing import CannotKeep, Packed
from trainer.staying.parts import Part, Sharded, Source
from trainer.staying.replica import Snapshot

LIFE = "a0001.g0001"
LARGE = 300  # so that its weights are too large for a document


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, LARGE), nn.Linear(LARGE, LARGE), nn.Linear(LARGE, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def subjects_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Subjects:
    return Subjects({"": model}, {"": optimizer}, {}, {})


def trained(steps: int) -> tuple[Part, Any]:
    model, optimizer = made(1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 3), 1.0 + step)).sum().backward()
        optimizer.step()
    subjects, loop = subjects_of(model, optimizer), {"steps": steps, "norm": None, "losses": [0.1, float("nan")]}
    snapshot = Snapshot.of(steps, {}, subjects.optimizers, loop)
    return Source.of(subjects).part(snapshot), copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def bits(value: Any) -> Any:
    if isinstance(value, Sharded):
        return "sharded", bits(value.piece)
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return {key: bits(one) for key, one in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("steps", [0, 3])
def test_it_is_found_as_it_was_and_can_be_put_into_a_model_that_was_made_anew(tmp_path: Path, steps: int) -> None:
    part, wanted = trained(steps)
    leave(tmp_path / "part", LIFE, part)
    found = left(tmp_path / "part", LIFE)
    assert found is not None
    assert (found.step, repr(found.snapshot)) == (steps, repr(part.snapshot))
    model, optimizer = made(2)
    found.put_back(subjects_of(model, optimizer))
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), wanted, rtol=0, atol=0)


def test_what_is_sharded_is_told_apart_and_types_stay(tmp_path: Path) -> None:
    part, _ = trained(1)
    piece = torch.randn(7, 4000, dtype=torch.bfloat16)
    states = {"": {"model/w": {"exp_avg": Sharded(piece), "step": torch.tensor(3.0), "plain": 2.5, "none": None}}}
    part = replace(
        part, states=states, weights={"model/w": piece[:0], "model/one": torch.tensor(1.0, dtype=torch.float64)}
    )
    leave(tmp_path / "part", LIFE, part)
    found = left(tmp_path / "part", LIFE)
    assert found is not None
    assert bits(dict(found.states)) == bits(states)
    assert [*found.states[""]["model/w"]] == [*states[""]["model/w"]]
    assert bits(dict(found.weights)) == bits(dict(part.weights))


def test_a_later_step_takes_its_place_and_the_step_that_is_there_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path / "part", LIFE, trained(1)[0])
    leave(tmp_path / "part", LIFE, trained(2)[0])
    found = left(tmp_path / "part", LIFE)
    assert found is not None
    assert found.step == 2
    monkeypatch.setattr(Packed, "put", lambda *_: pytest.fail("written again"))
    leave(tmp_path / "part", LIFE, found)


def test_it_is_left_by_a_thread_once_and_dropped_when_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, begun, may_go_on = Packed.put, threading.Event(), threading.Event()

    def slow(packed: Packed, content: memoryview) -> None:
        begun.set()
        assert may_go_on.wait(60)
        put(packed, content)

    monkeypatch.setattr(Packed, "put", slow)
    own, part = LeftPart(tmp_path / "part"), trained(1)[0]
    own.leave(LIFE, part, None)
    assert begun.wait(60)
    own.leave(LIFE, part, None)  # another word, while it is being written
    assert own.found(LIFE) is None
    assert [thread.name for thread in threading.enumerate()].count("left part") == 1
    threading.Timer(0.2, may_go_on.set).start()
    own.drop()
    assert not [*tmp_path.iterdir()]
    assert may_go_on.is_set()


def test_what_cannot_be_left_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = LeftPart(tmp_path / "part")
    with caplog.at_level("DEBUG", "trainer"):
        own.leave(LIFE, trained(1)[0], 4000)
        own.drop()
    assert "what this rank alone has is not in memory: it takes 1 MB" in caplog.text


def test_what_was_changed_while_it_was_written_counts_for_nothing_and_the_next_step_is_written(tmp_path: Path) -> None:
    own = LeftPart(tmp_path / "part")
    own.leave(LIFE, trained(1)[0], None, lambda: False)
    own.leave(LIFE, trained(2)[0], None)  # waits for that one
    own.leave(LIFE, trained(2)[0], None, lambda: pytest.fail("tried again"))
    own._await_written()
    found = own.found(LIFE)
    assert found is not None
    assert found.step == 2
    own.leave(LIFE, trained(3)[0], None, lambda: False)
    own._await_written()
    assert own.found(LIFE) is None


def test_what_is_of_another_start_is_not_there(tmp_path: Path) -> None:
    leave(tmp_path / "part", LIFE, trained(1)[0])
    assert left(tmp_path / "part", "a0001.g0002") is None
    assert left(tmp_path / "none", LIFE) is None


def test_what_was_not_all_written_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, put = trained(1)[0], Packed.put

    def killed(packed: Packed, content: memoryview) -> None:
        put(packed, content)
        raise KeyboardInterrupt

    monkeypatch.setattr(Packed, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        leave(tmp_path / "part", LIFE, part)
    assert left(tmp_path / "part", LIFE) is None


def test_what_cannot_be_kept_or_takes_more_memory_than_there_is_is_told(tmp_path: Path) -> None:
    part = trained(1)[0]
    with pytest.raises(CannotKeep, match="it takes 1 MB of memory, allowed are 0 MB"):
        leave(tmp_path / "part", LIFE, part, 4000)
    assert not [*tmp_path.iterdir()]
    strange = replace(part, snapshot=replace(part.snapshot, objects={"callback": object()}))
    with pytest.raises(CannotKeep, match="object cannot be kept"):
        leave(tmp_path / "part", LIFE, strange)
    with pytest.raises(CannotKeep, match="there is no memory for it"):
        leave(tmp_path / "away" / "part", LIFE, part)
