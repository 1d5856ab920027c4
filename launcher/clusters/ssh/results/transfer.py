"""Checkpoints between hosts and here: which files are where, what is fetched home, what a new set of hosts lacks."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.agent.depots.store import Store, digest_of
from launcher.agent.depots.words import Save
from launcher.clusters.keeping import news
from launcher.clusters.mirror.messages import CheckpointList, FileFollows, ListCheckpoints, SendFile, TakeFile
from launcher.clusters.ssh.letters import Letters
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.hostlink.parallel import reasons
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.layout import Kind, folder_name
from trainer.checkpoint_files.manifest import decode
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged

_PIECE = 1 << 20

Stocks = Mapping[str, Sequence[Held]]  # by host
T = TypeVar("T")


class NotBrought(LaunchError):
    """A file of a checkpoint that nobody who can be asked gives as it was written."""

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
            f"{save_of(wanted)}: nobody who can be reached has {what} as it was written", *reasons(troubles), hint
        )


class Hosts:
    """Where the files of a run's checkpoints are. A host that falls silent is not asked again, but blamed."""

    def __init__(self, stocks: Stocks, letters: Mapping[str, Letters], run_id: str, folder: str) -> None:
        self._stocks, self._letters = stocks, letters
        self._run_id, self._folder = run_id, folder
        self.failed: dict[str, LaunchError] = {}  # by host: it fell silent, or could not take what it was to get

    def bring_home(self, wanted: Held, home: Path, only: Sequence[str] | None = None) -> int:
        """Have all files of this checkpoint, or these alone, in the folder here; gives how many had to be fetched.

        Raises NotBrought; what has come by then stays.
        """
        mine = next((one for one in partial.inventory(home) if _same(one, wanted) and one.committed), None)
        missing = _names(wanted) if mine is None else mine.missing
        fetched = [name for name in missing if only is None or name in only]
        if not fetched:
            return 0
        manifest = self._manifest(wanted) if mine is None else partial.read_manifest(home, wanted.step, wanted.kind)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if Store(home).make_room(save_of(wanted)):
            news.say(f"another {save_of(wanted)} that was here is set aside")
        for name in fetched:
            self._bring_file(wanted, manifest, name, home)
        return len(fetched)

    def send(self, wanted: Held, home: Path, host: str, names: Sequence[str]) -> None:
        """Give a host these files of a checkpoint that is here. Raises NotBrought where one is damaged here."""
        manifest = partial.read_manifest(home, wanted.step, wanted.kind)
        sizes = {file.name: file.size for file in decode(manifest).files}
        to = self._letters[host]
        for name in names:
            news.say(f"{host}: takes {save_of(wanted)}, {name}")
            put = TakeFile(
                self._run_id, to.place.workdir, self._folder, len(manifest), name, sizes[name], kind=wanted.kind
            )
            try:
                to.ask(put, _contents(manifest, home, wanted, name))
            except LaunchError as error:
                if error.exit_code == Exit.DAMAGED:
                    raise NotBrought(wanted, name, {host: error}) from error
                self.failed[host] = error
                raise

    def _bring_file(self, wanted: Held, manifest: bytes, name: str, home: Path) -> None:
        def take(host: str, pieces: Iterator[bytes]) -> None:
            news.say(f"{host}: {save_of(wanted)}, {name}")
            partial.receive(home, manifest, name, pieces, wanted.kind)

        holders = [host for host, held in self._stocks.items() if name in _present(wanted, held)]
        self._first_that_gives(holders, wanted, name, take)

    def _manifest(self, wanted: Held) -> bytes:
        """Of a checkpoint that is committed on a host that can be asked."""

        def take(_host: str, pieces: Iterator[bytes]) -> bytes:
            manifest = b"".join(pieces)
            if digest_of(manifest) != wanted.digest:
                raise CheckpointDamaged("it is another one by now")
            return manifest

        keepers = [
            host for host, held in self._stocks.items() if any(_same(one, wanted) and one.committed for one in held)
        ]
        return self._first_that_gives(keepers, wanted, "", take)

    def _first_that_gives(
        self, hosts: Iterable[str], wanted: Held, name: str, take: Callable[[str, Iterator[bytes]], T]
    ) -> T:
        """What `take` makes of the bytes of the first of these hosts that has them as they were written."""
        what = name or "its manifest"
        troubles: dict[str, LaunchError] = {}
        for host in hosts:
            try:
                if host in self.failed:
                    raise self.failed[host]
                return self._given(self._letters[host], wanted, name, functools.partial(take, host))
            except CheckpointDamaged:
                troubles[host] = LaunchError(f"{host}: {what} of {save_of(wanted)} is damaged there")
                troubles[host].exit_code = Exit.DAMAGED
            except Unreachable as error:
                self.failed[host] = troubles[host] = error
            except LaunchError as error:  # it has gone meanwhile, or cannot be read
                troubles[host] = error
        raise NotBrought(wanted, what, troubles)

    def _given(self, letters: Letters, wanted: Held, name: str, take: Callable[[Iterator[bytes]], T]) -> T:
        """What `take` makes of the bytes as they come."""
        wish = SendFile(
            self._run_id, letters.place.workdir, self._folder, wanted.step, name, wanted.digest, kind=wanted.kind
        )
        answer, pieces_of = letters.ask_for_stream(wish)
        pieces = pieces_of(letters.expect(FileFollows, answer).size)
        try:
            return take(pieces)
        except (CheckpointDamaged, OSError):
            for _ in pieces:
                continue  # the rest, so that what follows is read as the next answer
            raise
        except Unreachable:
            letters.close()  # what comes after all would be taken for the next answer
            raise


