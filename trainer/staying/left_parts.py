"""A rank's part of a training (hsdp) in the memory of its node, where no other rank that lives has it any more.

A new rank gets its part from one that has the shards with the same number. Till then that one may be killed too. So who
is the last one to have a part leaves a copy where its own successor finds it, while it meets the others again. Nothing
of it is done while nobody is killed.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trainer.checkpoint.tree import dtype_name, from_json, to_json
from trainer.errors import TrainerError
from trainer.staying.packing import CannotKeep, Packed, described_in, tensors_in
from trainer.staying.parts import Part, Sharded
from trainer.staying.replica import Snapshot
from trainer.staying.slots import SlotFile

if TYPE_CHECKING:
    from torch import Tensor


class _Described(msgspec.Struct, frozen=True, array_like=True):
    document: bytes
    tensors: list[tuple[str, str, tuple[int, ...]]]  # those beside it, in their order: name, type, shape


_decoder = msgspec.msgpack.Decoder(_Described)
log = logging.getLogger("trainer")


class LeftPart:
    """Where one rank leaves its own, or has found that of the one whose place it has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing: threading.Thread | None = None
        self._step = -1  # that was tried last

    def found(self, life: str) -> Part | None:
        return left(self._path, life)

    def leave(self, life: str, part: Part, limit_bytes: int | None, still: Callable[[], bool] = lambda: True) -> None:
        """Begin to, unless it was tried. `still`: the tensors of the part are those of its step, whatever their rank
        has done meanwhile.
        """
        if part.step == self._step:
            return
        self._await_written()
        self._step, words = part.step, (life, part, limit_bytes, still)
        self._writing = threading.Thread(target=self._leave, args=words, name="left part", daemon=True)
        self._writing.start()

    def _leave(self, *words: Any) -> None:
        try:
            leave(self._path, *words)
        except CannotKeep as error:
            log.debug("what this rank alone has is not in memory: %s", error)

    def drop(self) -> None:
        self._await_written()
        self._path.unlink(missing_ok=True)

    def _await_written(self) -> None:
        if self._writing is not None:
            self._writing.join()


def leave(
    path: Path, life: str, part: Part, limit_bytes: int | None = None, still: Callable[[], bool] = lambda: True
) -> None:
    """In the place of an older one. Raises CannotKeep."""
    there = SlotFile.found(path)
    if there is not None and there.life == life and part.step in there.steps():
        return
    try:
        packed = _packed(part)
    except TrainerError as error:
        raise CannotKeep(str(error)) from error
    if limit_bytes is not None and packed.size > limit_bytes:
        raise CannotKeep(f"it takes {packed.size >> 20} MB of memory, allowed are {limit_bytes >> 20} MB")

    def put(content: memoryview) -> None:
        packed.put(content)
        if not still():
            raise CannotKeep("its step was over before it was there")

    try:
        SlotFile.begin(path, life, 1, packed.size).write(part.step, packed.size, put)
    except OSError as error:
        raise CannotKeep(f"there is no memory for it: {error.strerror}") from error


def left(path: Path, life: str) -> Part | None:
    """What a rank has left there of this start of the training, where it lies; None where there is nothing whole."""
    file = SlotFile.found(path)
    if file is None or file.life != life:
        return None
    content = next((one for step in file.steps() if (one := file.read(step)) is not None), None)
    return None if content is None else _unpacked(content)


def _packed(part: Part) -> Packed:
    tensors: dict[str, Tensor] = {}
    snapshot = part.snapshot
    said = {
        "snapshot": [snapshot.step, dict(snapshot.objects), dict(snapshot.groups), dict(snapshot.loop)],
        "weights": dict(part.weights),
        "states": {
            optimizer: {name: [_told(key, value) for key, value in state.items()] for name, state in states.items()}
            for optimizer, states in part.states.items()
        },
    }
    document = to_json(said, "part", tensors)
    forms = [(name, dtype_name(one.dtype), tuple(one.shape)) for name, one in tensors.items()]
    return Packed.of(msgspec.msgpack.encode(_Described(document, forms)), [*tensors.values()])


def _unpacked(content: memoryview) -> Part:
    described = _decoder.decode(described_in(content))
    parts = tensors_in(content, [(dtype, shape) for _, dtype, shape in described.tensors])
    tensors = {name: part for (name, *_), part in zip(described.tensors, parts, strict=True)}
    said = from_json(described.document, tensors.__getitem__)
    states = {
        optimizer: {
            name: {key: Sharded(value) if sharded else value for key, sharded, value in state}
            for name, state in states.items()
        }
        for optimizer, states in said["states"].items()
    }
    return Part(Snapshot(*said["snapshot"]), said["weights"], states)


def _told(key: str, value: Any) -> list[Any]:
    """Of a parameter's state one piece: its name, and whether it is this rank's shard of it."""
    return [key, True, value.piece] if isinstance(value, Sharded) else [key, False, value]
