"""List which machines have which files of a run's checkpoints, and copy files to this machine or to machines that lack
some. A Held is the entry of a disk's list about one checkpoint: its identity, and the names of its files that are there
and that are missing.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from launcher.copies import news
from launcher.copies.files import ReplicaFiles
from launcher.copies.protocol import Save
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.remote.parallel import reasons
from launcher.run.durable import make_dir
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.layout import Kind, folder_name
from trainer.checkpoint_files.manifest import decode
from trainer.checkpoint_files.partial import Held, digest_of
from trainer.errors import CheckpointDamaged

_PIECE = 1 << 20

T = TypeVar("T")


class CheckpointHolder(Protocol):
    """A machine that has files of the run's checkpoints; all methods raise Unreachable if it does not answer."""

    def held(self) -> Sequence[Held]:
        """Return which files of each checkpoint this machine has."""

    def give(self, wanted: Held, name: str, take: Callable[[Iterator[bytes]], T]) -> T:
        """Call `take` with the bytes of the file `name` of the checkpoint `wanted` as they arrive, and return its
        result; an empty name stands for the manifest.
        """

    def keep(self, wanted: Held, name: str, size: int, manifest: bytes, pieces: Iterable[bytes]) -> None:
        """Store the file `name` (`size` bytes, which `pieces` yields) of the checkpoint `wanted`, whose manifest is
        `manifest`, on that machine.

        Raise LaunchError if that fails, with the exit code Exit.DAMAGED if the file does not match the manifest.
        """


class NotTransferred(LaunchError):
    """Raised when no machine that answers has a file of a checkpoint undamaged."""

    def __init__(self, wanted: Held, what: str, troubles: Mapping[str, LaunchError]) -> None:
        silent = any(isinstance(one, Unreachable) for one in troubles.values())
        damaged = any(one.exit_code == Exit.DAMAGED for one in troubles.values())
        if damaged and not silent:
            self.exit_code = Exit.DAMAGED
            place = folder_name(wanted.step, wanted.kind)
            hint = f"hint: to do without it, remove {place} from the run's folder of checkpoints on its hosts"
        else:
            self.exit_code = Exit.UNREACHABLE
            hint = "hint: again, once all hosts that the run was on can be reached"
        super().__init__(
            f"{Save.of(wanted)}: no machine that answers has {what} as it was written", *reasons(troubles), hint
        )


class Holders:
    """The machines that have files of a run's checkpoints, and the folder for these files on this machine (`home`).

    A machine that does not answer is not asked again; errors name it. `silent` and `failed` have the errors by machine:
    of those that could not be asked what they have, and of those that failed later. `gone` is True if a machine with
    files is lost for good.
    """

    def __init__(
        self,
        home: Path,
        holders: Mapping[str, CheckpointHolder],
        held: Mapping[str, Sequence[Held]],
        silent: Mapping[str, LaunchError],
        *,
        gone: bool = False,
    ) -> None:
        self.home = home
        self.silent = silent  # by machine: it could not be asked what it has
        self.gone = gone  # a machine that had some is gone for good
        self.failed: dict[str, LaunchError] = {}  # by machine: it fell silent, or could not take what it was to get
        self._holders, self._held = holders, held

    def newest_first(self, step: int | None = None, kind: Kind = "step") -> list[Held]:
        """Return the checkpoints of this kind of which every file is on some machine, this one included, the newest
        first. With `step`, return only those of that step.
        """
        return newest_first([*self._held.values(), partial.inventory(self.home)], step, kind)

    def bring_home(self, wanted: Held, only: Sequence[str] | None = None) -> int:
        """Fetch the files of the checkpoint that this machine lacks; return how many were fetched. With `only`, leave
        out files that it does not name.

        Raise NotTransferred if one cannot be fetched; files that arrived before stay.
        """
        mine = next((one for one in partial.inventory(self.home) if _same(one, wanted) and one.committed), None)
        missing = _names(wanted) if mine is None else mine.missing
        fetched = [name for name in missing if only is None or name in only]
        if not fetched:
            return 0
        manifest = (
            self._manifest(wanted) if mine is None else partial.read_manifest(self.home, wanted.step, wanted.kind)
        )
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ReplicaFiles(self.home).make_room(Save.of(wanted)):
            news.say(f"another {Save.of(wanted)} that was here is set aside")
        for name in fetched:
            self._bring_file(wanted, manifest, name)
        return len(fetched)

    def send(self, wanted: Held, to: str, names: Sequence[str]) -> None:
        """Send the named files of a checkpoint from this machine's disk to the machine `to`. Raise NotTransferred if
        one is damaged here, and another LaunchError if that machine does not answer or accept it.
        """
        manifest = partial.read_manifest(self.home, wanted.step, wanted.kind)
        sizes = {file.name: file.size for file in decode(manifest).files}
        for name in names:
            news.say(f"{to}: takes {Save.of(wanted)}, {name}")
            try:
                self._holders[to].keep(wanted, name, sizes[name], manifest, _contents(self.home, wanted, name))
            except LaunchError as error:
                if error.exit_code == Exit.DAMAGED:
                    raise NotTransferred(wanted, name, {to: error}) from error
                self.failed[to] = error
                raise

    def _bring_file(self, wanted: Held, manifest: bytes, name: str) -> None:
        """Fetch the file `name` of the checkpoint `wanted` into `home`, from the first machine that has it undamaged
        by the checkpoint's `manifest`; raise NotTransferred if none has.
        """

        def take(host: str, pieces: Iterator[bytes]) -> None:
            """Write the file as its bytes arrive."""
            news.say(f"{host}: {Save.of(wanted)}, {name}")
            partial.receive(self.home, manifest, name, pieces, wanted.kind)

        having = [host for host, held in self._held.items() if name in _present(wanted, held)]
        self._first_that_gives(having, wanted, name, take)

    def _manifest(self, wanted: Held) -> bytes:
        """Return the manifest of a checkpoint from this disk or from a machine that has it committed; raise
        NotTransferred if none gives it undamaged.
        """

        def take(_host: str, pieces: Iterator[bytes]) -> bytes:
            """Return the manifest if it is that of the wanted checkpoint."""
            manifest = b"".join(pieces)
            if digest_of(manifest) != wanted.digest or decode(manifest).step != wanted.step:
                raise CheckpointDamaged("it is another one by now")
            return manifest

        having = [
            host for host, held in self._held.items() if any(_same(one, wanted) and one.committed for one in held)
        ]
        return self._first_that_gives(having, wanted, "", take)

    def _first_that_gives(
        self, hosts: Iterable[str], wanted: Held, name: str, take: Callable[[str, Iterator[bytes]], T]
    ) -> T:
        """Ask the hosts one after another for the file `name` ("": the manifest) of the checkpoint `wanted`, and return
        the result of `take` for the first that has it undamaged; raise NotTransferred if none has.

        `take` gets the host and an iterator of the file's bytes; it is called anew for the next host if the bytes turn
        out to be damaged or end early. A host that could not be reached before is not asked again.
        """
        what = name or "its manifest"
        troubles: dict[str, LaunchError] = {}
        for host in hosts:
            try:
                if host in self.failed:
                    raise self.failed[host]
                return self._holders[host].give(wanted, name, functools.partial(take, host))
            except CheckpointDamaged:
                troubles[host] = LaunchError(f"{host}: {what} of {Save.of(wanted)} is damaged there")
                troubles[host].exit_code = Exit.DAMAGED
            except Unreachable as error:
                self.failed[host] = troubles[host] = error
            except LaunchError as error:  # it has gone meanwhile, or cannot be read
                troubles[host] = error
        raise NotTransferred(wanted, what, troubles)


