"""Find which of the hosts that a run was ever on has which of its checkpoints."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from launcher.copies import news
from launcher.copies.mirror.fetch import checkpoint_folder
from launcher.copies.mirror.holders import Holders
from launcher.errors import LaunchError
from launcher.ids import RunId
from launcher.places.ssh.host_client import HostClient
from launcher.places.ssh.host_clients import ask_all
from launcher.places.ssh.messages import ListCheckpoints, SendFile, TakeFile
from launcher.places.ssh.run_hosts import gone, places_ever
from launcher.remote.parallel import answers, failures, for_all
from launcher.run.layout import RunDir
from trainer.checkpoint_files.partial import Held

T = TypeVar("T")

_LONGEST_MANIFEST = 64 << 20
_LONGEST = 1 << 62  # the manifest has the size of each file


class HostDisk:
    """The checkpoints in one folder of a run on one host, listed and copied over SSH; it implements `CheckpointHolder`
    of launcher/copies/mirror.
    """

    def __init__(self, client: HostClient, run_id: RunId, folder: str) -> None:
        self._client = client
        self._where = (run_id, client.place.workdir, folder)

    def held(self) -> tuple[Held, ...]:
        """Return what the host has of each checkpoint, be it whole or in part. Raise Unreachable if the host does not
        answer.
        """
        return self._client.ask(ListCheckpoints(*self._where), tuple[Held, ...])

    def give(self, wanted: Held, name: str, take: Callable[[Iterator[bytes]], T]) -> T:
        """Fetch file `name` ("" for the manifest) of the checkpoint `wanted` from the host: call `take` with an
        iterator that yields its bytes as they arrive, and return what `take` returns. Raise LaunchError if the host
        does not answer or cannot send the file.
        """
        request = SendFile(*self._where, wanted.step, name, wanted.digest, kind=wanted.kind)
        with self._client.stream(request, _LONGEST if name else _LONGEST_MANIFEST) as pieces:
            return take(pieces)

    def keep(self, wanted: Held, name: str, size: int, manifest: bytes, pieces: Iterable[bytes]) -> None:
        """Send file `name` of the checkpoint `wanted` to the host, which stores it: first the checkpoint's manifest, by
        which the host checks the file, then the file's `size` bytes, which `pieces` yields.
        """
        request = TakeFile(*self._where, len(manifest), name, size, kind=wanted.kind)
        self._client.ask(request, type(None), itertools.chain([manifest], pieces))


Disks = dict[str, tuple[HostDisk, tuple[Held, ...]]]  # by host: its disk, and what that has


def holders_of(run: RunDir, mine: Disks | None = None) -> Holders:
    """Ask the hosts that the run was ever on for its checkpoints, and return which host has which of them. Print the
    name of each host that could not be asked.

    `mine` has the answers of hosts that the caller has asked already and that are not asked again (None: no host).
    """
    folder, whole, mine = checkpoint_folder(run), run.whole, mine or {}
    there = str(run.path.relative_to(whole.path) / folder)

    def ask(client: HostClient) -> tuple[HostDisk, tuple[Held, ...]]:
        """Return the host's disk and its checkpoints."""
        disk = HostDisk(client, whole.id, there)
        return disk, disk.held()

    results = ask_all([place for name, place in places_ever(whole).items() if name not in mine], ask)
    silent = failures(results)
    for name, trouble in silent.items():
        news.say(f"{name}: may have a newer checkpoint, and could not be asked: {trouble.lines[0]}")
    disks = answers(results) | mine
    return Holders(
        run.path / folder,
        {name: disk for name, (disk, _) in disks.items()},
        {name: held for name, (_, held) in disks.items()},
        silent,
        gone=bool(gone(whole)),
    )


def disks_of(clients: Mapping[str, HostClient], run_id: RunId, folder: str) -> tuple[Disks, dict[str, LaunchError]]:
    """Ask all hosts at once for the run's checkpoints. Return ({host: (its disk, the checkpoints on it)}, the errors of
    hosts that failed, by host).

    `clients` has an open connection to each host, by its name. `folder` is that of checkpoints in the run's folder.
    """
    disks = {name: HostDisk(one, run_id, folder) for name, one in clients.items()}
    listed = for_all(disks, lambda _, disk: (disk, disk.held()))
    return answers(listed), failures(listed)
