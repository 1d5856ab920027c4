"""Agree over ranks on the number of samples in a step, if each rank reads its own part of the data."""

from collections.abc import Callable
from dataclasses import dataclass

from trainer.data.order import Sharing
from trainer.errors import TrainerError

_UNABLE = 1 << 40  # more than a step has samples, so that one sum carries both


@dataclass(frozen=True, slots=True)
class StepAgreement:
    """Lets ranks that read separate parts of the data agree how many samples a step has over all of them."""

    sharing: Sharing  # the number of samples of a full step, and how they are divided over the ranks
    total: Callable[[int], int]  # returns the sum of its argument over all ranks, which all call it
    only_whole: bool = False  # drop_last: a step with fewer samples than a full one ends the epoch

    def samples(self, own: int, *, able: bool, source: str) -> int:
        """Return the number of samples of the step over all ranks; all ranks call it.

        It is 0 if the epoch is over: if no rank has samples, or with `only_whole` if they are fewer than a full step's.

        `own` counts this rank's samples. `able` says whether this rank can make a batch: of new samples or, as a filler
        that does not count, of an earlier one. `source` names the rank's source of data in the error message. Raises
        TrainerError on all ranks if one is not able while others have samples.
        """
        unable, samples = divmod(self.total(own + (0 if able else _UNABLE)), _UNABLE)
        if self.only_whole and samples != self.sharing.batch_size:
            return 0
        if samples and unable:
            ranks = self.total(0 if able else self.sharing.rank)  # the number of that one, where it is one
            who = f"rank {ranks}" if unable == 1 else f"{unable} of {self.sharing.world_size} ranks"
            raise TrainerError(
                f"data: {who} got no sample from {source}, while other ranks have some\n"
                "hint: each rank computes in every step, and needs one batch at least: fewer ranks, or data in as many "
                "parts as there are ranks"
            )
        return samples