def stock_of(letters: Letters, run_id: str, folder: str) -> tuple[Held, ...]:
    """What a host has of the run's checkpoints."""
    stock = letters.expect(CheckpointList, letters.ask(ListCheckpoints(run_id, letters.place.workdir, folder)))
    try:
        return msgspec.json.decode(stock.held, type=tuple[Held, ...])
    except msgspec.MsgspecError:
        raise letters.confused() from None


def newest_first(disks: Sequence[Sequence[Held]], step: int | None = None, kind: Kind = "step") -> list[Held]:
    """The checkpoints, or those of this step, whose files are all on some of these disks."""
    return [held for held in reversed(partial.whole_over(disks, kind)) if step is None or held.step == step]


def first_that_comes(
    found: Sequence[Held], bring: Callable[[Held], T], passed_over: Callable[[NotBrought], None]
) -> tuple[Held, T] | None:
    """The first of these checkpoints that can be brought, and what `bring` gave; None where there is none at all.

    Raises the first NotBrought where none of them can be.
    """
    troubles: list[NotBrought] = []
    for held in found:
        try:
            brought = bring(held)
        except NotBrought as error:
            troubles.append(error)
            continue
        for trouble in troubles:
            passed_over(trouble)
        return held, brought
    if troubles:
        raise troubles[0]
    return None


def lacking(wanted: Held, stocks: Stocks) -> list[str]:
    """Its files that none of these hosts has."""
    there = {name for held in stocks.values() for name in _present(wanted, held)}
    return [name for name in _names(wanted) if name not in there]


def save_of(held: Held) -> Save:
    return Save(held.kind, held.step, held.digest)


def _contents(manifest: bytes, home: Path, wanted: Held, name: str) -> Iterator[bytes]:
    yield manifest
    with partial.open_file(home, wanted.step, name, wanted.kind) as file:
        while piece := file.read(_PIECE):
            yield piece


def _present(wanted: Held, held: Iterable[Held]) -> set[str]:
    """Its files on one disk."""
    return {name for one in held if _same(one, wanted) for name in one.present}


def _names(held: Held) -> tuple[str, ...]:
    return (*held.present, *held.missing)


def _same(one: Held, other: Held) -> bool:
    return save_of(one) == save_of(other)
