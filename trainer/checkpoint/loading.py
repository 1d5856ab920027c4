"""Read a checkpoint and put it into the objects of the training, resharded if the world has changed.

Each byte is read once and compared on its way. If a file turns out to be damaged, the tensors have undefined values
until another checkpoint is read into them; everything else changes only after all ranks agree.
"""

import errno
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.contents import SHARED, Subjects, of_rank, optimizer_of_rank
from trainer.checkpoint.filling import Piece, Scratch, piece_of, places
from trainer.checkpoint.generators import restore_generators, seed_all
from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.optimizers import OptimizerNames, device_of_state, sharded_again
from trainer.checkpoint.planning import Need, needs
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint.tree import dtype_of, from_json, is_sharded, to_json
from trainer.checkpoint_files.durable import hash_file, read_into
from trainer.checkpoint_files.manifest import Manifest, TensorEntry, Value
from trainer.errors import CheckpointDamaged, TrainerError
from trainer.world import World

log = logging.getLogger("trainer")
_SHOWN = 5
_NEWS_TAKES_S = 3.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """Facts about the checkpoint from which the training continues.

    `world_size` is the number of ranks that saved it, `from_memory` whether it is a snapshot in memory, `info` the
    values in its manifest, `finite` whether its weights are, and `averages` the names of the averaged weights that it
    had.
    """

    step: int
    path: Path
    world_size: int  # of the ranks that saved it
    from_memory: bool
    info: Mapping[str, Value]
    finite: bool = True  # its weights
    averages: frozenset[str] = frozenset()  # those of parameters that were in it


@dataclass(slots=True)
class Targets:
    """The tensors to fill from a checkpoint: the models' own, and new ones for optimizers and other objects.

    Names are those in the checkpoint, except in `optimizers`. `by_name` has the tensors of the other four fields.
    """

    models: dict[str, Tensor] = field(default_factory=dict)  # parameters and buffers
    optimizers: dict[str, dict[str, dict[str, Tensor]]] = field(default_factory=dict)  # by optimizer, parameter, key
    averages: dict[str, Tensor] = field(default_factory=dict)  # of weights (EMA)
    kept: dict[str, Tensor] = field(default_factory=dict)  # in the state of other objects
    by_name: dict[str, Tensor] = field(default_factory=dict)  # all of these


