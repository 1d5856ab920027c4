"""Results come home: the logs, metrics and chosen checkpoints of a run on hosts, resumable and verified."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.clusters.mirror import tails
from launcher.clusters.mirror.messages import LIMIT_S, AskTails, Tails
from launcher.clusters.ssh.letters import Letters, Place
from launcher.clusters.ssh.post import ask_all
from launcher.clusters.ssh.results import transfer
from launcher.clusters.ssh.results.checkpoints import checkpoint_folder, stocks_of
from launcher.clusters.ssh.run_hosts import is_here, moved_on, places_ever, places_of
from launcher.errors import LaunchError, Refused, Unreachable
from launcher.hostlink.parallel import failures, reasons
from launcher.rundir.attempts import attempts
from launcher.rundir.durable import read_record, write_bytes
from launcher.rundir.layout import RunDir
from launcher.rundir.records import AttemptEnd
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.layout import Kind, folder_name

_LOGS = ("logs", "metrics")
_ALL = 1 << 62  # more than there is of any file

_asked: set[Path] = set()  # who follows what a run writes here does not wait for the hosts that it left again and again


def bring_logs(run: RunDir) -> None:
    """Copy what is new of the logs, until the run has ended and all is here."""
    every = attempts(run)
    if not every or every[-1].fetched.exists():
        return
    moved = moved_on(run)
    if moved:
        if run.path in _asked:
            return
        _asked.add(run.path)
    end = read_record(every[-1].end, AttemptEnd)  # looked at first: what was written before it is then fetched
    before = places_ever(run, [attempt for attempt in every if not attempt.fetched.exists()])
    troubles = _fetch(before | {place.host.name: place for place in places_of(run)}, run)
    if (moved or (end is not None and end.state.ended)) and not troubles:
        for attempt in every:
            write_bytes(attempt.fetched, b"")


def fetch(run: RunDir, checkpoint: str) -> list[str]:
    """Bring home logs, metrics and a checkpoint: `newest` with the best, `none`, or a step; a line for each thing.

    Where one had to be passed over, the one before it comes, and then that is raised.
    """
    before = _bytes(run)
    troubles = _fetch(places_ever(run), run)
    lines = [f"logs and metrics, {_bytes(run) - before:,} new bytes"]
    passed_over: list[LaunchError] = []
    if checkpoint == "newest":
        lines += _fetch_newest(run, passed_over)
    elif checkpoint != "none":
        lines += _fetch_step(run, int(checkpoint), passed_over)
    if passed_over:
        raise _less_came(passed_over[0], lines) from passed_over[0]
    if troubles:
        hint = f"hint: launch fetch {run.path.name} again brings the rest"
        raise Unreachable(*reasons(troubles), hint)
    return lines


def _fetch(places: Mapping[str, Place], run: RunDir) -> dict[str, LaunchError]:
    known = _known(run)

    def fetch_from(letters: Letters) -> None:
        mine = dict(known)
        more = True
        while more:
            question = AskTails(run.path.name, letters.place.workdir, _LOGS, mine)
            answer, contents = letters.ask_with_contents(question, limit_s=LIMIT_S)
            parts = letters.expect(Tails, answer)
            for part, content in zip(parts.parts, contents, strict=True):
                tails.put(run.path, _LOGS, part, content)
                mine[part.name] = part.at + part.size
            more = parts.more

    return failures(ask_all([*places.values()], fetch_from))


def _known(run: RunDir) -> dict[str, int]:
    """How much there is of each file. What ranks write here is not added to: hosts may have a file of that name."""
    every = attempts(run)
    here = [attempt for attempt in every if is_here(attempt)]
    logs = tuple(f"logs/a{attempt.number:04d}." for attempt in here)
    theirs = tuple(f".a{attempt.number:04d}." for attempt in every if attempt not in here)

    def is_ours(name: str) -> bool:
        if name.startswith("metrics/"):
            return every[-1] in here and not any(mark in name for mark in theirs)
        return name.startswith(logs)

    sizes = tails.sizes(run.path, _LOGS)
    return {name: _ALL if is_ours(name) else size for name, size in sizes.items()}


def _fetch_newest(run: RunDir, passed_over: list[LaunchError]) -> list[str]:
    if moved_on(run):
        return [f"checkpoints are written here: {run.path / checkpoint_folder(run)}"]
    everywhere = _Everywhere(run, passed_over)
    lines = everywhere.bring(None, "step") or ["no checkpoint yet"]
    return lines + everywhere.bring(None, "best")


def _fetch_step(run: RunDir, step: int, passed_over: list[LaunchError]) -> list[str]:
    """The best one of that step is as good: it may be all that is left of it."""
    if moved_on(run) and not derive(read_facts(run.path)).state.ended:
        hint = "hint: again, once it has ended; or --checkpoint none"
        raise Refused(f"{run.path.name} runs from the checkpoints that are here: no other is put among them", hint)
    everywhere = _Everywhere(run, passed_over)
    lines = everywhere.bring(step, "step") or everywhere.bring(step, "best")
    if not lines:
        raise Refused(f"{run.path.name} has no whole checkpoint of step {step} on the hosts that answer")
    return lines


class _Everywhere:
    """The checkpoints of a run, on its hosts and here."""

    def __init__(self, run: RunDir, passed_over: list[LaunchError]) -> None:
        self._passed_over = passed_over
        folder = checkpoint_folder(run)
        stocks, letters, _ = stocks_of(run, places_ever(run), folder)
        self._home = run.path / folder
        self._disks = [*stocks.values(), partial.inventory(self._home)]
        self._hosts = transfer.Hosts(stocks, letters, run.path.name, folder)

    def bring(self, step: int | None, kind: Kind) -> list[str]:
        """The newest, or that of this step; nothing where there is none."""
        found = transfer.newest_first(self._disks, step, kind)
        brought = transfer.first_that_comes(
            found, lambda held: self._hosts.bring_home(held, self._home), self._passed_over.append
        )
        if brought is None:
            return []
        held, count = brought
        what = f"{'best checkpoint, ' if kind == 'best' else 'checkpoint '}of step {held.step}"
        files = f"{count} files" if count else "here already"
        return [f"{what}, {files}: {self._home / folder_name(held.step, kind)}"]


def _less_came(trouble: LaunchError, lines: Sequence[str]) -> LaunchError:
    *words, hint = trouble.lines
    error = LaunchError(*words, *(f"here now: {line}" for line in lines), hint)
    error.exit_code = trouble.exit_code
    return error


def _bytes(run: RunDir) -> int:
    return sum(path.stat().st_size for name in _LOGS for path in (run.path / name).rglob("*") if path.is_file())
