"""A host's folder of a run's checkpoints, as it is asked for over the host's connection."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from launcher.clusters.ssh.letters import Letters
from launcher.clusters.ssh.messages import CheckpointList, ListCheckpoints, SendFile, TakeFile
from trainer.checkpoint_files.partial import Held

T = TypeVar("T")


class HostDisk:
    """A host as a CheckpointHolder of clusters.mirror."""

    def __init__(self, letters: Letters, run_id: str, folder: str) -> None:
        self._letters = letters
        self._where = (run_id, letters.place.workdir, folder)

    def held(self) -> tuple[Held, ...]:
        answer = self._letters.expect(CheckpointList, self._letters.ask(ListCheckpoints(*self._where)))
        try:
            return msgspec.json.decode(answer.held, type=tuple[Held, ...])
        except msgspec.MsgspecError:
            raise self._letters.confused() from None

    def give(self, wanted: Held, name: str, take: Callable[[Iterator[bytes]], T]) -> T:
        wish = SendFile(*self._where, wanted.step, name, wanted.digest, kind=wanted.kind)
        with self._letters.stream(wish) as pieces:
            return take(pieces)

    def keep(self, wanted: Held, name: str, size: int, manifest: bytes, pieces: Iterable[bytes]) -> None:
        wish = TakeFile(*self._where, len(manifest), name, size, kind=wanted.kind)
        self._letters.ask(wish, itertools.chain([manifest], pieces))
