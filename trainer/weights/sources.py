"""Open any path as tensors by name; no file is trusted or executed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.choice import candidates, first_whole
from trainer.checkpoint_files.dcp_files import METADATA
from trainer.checkpoint_files.weights import Weights, averaged
from trainer.errors import TrainerError
from trainer.weights.dcp import open_dcp
from trainer.weights.files import Source, open_safetensors, open_torch, read_index

_FILES: Mapping[str, Callable[[Path], Source]] = {
    ".safetensors": open_safetensors, ".pt": open_torch, ".pth": open_torch, ".bin": open_torch, ".ckpt": open_torch,
}  # fmt: skip
_OF_HUGGING_FACE = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class Which:
    """The choice of a checkpoint in a folder, and of a model in it."""

    step: int | None = None
    best: bool = False
    part: str | None = None


@contextmanager
def opened(path: Path, which: Which, warn: Callable[[str], None]) -> Iterator[Source]:
    """Open the weights at `path`. Raises TrainerError if there are none, or they cannot be read."""
    with ExitStack() as stack:
        try:
            source = _open(path, which, warn, stack)
        except OSError as error:
            raise TrainerError(f"{path}: cannot be read: {error}") from error
        yield source


def _open(path: Path, which: Which, warn: Callable[[str], None], stack: ExitStack) -> Source:
    """Return the tensors at `path`, in whatever format. Raises TrainerError."""
    if path.is_file():
        if path.suffix not in _FILES:
            raise TrainerError(f"{path}: expected a file that ends with {', '.join(_FILES)}")
        return _FILES[path.suffix](path)
    if (path / METADATA).is_file():
        return open_dcp(path)
    for name in _OF_HUGGING_FACE:
        if (path / f"{name}.index.json").is_file():
            return _joined([_open(one, which, warn, stack) for one in read_index(path / f"{name}.index.json")])
        if (path / name).is_file():
            return _open(path / name, which, warn, stack)
    for folder in (path, path / "checkpoints"):
        if candidates(folder):
            return first_whole(
                folder, lambda entry: _open_checkpoint(entry, which, stack), warn, which.step, best=which.best
            )
    raise TrainerError(
        f"{path}: expected weights, found none\nhint: a file of safetensors or of torch.save, a folder of Hugging Face "
        "or of torch.distributed.checkpoint, or a folder of checkpoints"
    )


def _joined(parts: list[Source]) -> Source:
    """Return several sources as one."""
    homes = {name: part for part in parts for name in part.shapes}
    shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
    return Source(shapes, lambda name: homes[name].tensor(name))


def _open_checkpoint(entry: Entry, which: Which, stack: ExitStack) -> Source:
    """Return the weights of a checkpoint after comparing every byte."""
    weights = Weights(entry.path, averaged(catalog.read_manifest(entry)), which.part)
    with ExitStack() as held:
        held.enter_context(weights)
        weights.verify()
        stack.enter_context(held.pop_all())

    def tensor(name: str) -> Tensor:
        """Return one tensor of the checkpoint."""
        one = weights.tensors[weights.tied.get(name, name)]
        data = bytearray().join(weights.data(one.name))
        if not data:
            return torch.empty(one.shape, dtype=dtype_of(one.dtype))
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype_of(one.dtype)).reshape(one.shape)

    named = {**{name: name for name in weights.tensors}, **weights.tied}
    return Source({name: weights.tensors[kept].shape for name, kept in named.items()}, tensor)