def newest_first(disks: Sequence[Sequence[Held]], step: int | None = None, kind: Kind = "step") -> list[Held]:
    """Return the checkpoints of this kind, or only that of `step`, of which every file is on one of the disks, the
    newest first.
    """
    return [held for held in reversed(partial.whole_over(disks, kind)) if step is None or held.step == step]


def first_that_comes(
    found: Sequence[Held], bring: Callable[[Held], T], passed_over: Callable[[NotTransferred], None]
) -> tuple[Held, T] | None:
    """Try to fetch the checkpoints in this order with `bring`; return (the first that can be fetched, the result of
    `bring`).

    Return None if `found` is empty. `passed_over` is called with the error of each that failed before another
    succeeded. Raise the first NotTransferred if none can be fetched.
    """
    troubles: list[NotTransferred] = []
    for held in found:
        try:
            brought = bring(held)
        except NotTransferred as error:
            troubles.append(error)
            continue
        for trouble in troubles:
            passed_over(trouble)
        return held, brought
    if troubles:
        raise troubles[0]
    return None


def lacking(wanted: Held, disks: Iterable[Sequence[Held]]) -> list[str]:
    """Return the names of the checkpoint's files that none of the disks has."""
    there = {name for held in disks for name in _present(wanted, held)}
    return [name for name in _names(wanted) if name not in there]


def keep_file(folder: Path, manifest: bytes, name: str, pieces: Iterable[bytes], kind: Kind) -> None:
    """Write the file `name` of a checkpoint of this kind into the folder of checkpoints, with the bytes that `pieces`
    yields; raise CheckpointDamaged if they do not match the manifest.

    Another checkpoint of the same step and kind that is there is renamed first, so that it is no longer loaded.
    """
    save = Save(kind, decode(manifest).step, digest_of(manifest))  # a damaged one leaves no folder behind
    make_dir(folder)
    ReplicaFiles(folder).make_room(save)
    partial.receive(folder, manifest, name, pieces, kind)


def _contents(home: Path, wanted: Held, name: str) -> Iterator[bytes]:
    """Yield, in pieces, the bytes of the file `name` of the checkpoint `wanted` in this machine's folder `home`.

    Raise CheckpointDamaged if that is no regular file, and OSError if it cannot be read.
    """
    with partial.open_file(home, wanted.step, name, wanted.kind) as file:
        while piece := file.read(_PIECE):
            yield piece


def _present(wanted: Held, held: Iterable[Held]) -> set[str]:
    """Return the names of the files of the checkpoint `wanted` that are on one disk; `held` is that disk's list of
    checkpoints.
    """
    return {name for one in held if _same(one, wanted) for name in one.present}


def _names(held: Held) -> tuple[str, ...]:
    """Return the names of all files of a checkpoint, whether the disk whose list the entry is from has them or not."""
    return (*held.present, *held.missing)


def _same(one: Held, other: Held) -> bool:
    """Return whether both entries are of the same checkpoint, by kind, step and digest of the manifest."""
    return Save.of(one) == Save.of(other)
