"""Checkpoints between hosts and here: which files are where, what is fetched home, what a new set of hosts lacks."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from launcher.clusters import news
from launcher.clusters.ssh.letters import Letters
from launcher.clusters.ssh.wire import Give, Given, Inventory, Put, Stock
from launcher.errors import Refused
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.manifest import decode
from trainer.checkpoint_files.partial import Held

_PIECE = 1 << 20

Stocks = Mapping[str, Sequence[Held]]  # by host


def stock_of(letters: Letters, run_id: str, folder: str) -> tuple[Held, ...]:
    """What a host has of the run's checkpoints."""
    stock = letters.expect(Stock, letters.ask(Inventory(run_id, letters.place.workdir, folder)))
    try:
        return msgspec.json.decode(stock.held, type=tuple[Held, ...])
    except msgspec.MsgspecError:
        raise letters.confused() from None


def newest_whole(disks: Sequence[Sequence[Held]], step: int | None = None) -> Held | None:
    """The newest checkpoint, or that of this step, whose files are all on some of these disks."""
    found = [held for held in partial.whole_over(disks) if step is None or held.step == step]
    return found[-1] if found else None


def bring_home(
    wanted: Held,
    stocks: Stocks,
    letters: Mapping[str, Letters],
    run_id: str,
    folder: str,
    home: Path,
    only: Sequence[str] | None = None,
) -> int:
    """Have all files of this checkpoint, or these alone, in the folder here; gives how many had to be fetched."""
    mine = next((one for one in partial.inventory(home) if _same(one, wanted) and one.committed), None)
    missing = _names(wanted) if mine is None else mine.missing
    fetched = [name for name in missing if only is None or name in only]
    if not fetched:
        return 0
    holders = {
        name: host for host, held in stocks.items() for one in held if _same(one, wanted) for name in one.present
    }
    if mine is not None:
        manifest = partial.read_manifest(home, wanted.step)
    else:
        manifest = _manifest_there(wanted, stocks, letters, run_id, folder)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in fetched:
        if name not in holders:
            raise _nobody_has(wanted, name)
        source = letters[holders[name]]
        news.say(f"{source.place.host.name}: step {wanted.step}, {name}")
        partial.receive(home, manifest, name, _given(source, _give(source, run_id, folder, wanted, name)))
    return len(fetched)


def send(wanted: Held, home: Path, to: Letters, run_id: str, folder: str, names: Sequence[str]) -> None:
    """Give a host these files of a checkpoint that is here."""
    manifest = partial.read_manifest(home, wanted.step)
    sizes = {file.name: file.size for file in decode(manifest).files}
    for name in names:
        news.say(f"{to.place.host.name}: takes step {wanted.step}, {name}")
        put = Put(run_id, to.place.workdir, folder, len(manifest), name, sizes[name])
        to.ask(put, _contents(manifest, home, wanted.step, name))


def lacking(wanted: Held, stocks: Stocks) -> list[str]:
    """Its files that none of these hosts has."""
    there = {name for held in stocks.values() for one in held if _same(one, wanted) for name in one.present}
    return [name for name in _names(wanted) if name not in there]


def _contents(manifest: bytes, home: Path, step: int, name: str) -> Iterator[bytes]:
    yield manifest
    with partial.open_file(home, step, name) as file:
        while piece := file.read(_PIECE):
            yield piece


def _manifest_there(wanted: Held, stocks: Stocks, letters: Mapping[str, Letters], run_id: str, folder: str) -> bytes:
    """Of a checkpoint that is committed on a host that can be asked."""
    for host, held in stocks.items():
        if any(_same(one, wanted) and one.committed for one in held):
            return b"".join(_given(letters[host], _give(letters[host], run_id, folder, wanted, "")))
    raise _nobody_has(wanted, "its manifest")


def _nobody_has(wanted: Held, what: str) -> Refused:
    hint = "hint: again, once all hosts that the run was on can be reached"
    return Refused(f"step {wanted.step}: nobody who can be reached has {what}", hint)


def _give(letters: Letters, run_id: str, folder: str, wanted: Held, name: str) -> Give:
    return Give(run_id, letters.place.workdir, folder, wanted.step, name, wanted.digest)


def _given(letters: Letters, question: Give) -> Iterator[bytes]:
    """Its bytes, as they come."""
    answer, pieces = letters.ask_for_stream(question)
    yield from pieces(letters.expect(Given, answer).size)


def _names(held: Held) -> tuple[str, ...]:
    return (*held.present, *held.missing)


def _same(one: Held, other: Held) -> bool:
    return (one.step, one.digest, one.kind) == (other.step, other.digest, other.kind)
