"""Save which layers begin the stages of a pipeline that was cut by measured time, so that restarts cut it alike.

The cut is in a file beside the checkpoints and in each checkpoint.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.durable import make_folder, read_small, sync_folder, write_new
from trainer.checkpoint_files.layout import STAGES, copy_name
from trainer.checkpoint_files.manifest import Manifest
from trainer.data import TrainData
from trainer.errors import CheckpointDamaged, TrainerError
from trainer.loop.losses import LossFunction
from trainer.loop.pipeline_loss import sample_of
from trainer.loop.placing import Placing
from trainer.loop.settings import Settings
from trainer.loop.sums import gathered
from trainer.strategies.pipeline_cutting import Cut, Sample, SavedCut
from trainer.world import World

NOTED = "pp_cut"  # with a checkpoint: the parts with which stages begin


class _File(msgspec.Struct, frozen=True):
    """The file beside the checkpoints with the cut of a model into the stages of its pipeline.

    `begins` has the name of the first layer of each stage but the first, and `seconds` each stage's measured time.
    `otherwise` is the part of all stages' time, from 0 to 1, that the slowest would take if each stage had about as
    many layers as the others (None: not measured).
    """

    begins: list[str]
    seconds: list[float]
    otherwise: float | None = None


_file = msgspec.json.Decoder(_File)


class KeptCuts:
    """Finds and saves how one training's model is cut into stages.

    A restart uses the cut in its newest checkpoint or, without a checkpoint, the one that was measured first, which is
    in a file beside the checkpoints.
    """

    def __init__(self, folder: Path, world: World, measure: Callable[[], Sample] | None) -> None:
        """Take `measure` to get a sample, or None if the model is only evaluated and its cut does not matter."""
        self._folder, self._world, self._measure = folder, world, measure

    def kept(self) -> list[SavedCut]:
        """Return the saved cuts, the same on all ranks: first those in checkpoints, newest first, then those in files.

        All ranks call it: each reads the newest checkpoint and the file on its own disk. A cut in a checkpoint has
        measured times only if a file has the same cut. Raises TrainerError if a file is damaged.
        """
        cuts_of_ranks = gathered((self._cut_of_checkpoint(), self._cut_in_file()), self._world)
        checkpoints = sorted((one for one, _ in cuts_of_ranks if one is not None), key=lambda one: -one[0])
        files = [one for _, one in cuts_of_ranks if one is not None]
        noted = [SavedCut(begins) for _, begins in checkpoints]
        with_times = {tuple(one.begins): one for one in files}
        return [with_times.get(tuple(one.begins), one) for one in noted] + files

    def sample(self) -> Sample | None:
        """Return a part of a batch to measure the stages with, or None if the model is only evaluated."""
        return None if self._measure is None else self._measure()

    def keep(self, cut: Cut) -> None:
        """Write the cut to its file beside the checkpoints, in place of an earlier cut; only rank 0 writes."""
        if not self._world.is_first:
            return
        make_folder(self._folder)
        draft = self._folder / copy_name(STAGES)
        write_new(draft, [msgspec.json.encode(_File(cut.begins, list(cut.seconds), cut.otherwise))])
        os.rename(draft, self._folder / STAGES)
        sync_folder(self._folder)

    def _cut_of_checkpoint(self) -> tuple[int, list[str]] | None:
        """Return (step, layers that begin stages) of the newest undamaged checkpoint.

        Returns None if there is none, or if it has no cut.
        """
        for entry in reversed(catalog.entries(self._folder)):
            manifest = _manifest(entry) if entry.kind == "step" else None
            if manifest is not None:
                cut = manifest.info.get(NOTED)
                return (entry.step, cut.split(",")) if isinstance(cut, str) else None
        return None

    def _cut_in_file(self) -> SavedCut | None:
        """Return the cut in the file, or None if there is no file. Raises TrainerError if it is damaged."""
        try:
            found = _file.decode(read_small(self._folder / STAGES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (CheckpointDamaged, msgspec.MsgspecError) as error:
            raise TrainerError(
                f"{self._folder / STAGES}: {error}\nhint: remove the file to measure the stages again"
            ) from error
        return SavedCut(found.begins, tuple(found.seconds), found.otherwise)


def _manifest(entry: catalog.Entry) -> Manifest | None:
    """Return the checkpoint's manifest, or None if it is damaged; the damage is reported when training loads it."""
    try:
        return catalog.read_manifest(entry, partial=True)
    except (CheckpointDamaged, OSError):
        return None


def first_sample(settings: Settings, world: World, loss: LossFunction, data: TrainData) -> Sample:
    """Return an input with which to measure stages: the first part of this rank's first micro-batch.

    The micro-batch is divided into parts as it would be to pass through the pipeline. `loss`, the user's function, is
    called here to find the tensor that it gives to the model, and later to compute the part's loss from the output. All
    ranks call this function. A batch is read from `data`, whose position is then restored. Raises TrainerError if the
    data is empty, or if `loss` or the batch does not suit a pipeline.
    """
    place = data.state_dict()
    batches = data.epoch_batches()
    batch = next(batches, None)
    batches.close()
    data.load_state_dict(place)
    if batch is None:
        raise TrainerError("data: an epoch without a single batch\nhint: is the data set empty?")
    return sample_of(loss, Placing(world.device)(batch.data), settings, world)
