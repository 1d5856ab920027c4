"""Save each rank's own state after each step in files in memory that outlive the process.

A rank writes its state after the last forward pass of a step: before its gradients are sent, and so before any rank can
have finished that step. It is the state after the step, as neither the backward pass nor the update draws random
numbers; that is verified.
"""

import ctypes
import os
import random
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

KEPT = 3  # steps, which is as far as ranks can be apart
_MT19937_BYTES = 4 * 624 + 4  # the words, and how many of them were used


class GeneratorStates(msgspec.Struct, frozen=True, array_like=True):
    """The states of a process's random generators: Python's, NumPy's, torch's, and that of its GPU.

    They have the forms of random.getstate(), numpy.random.get_state() (with its keys as bytes) and
    torch.get_rng_state() as bytes.
    """

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, bytes, int, int, float]
    torch: bytes
    gpu: bytes = b""  # torch's of the GPU, where there is one


class RankState(msgspec.Struct, frozen=True, array_like=True):
    """The state after a step that only this rank has: generators, buffers and losses.

    `names` and `losses` are set only in a step that is logged, and `others` and `resized` only if the training went on
    from this step with another number of ranks.
    """

    step: int
    drawn: GeneratorStates  # of the random generators, after the step
    names: tuple[str, ...] = ()  # of its losses, in a step that is logged
    losses: list[float] = []  # flat: for each micro-batch, for each of `names` in order, its sum and its count
    buffers: bytes = b""  # of the model; on rank 0, whose buffers all ranks use, or on every rank of a sharded model
    others: list[list[float]] = []  # the losses, each like `losses`, of ranks that took part in the step and are gone
    resized: bool = False  # the set of ranks changed during the step, so all seed their generators again after it


decoded = msgspec.msgpack.Decoder(RankState).decode
encoded = msgspec.msgpack.Encoder().encode
_decoded = msgspec.msgpack.Decoder(tuple[str, int, bytes]).decode


class NumpyDraws:
    """The state of NumPy's global generator, which is read again only if the generator's memory has changed.

    Reading the state takes longer than the rest of a step's bookkeeping, and hardly any step draws from it. Call
    `forget` whenever a state is restored: NumPy draws normal numbers in pairs and keeps the second one outside that
    memory, where its change is not noticed.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop the cached state, so that the next call of `state` reads it again."""
        self._memory, self._state = b"", ("", b"", 0, 0, 0.0)

    def state(self) -> tuple[str, bytes, int, int, float]:
        """Return the generator's state as numpy.random.get_state() does, but with the array of keys as bytes."""
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined] # the global one, that user code draws from
        memory = b""
        if isinstance(generator, np.random.MT19937):
            memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
        _, _, _, kept, _ = self._state  # a second normal number, whose draw leaves the memory as it is
        if not memory or memory != self._memory or kept:
            kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - as above
            self._state = (str(kind), np.asarray(keys, np.uint32).tobytes(), *rest)  # type: ignore[assignment] # its stub knows less
            self._memory = memory
        return self._state


numpy_draws = NumpyDraws()


def generator_states() -> GeneratorStates:
    """Return the current state of the random generators of Python, NumPy, torch and this rank's GPU."""
    return GeneratorStates(random.getstate(), numpy_draws.state(), *torch_state())


def torch_state() -> tuple[bytes, bytes]:
    """Return torch's generator states of the CPU and of this process's GPU (b"" without one).

    The GPU is not synchronised.
    """
    gpu = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else b""
    return torch.get_rng_state().numpy().tobytes(), gpu


def restore_generator_states(drawn: GeneratorStates) -> None:
    """Restore the random generators of Python, NumPy, torch and this rank's GPU to these states."""
    numpy_draws.forget()
    kind, keys, *rest = drawn.numpy
    random.setstate(drawn.python)
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # type: ignore[arg-type] # noqa: NPY002 - as above all
    torch.set_rng_state(torch.frombuffer(bytearray(drawn.torch), dtype=torch.uint8))
    if drawn.gpu:
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(drawn.gpu), dtype=torch.uint8))


class RankStateFile:
    """A rank's states after its last three steps, each in a file in memory (/dev/shm) beginning with `path`.

    The process that replaces the rank reads them. A file replaces that of an older step atomically, so that nothing
    half-written is left by a kill. `start` names the launch of the ranks that wrote them, by attempt and generation.
    """

    def __init__(self, path: Path, start: str, kept: dict[int, bytes]) -> None:
        self.path, self.start, self._kept = path, start, kept

    @classmethod
    def begin(cls, path: Path, start: str) -> "RankStateFile":
        """Delete the files of an earlier process that begin with `path`, and return a RankStateFile without states.

        `start` names this start of the ranks by attempt and generation, and is written with each state, so that states
        of different starts are not mixed. Raises OSError if a file cannot be deleted.
        """
        file = cls(path, start, {})
        file.remove()
        return file

    @classmethod
    def from_files(cls, path: Path) -> "RankStateFile | None":
        """Return the states that the replaced rank left in files at `path`.

        Returns None if there are none, or if they are of several launches of the ranks, so that it is unclear which
        count.
        """
        from_files = [one for slot in range(KEPT) if (one := _read(_file(path, slot))) is not None]
        lives = {start for start, _, _ in from_files}
        return cls(path, lives.pop(), {step: data for _, step, data in from_files}) if len(lives) == 1 else None

    def write(self, step: int, data: bytes) -> bool:
        """Write a step's state to a file, in place of that of three steps before; return False if that fails.

        It fails for lack of memory, for instance; the earlier files then stay.
        """
        target = _file(self.path, step % KEPT)
        draft = target.with_suffix(".new")
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb", buffering=0) as file:
                whole = encoded((self.start, step, data))
                if file.write(whole) != len(whole):
                    return False
            draft.rename(target)
        except OSError:
            return False
        self._kept[step] = data
        for old in sorted(self._kept)[:-KEPT]:
            del self._kept[old]
        return True

    def read(self, step: int) -> RankState | None:
        """Return the state after that step, or None if it was not saved."""
        data = self._kept.get(step)
        return None if data is None else decoded(data)

    def steps(self) -> tuple[int, ...]:
        """Return the steps whose states are in files."""
        return tuple(sorted(self._kept))

    def remove(self) -> None:
        """Remove the files. Raises OSError."""
        for slot in range(KEPT):
            _file(self.path, slot).unlink(missing_ok=True)


def _file(path: Path, slot: int) -> Path:
    """Return the path of one of the three files of a rank's states, whose paths begin with `path`.

    The state after step s is in the file with the `slot` s % 3.
    """
    return path.with_name(f"{path.name}.{slot}")


def _read(path: Path) -> tuple[str, int, bytes] | None:
    """Return (start, step, encoded state) from a rank state file; None if the file is missing or damaged.

    The start is the name of that start of all ranks in which the file was written.
    """
    try:
        return _decoded(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def bytes_of(tensors: list[Tensor]) -> bytes:
    """Return the bytes of all tensors, one after the other, each in row-major order; all must be on one device."""
    if not tensors:
        return b""
    flat = torch.cat([one.detach().contiguous().reshape(-1).view(torch.uint8) for one in tensors])
    return flat.cpu().numpy().tobytes()


@torch.no_grad()
def put_bytes(data: bytes, tensors: list[Tensor]) -> None:
    """Copy `data`, the bytes of tensors of the same shapes and types one after the other, into these tensors."""
    if not tensors:
        return
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for tensor, part in zip(tensors, flat.split([one.nbytes for one in tensors]), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