class Reader:
    """Reads one checkpoint for one rank, into the objects `subjects` of the training.

    `prepare` finds what this rank needs, `read` fills the tensors, and then `apply` restores all other state; `compare`
    in place of `read` only checks the digests. State that belongs to a single rank is left out if there is no world
    (`world` None), or if another number of ranks saved it.
    """

    def __init__(self, path: Path, manifest: Manifest, subjects: Subjects, world: World | None) -> None:
        self.path, self.manifest = path, manifest
        self._subjects, self._world = subjects, world
        # With another number of ranks no rank has its own saved state.
        self._me = world if world is not None and manifest.world_size == world.size else None
        self._names = ModelNames(subjects.models)
        self._optimizers = {
            key: OptimizerNames(key, optimizer, self._names) for key, optimizer in subjects.optimizers.items()
        }
        self._targets = Targets()
        self._items: list[Need] = []
        self._documents: dict[str, memoryview] = {}
        self._scratch = Scratch()

    def prepare(self) -> None:
        """Find out which saved parts this rank needs. Raises TrainerError if the checkpoint is of another model."""
        targets = self._targets
        targets.models = self._names.parameters() | self._names.buffers()
        self._check_model()
        for key, optimizer in self._optimizers.items():
            targets.optimizers[key] = self._optimizer_targets(optimizer)
        targets.averages = {
            name: tensor
            for name, tensor in self._subjects.averages.items()
            if (entry := self.manifest.tensors.get(name)) and entry.shape == tuple(tensor.shape)
        }
        targets.kept = self._kept_targets()
        targets.by_name = {
            **targets.models,
            **targets.averages,
            **targets.kept,
            **{
                self._optimizers[key].prefix_of(name) + part: tensor
                for key, states in targets.optimizers.items()
                for name, state in states.items()
                for part, tensor in state.items()
            },
        }
        self._items = needs(targets.by_name, self.manifest.tensors)

    @property
    def averages(self) -> frozenset[str]:
        """The names of the averages of weights that are in the checkpoint and that this training keeps."""
        return frozenset(self._targets.averages)

    def read(self) -> None:
        """Read every file that this rank needs, compare its digest, and fill the tensors.

        Raises CheckpointDamaged or OSError, and then the tensors have undefined values.
        """
        pieces: dict[int, list[Piece]] = {}
        for item in self._items:
            piece = piece_of(self._targets.by_name[item.name], self.manifest.tensors[item.name], item)
            pieces.setdefault(item.chunk.file, []).append(piece)
        for name, tree in self.manifest.trees.items():
            if self._wants(name):
                self._documents[name] = memoryview(bytearray(tree.size))
                pieces.setdefault(tree.file, []).append(Piece(tree.at, tree.size, self._documents[name]))
        for number in sorted(pieces):
            file = self.manifest.files[number]
            read_into(self.path / file.name, file.size, file.digest, places(pieces[number], self._scratch))

    def compare(self) -> None:
        """Compare the files that `read` would read with their digests, and change nothing.

        Raises CheckpointDamaged if a file differs, and OSError if one cannot be opened.
        """
        trees = {tree.file for name, tree in self.manifest.trees.items() if self._wants(name)}
        for number in sorted(trees | {item.chunk.file for item in self._items}):
            file = self.manifest.files[number]
            hash_file(self.path / file.name, file.size, file.digest)

    def apply(self, save_group: SaveGroup | None = None) -> None:
        """Restore optimizers, other objects and random generators from the tensors and documents that `read` read.

        If the number of ranks has changed, the generators are seeded anew. With `save_group`, of which all ranks call
        it, the state that all ranks share is sent by its first rank; otherwise each rank has read that itself. Raises
        TrainerError if an optimizer is not the one that was saved.
        """
        if save_group is not None:
            self._take_shared_from_first(save_group)
        shared = self._document(SHARED)
        mine = self._document(of_rank(self._me.rank)) if self._me else None
        for key, optimizer in self._optimizers.items():
            if key in shared["groups"]:
                optimizer.check_groups(shared["groups"][key])
            else:
                log.warning("%s: nothing was saved for %s: it starts without saved state", self.path, optimizer.title)
        self._apply_optimizers(shared)
        for key, thing in self._subjects.shared.items():
            if key in shared["objects"]:
                thing.load_state_dict(shared["objects"][key])
            else:
                log.warning("%s: nothing was saved for %r: it starts without saved state", self.path, key)
        self._names.set_extra_state((mine or shared)["extra"])
        if mine is None or self._me is None:
            if self._world is not None:  # or the random numbers of the first steps would come again
                seed_all(torch.initial_seed(), self._world.rank, self.manifest.step)
            return
        for name, buffer in mine.get("buffers", {}).items():
            self._targets.models[name].copy_(buffer)
        for key, thing in self._subjects.per_rank.items():
            if key in mine["objects"]:
                thing.load_state_dict(mine["objects"][key])
        restore_generators(mine["generators"], *self._subjects.devices(self._me))

    def _check_model(self) -> None:
        """Raise TrainerError unless the checkpoint has exactly the model's tensors, with the same shapes."""
        saved = {name: entry for name, entry in self.manifest.tensors.items() if name.startswith("model/")}
        own = self._targets.models
        live = own | self._names.stand_ins()  # those may be missing in what a node keeps for its own ranks
        problems = [f"{name} is not in it" for name in own if name not in saved]
        problems += [f"{name} is not in the model" for name in saved if name not in live]
        problems += [
            f"{name} has shape {tuple(live[name].shape)}, saved was {entry.shape}"
            for name, entry in saved.items()
            if name in live and tuple(live[name].shape) != entry.shape
        ]
        if problems:
            more = f"\n... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise TrainerError(
                f"{self.path}: is of another model:\n"
                + "\n".join(problems[:_SHOWN])
                + more
                + "\nhint: give this model a checkpoint folder of its own"
            )

    def _kept_targets(self) -> dict[str, Tensor]:
        """Return empty tensors, by name in the manifest, to read the states beside those of parameters into.

        They are tensors within the states of shared objects, of this rank's objects and of optimizers, saved beside a
        JSON document with the rest of the state. One of a shared object is sharded like the object's present tensor if
        that has the same shape; all others are whole.
        """
        kept = [_SHARED_PREFIX, f"state/{_OPTIMIZER_DOCUMENTS}"] + (
            [f"state/{of_rank(self._me.rank)}/"] if self._me else []
        )
        wanted = {name: entry for name, entry in self.manifest.tensors.items() if name.startswith(tuple(kept))}
        live: dict[str, Tensor] = {}
        if any(is_sharded(tensor) for tensor in self._targets.models.values()):
            objects = {key: thing.state_dict() for key, thing in self._subjects.shared.items()}
            to_json({"objects": objects}, f"state/{SHARED}", live)
        return {
            name: torch.empty_like(live[name], dtype=dtype_of(entry.dtype))
            if name in live and is_sharded(live[name]) and tuple(live[name].shape) == entry.shape
            else torch.empty(entry.shape, dtype=dtype_of(entry.dtype))
            for name, entry in wanted.items()
        }

    def _take_shared_from_first(self, save_group: SaveGroup) -> None:
        """Replace the shared state that this rank has read by what rank 0 has read; all ranks of the group call this.

        Shared state is that of objects which have the same on all ranks. Snapshots need this: each node reads its own,
        with the shared state of that node's first rank.
        """
        kept = self._targets.kept
        mine = {
            name: tensor for name, tensor in kept.items() if not is_sharded(tensor) and name.startswith(_SHARED_PREFIX)
        }
        document, tensors = save_group.broadcast((bytes(self._documents[SHARED]), mine))
        self._documents[SHARED] = memoryview(document)
        kept |= tensors

    def _optimizer_targets(self, optimizer: OptimizerNames) -> dict[str, dict[str, Tensor]]:
        """Return empty tensors to read one optimizer's saved state into, by parameter and key (such as `exp_avg`)."""
        saved: dict[str, dict[str, TensorEntry]] = {}
        for full, entry in self.manifest.tensors.items():
            prefix, _, key = full.rpartition("/")
            saved.setdefault(prefix + "/", {})[key] = entry
        live = optimizer.tensors()
        return {
            name: {
                key: _target_like(
                    entry, parameter, device_of_state(key, group, parameter), live.get(optimizer.prefix_of(name) + key)
                )
                for key, entry in saved.get(optimizer.prefix_of(name), {}).items()
            }
            for name, parameter, group in optimizer.owned()
        }

    def _apply_optimizers(self, shared: Mapping[str, Any]) -> None:
        """Restore all optimizers from the tensors that were read and the checkpoint's JSON documents.

        `shared` is the document that is the same for all ranks, decoded; it has the options of the optimizers' groups.
        Raises TrainerError if an optimizer is not the one that was saved, and CheckpointDamaged if a document is
        missing.
        """
        spread = [
            self._document(name)
            for name in self.manifest.trees
            if name.startswith(_OPTIMIZER_DOCUMENTS) and self._optimizers
        ]
        for key, optimizer in self._optimizers.items():
            values: dict[str, dict[str, Any]] = dict(shared["values"].get(key, {}))
            for part in spread:
                values |= part.get(key, {})
            layouts = shared["layouts"].get(key, {})
            tensors = {
                name: {
                    part: sharded_again(tensor, parameter, layouts.get(name, {}).get(part))
                    for part, tensor in self._targets.optimizers[key][name].items()
                }
                for name, parameter, _ in optimizer.owned()
            }
            optimizer.replace(
                {
                    # In the order in which they were: torch's own code goes by keys, but a fingerprint may not.
                    name: {**tensors.get(name, {}), **values.get(name, {})}
                    for name in {**tensors, **values}
                    if tensors.get(name) or name in values
                }
            )
            if key in shared["groups"]:
                optimizer.set_groups(shared["groups"][key])

    def _wants(self, document: str) -> bool:
        """Return whether this rank needs the document of this name.

        It needs the shared one, those with optimizer state, and its own if the checkpoint was saved by as many ranks as
        there are now, but none of other ranks.
        """
        if document == SHARED or document.startswith(_OPTIMIZER_DOCUMENTS):
            return True
        return self._me is not None and document == of_rank(self._me.rank)

    def _document(self, name: str) -> dict[str, Any]:
        """Return the decoded JSON document of this name. Raises CheckpointDamaged if the checkpoint lacks it."""
        if name not in self._documents:
            raise CheckpointDamaged(f"{self.path}: has no {name}")
        value: dict[str, Any] = from_json(self._documents[name].tobytes(), lambda key: self._targets.kept[key])
        return value


