"""Read each sample once over all ranks, in order, for validation and prediction."""

from collections.abc import Generator
from contextlib import closing
from typing import Any

from trainer.data.fetch import Collate
from trainer.data.fetchers import Fetching
from trainer.data.indexed import Indexed
from trainer.data.iterable import Reading, has_shards, is_iterable, shards_itself
from trainer.data.order import Batch, Sharing
from trainer.data.step_agreement import StepAgreement
from trainer.data.streamed import Streamed
from trainer.errors import BadSettings, TrainerError


class EvalData:
    """Batches of an evaluation; `batch_size` counts the samples of one batch over all ranks.

    Ranks may get different numbers of batches, unless `fillers`: then a rank without samples gets a batch whose
    `samples` is 0, for models whose forward pass all ranks do together.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        workers: int = 0,
        collate: Collate | None = None,
        pin_memory: bool = False,
        prefetch: int = 2,
        fillers: bool = False,
    ) -> None:
        sharing = Sharing(batch_size, 1, world_size, rank)
        fetching = Fetching(workers, prefetch, pin_memory)
        self._fillers = fillers
        self._turn = 0
        self._source: Indexed | Streamed
        if is_iterable(dataset):
            if fillers and (shards_itself(dataset) or has_shards(dataset)) and world_size > 1:
                raise BadSettings(
                    "data: fillers: a stream of which ranks read parts does not know what the other ranks have left"
                )
            reading = Reading(dataset, sharing, seed, collate)
            self._source = Streamed(reading, fetching, StepAgreement(sharing, int))
        else:
            self._source = Indexed(dataset, collate, sharing, fetching, seed=seed, fillers=fillers)

    def batches(self, start: int = 0) -> Generator[Batch, None, None]:
        """Yield all batches from sample `start` on; each such pass draws the same random numbers.

        Raises BadSettings if a stream is to start later than at its beginning. Raises TrainerError if another pass was
        begun before this one has ended.
        """
        if isinstance(self._source, Streamed):
            if start:
                raise BadSettings(f"data: expected to read a stream from its beginning, got start {start}")
            self._source.rewind()
        turn = self._turn = self._turn + 1
        with closing(self._source.batches(0, start)) as batches:
            for batch in batches:
                if batch.samples or self._fillers:
                    yield batch
                if turn != self._turn:
                    raise TrainerError("data: another pass has begun meanwhile\nhint: make an EvalData for each")

    def close(self) -> None:
        """End the worker processes; the next batches() would start new ones."""
        self._source.close()
