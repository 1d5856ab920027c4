"""Match the tensors of a file to those of a model, and copy them one whole tensor at a time."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.checkpoint.names import ModelNames, clean
from trainer.checkpoint.stand_ins import has_values
from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.choice import candidates, first_whole
from trainer.checkpoint_files.dcp_files import METADATA
from trainer.checkpoint_files.object_store import fetched_run, is_url
from trainer.checkpoint_files.weights import Weights, averaged
from trainer.errors import BadSettings, TrainerError
from trainer.weights.dcp import open_dcp
from trainer.weights.files import Source, open_safetensors, open_torch, read_index

log = logging.getLogger("trainer")
_PREFIXES = ("module.", "model.", "model.module.", "state_dict.", "model_state_dict.")
_OF_MODEL, _SHOWN = "model/", 5
_FILES: Mapping[str, Callable[[Path], Source]] = {
    ".safetensors": open_safetensors, ".pt": open_torch, ".pth": open_torch, ".bin": open_torch, ".ckpt": open_torch,
}  # fmt: skip
_OF_HUGGING_FACE = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The choice of a checkpoint in a folder, and of a model in it.

    It is the newest one if `step` is None and `best` False, else that of `step` or the best one. `part` is the model's
    name, if the checkpoint has several models.
    """

    step: int | None = None  # None: the newest checkpoint
    best: bool = False
    part: str | None = None  # the name of the model, if there are several


@contextmanager
def opened(path: Path, which: CheckpointChoice, warn: Callable[[str], None]) -> Iterator[Source]:
    """Open the weights at `path` in this context, which gets their Source.

    `which` chooses a checkpoint, if `path` holds several; `warn` gets a message for each one that is skipped. Raises
    TrainerError if there are no weights, or they cannot be read.
    """
    with ExitStack() as stack:
        try:
            source = _open(path, which, warn, stack)
        except OSError as error:
            raise TrainerError(f"{path}: cannot be read: {error}") from error
        yield source


def _open(path: Path, which: CheckpointChoice, warn: Callable[[str], None], stack: ExitStack) -> Source:
    """Return the tensors at `path`, in any known format. Raises TrainerError if there are none.

    `which` chooses a checkpoint; `warn` gets a message for each one that is skipped. Files stay open until `stack` is
    closed.
    """
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
    """Return one Source with the tensors of several, the files of one model; of equal names the last counts."""
    homes = {name: part for part in parts for name in part.shapes}
    shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
    return Source(shapes, lambda name: homes[name].tensor(name))


