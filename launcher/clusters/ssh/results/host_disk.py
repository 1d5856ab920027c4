"""A host's folder of a run's checkpoints, as it is asked for over the host's connection."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from launcher.clusters.ssh.host_client import HostClient
from launcher.clusters.ssh.messages import CheckpointList, ListCheckpoints, SendFile, TakeFile
from trainer.checkpoint_files.partial import Held

T = TypeVar("T")


class HostDisk:
    """A host as a CheckpointHolder of clusters.mirror."""

    def __init__(self, client: HostClient, run_id: str, folder: str) -> None:
        self._client = client
        self._where = (run_id, client.place.workdir, folder)

    def held(self) -> tuple[Held, ...]:
        answer = self._client.expect(CheckpointList, self._client.ask(ListCheckpoints(*self._where)))
        try:
            return msgspec.json.decode(answer.held, type=tuple[Held, ...])
        except msgspec.MsgspecError:
            raise self._client.confused() from None

    def give(self, wanted: Held, name: str, take: Callable[[Iterator[bytes]], T]) -> T:
        wish = SendFile(*self._where, wanted.step, name, wanted.digest, kind=wanted.kind)
        with self._client.stream(wish) as pieces:
            return take(pieces)

    def keep(self, wanted: Held, name: str, size: int, manifest: bytes, pieces: Iterable[bytes]) -> None:
        wish = TakeFile(*self._where, len(manifest), name, size, kind=wanted.kind)
        self._client.ask(wish, itertools.chain([manifest], pieces))