_OPTIMIZER_DOCUMENTS = optimizer_of_rank(0).removesuffix("00000")
_SHARED_PREFIX = f"state/{SHARED}/"


def _target_like(entry: TensorEntry, parameter: Tensor, device: torch.device, live: Tensor | None) -> Tensor:
    """Return a tensor to read the optimizer's saved tensor `entry` into, sharded as `parameter` if both have one shape.

    A tensor of another shape is whole and on `device`. `live`, the optimizer's present tensor (None: there is none), is
    reused if neither is sharded and both have the same shape, type and strides: touching new memory costs several times
    as much as reading into old.
    """
    dtype = dtype_of(entry.dtype)
    if tuple(parameter.shape) == entry.shape and parameter.dim() > 0:
        new = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    else:
        new = torch.empty(entry.shape, dtype=dtype, device=device)
    same = live is not None and not is_sharded(live) and not is_sharded(new) and _layout(live) == _layout(new)
    return live if live is not None and same else new


def _layout(tensor: Tensor) -> tuple[object, ...]:
    """Return shape, type, device and strides of a tensor; if they are equal, its memory can be reused for another."""
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride()


def read_patiently(read: Callable[[], None]) -> tuple[str, bool]:
    """Call `read`; return (problem, damaged): the text of its error, or "", and whether the checkpoint is damaged.

    Only CheckpointDamaged and OSError are caught. A missing file is retried for three seconds, as over NFS a name
    appears late that another node has just made. If it is still missing, that counts as damage.
    """
    end = time.monotonic() + _NEWS_TAKES_S
    while True:
        try:
            read()
        except CheckpointDamaged as error:
            return str(error), True
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE) or time.monotonic() > end:
                return str(error), error.errno == errno.ENOENT
            time.sleep(0.2)  # there is no event when the file system's attribute cache expires
        else:
            return "", False