def _open_checkpoint(entry: Entry, which: CheckpointChoice, stack: ExitStack) -> Source:
    """Return the weights of the model `which.part` (None: the only one) in a checkpoint, after comparing every byte.

    The checkpoint's files stay open until `stack` is closed. Raises CheckpointDamaged if a byte is not what was
    written.
    """
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


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of loading weights: names of the tensors that were loaded, that were not, and that were unused.

    `taken` are the model's loaded tensors. `left` gives for each tensor of the model that stays unchanged the reason
    why. `unused` are tensors of the file that were not used.
    """

    taken: tuple[str, ...]
    left: Mapping[str, str]  # the tensors of the model that stay as they are, and why
    unused: tuple[str, ...]  # the tensors of the file that were not used

    def __str__(self) -> str:
        parts = [f"{len(self.taken)} of {len(self.taken) + len(self.left)} tensors loaded"]
        if self.left:
            parts.append("unchanged: " + _first_few([f"{name} ({why})" for name, why in self.left.items()]))
        if self.unused:
            parts.append(f"not used: {_first_few(self.unused)}")
        return "; ".join(parts)


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    rename: Mapping[str, str] | None = None,
    leave: Sequence[str] = (),
    strict: bool = True,
    step: int | None = None,
    best: bool = False,
    part: str | None = None,
) -> Taken:
    """Load weights into a model, wrapped and sharded or not; all ranks call it, and each takes its part.

    `path` is a safetensors or torch.save file, a folder of Hugging Face, DCP, or checkpoints, or a run's address in an
    object store, such as s3://bucket/RUN; among checkpoints, `step`, `best` (not in an object store) and `part` (of
    several models) choose one. `rename` maps regular expressions of names in the file to their replacements. `leave`
    lists regular expressions of names in the model that stay as they are, such as a new head's. With `strict`,
    TrainerError is raised before anything changes if some other tensor of the model stays as it is, or one of the file
    is not used; without, if no tensor fits. Returns the names of the tensors that were loaded, left and not used.
    """
    names = ModelNames({"": model})
    tensors = names.parameters() | names.stand_ins() | names.buffers()  # so that all ranks find the same problems
    targets = {name.removeprefix(_OF_MODEL): tensor for name, tensor in tensors.items()}
    aliases = {other.removeprefix(_OF_MODEL): kept.removeprefix(_OF_MODEL) for other, kept in names.tied().items()}
    with ExitStack() as stack:
        place = Path(path)
        if is_url(str(path)):
            if best:
                raise TrainerError(
                    f"{path}: `checkpoint.copy_to` does not copy the best checkpoints\nhint: name its step"
                )
            place = stack.enter_context(fetched_run(str(path), step, log.warning))
        source = stack.enter_context(opened(place, CheckpointChoice(step, best, part), log.warning))
        homes = _sources_by_name(source.shapes, {*targets, *aliases}, rename or {})
        for alias, kept in aliases.items():
            homes.setdefault(kept, homes.pop(alias, ""))
        homes = {name: there for name, there in homes.items() if there}
        result = _match(targets, homes, source.shapes, leave)
        problems = [f"{name}: {why}" for name, why in result.left.items() if why != _TO_BE_LEFT]
        problems += [f"{name} is not in the model" for name in result.unused]
        if (strict and problems) or not result.taken:
            raise TrainerError(
                f"{path}: does not fit the model:\n{_first_few(problems, chr(10))}\n"
                "hint: `rename` maps other names, `leave` lists new tensors, and strict=False loads those that fit"
            )
        with torch.no_grad():
            for name in result.taken:
                if has_values(targets[name]):
                    _put(targets[name], source.tensor(homes[name]))
    return result


_TO_BE_LEFT = "to be left"


def _sources_by_name(there: Iterable[str], known: set[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Return {the name that the model would have for a tensor: its name in the file}, for the tensors of a file.

    `rename` maps regular expressions to replacements, and is applied to the names in the file (`there`) first. If no
    name is then one of the model's (`known`), a wrapper's prefix such as `module.` is removed with which some would be,
    and the names that do not begin with it are left out. Raises BadSettings if two names become one, or if a regular
    expression is invalid.
    """
    found: dict[str, str] = {}
    for name in there:
        now = clean(name)
        for pattern, replacement in rename.items():
            now = _expression(pattern).sub(replacement, now)
        if now in found:
            raise BadSettings(f"rename: {found[now]} and {name} both become {now}")
        found[now] = name
    if known & found.keys():
        return found
    for prefix in _PREFIXES:
        shorter = {name.removeprefix(prefix): source for name, source in found.items() if name.startswith(prefix)}
        if known & shorter.keys():
            return shorter  # what has another one is no part of the model
    return found


def _match(
    targets: Mapping[str, Tensor],
    sources: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    leave: Sequence[str],
) -> Taken:
    """Return which of the model's tensors (`targets`, by name) can be loaded, without copying any.

    Those that match one of the regular expressions `leave`, are not in the file, or have another shape in it stay as
    they are, each with the reason in the result's `left`. `sources` gives, by a tensor's name in the model, its name in
    the file, and `shapes` the shapes by name in the file. Raises BadSettings for an invalid regular expression.
    """
    taken, left = [], {}
    for name, tensor in targets.items():
        if any(_expression(pattern).fullmatch(name) for pattern in leave):
            left[name] = _TO_BE_LEFT
        elif name not in sources:
            left[name] = "is not in the file"
        elif shapes[sources[name]] != tuple(tensor.shape):
            left[name] = f"has shape {tuple(tensor.shape)}, in the file it is {shapes[sources[name]]}"
        else:
            taken.append(name)
    return Taken(tuple(taken), left, tuple(sources[name] for name in sources if name not in targets))


def _put(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into the model's tensor, or this rank's part of it if that is sharded."""
    if not isinstance(target, DTensor):
        target.copy_(whole)
        return
    # No message: every rank has read it, and takes its own part.
    spread = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    target.to_local().copy_(spread.to_local())


def _expression(pattern: str) -> re.Pattern[str]:
    """Return the compiled regular expression. Raises BadSettings if it is invalid."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise BadSettings(f"expected a regular expression, got {pattern!r}: {error}") from error


def _first_few(words: Sequence[str], between: str = ", ") -> str:
    """Return the first five texts joined by `between`; if there are more, followed by how many."""
    more = f"{between}... and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return between.join(words[:_SHOWN]) + more
