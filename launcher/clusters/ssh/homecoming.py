"""Results come home: the logs, metrics and chosen checkpoints of a run on hosts, resumable and verified."""

from collections.abc import Mapping, Sequence

from launcher.clusters.ssh import growth, supplies
from launcher.clusters.ssh.crowd import failures, reasons
from launcher.clusters.ssh.letters import Letters, Place
from launcher.clusters.ssh.places import places_ever, places_of
from launcher.clusters.ssh.post import ask_all
from launcher.clusters.ssh.stocks import checkpoint_folder, stocks_of
from launcher.clusters.ssh.testimony import LIMIT_S
from launcher.clusters.ssh.wire import Logs, Parts
from launcher.errors import LaunchError, Refused, Unreachable
from launcher.rundir.attempts import attempts
from launcher.rundir.durable import read_record, write_bytes
from launcher.rundir.layout import RunDir
from launcher.rundir.records import AttemptEnd
from trainer.checkpoint_files import partial

_LOGS = ("logs", "metrics")


def bring_logs(run: RunDir) -> None:
    """Copy what is new of the logs, until the run has ended and all is here."""
    every = attempts(run)
    if every[-1].fetched.exists():
        return
    end = read_record(every[-1].end, AttemptEnd)  # looked at first: what was written before it is then fetched
    before = places_ever(run, [attempt for attempt in every if not attempt.fetched.exists()])
    troubles = _fetch(before | {place.host.name: place for place in places_of(run)}, run)
    if end is not None and end.state.ended and not troubles:
        for attempt in every:
            write_bytes(attempt.fetched, b"")


def fetch(run: RunDir, checkpoint: str) -> list[str]:
    """Bring home logs, metrics and a checkpoint: `newest`, `none`, or a step; gives a line for each thing.

    Where one had to be passed over, the one before it comes, and then that is raised.
    """
    before = _bytes(run)
    troubles = _fetch(places_ever(run), run)
    lines = [f"logs and metrics, {_bytes(run) - before:,} new bytes"]
    passed_over: list[LaunchError] = []
    if checkpoint != "none":
        step = None if checkpoint == "newest" else int(checkpoint)
        lines += _fetch_checkpoint(run, step, passed_over)
    if passed_over:
        raise _less_came(passed_over[0], lines) from passed_over[0]
    if troubles:
        hint = f"hint: launch fetch {run.path.name} again brings the rest"
        raise Unreachable(*reasons(troubles), hint)
    return lines


def _fetch(places: Mapping[str, Place], run: RunDir) -> dict[str, LaunchError]:
    known = growth.sizes(run.path, _LOGS)

    def fetch_from(letters: Letters) -> None:
        mine = dict(known)
        more = True
        while more:
            question = Logs(run.path.name, letters.place.workdir, _LOGS, mine)
            answer, contents = letters.ask_with_contents(question, limit_s=LIMIT_S)
            parts = letters.expect(Parts, answer)
            for part, content in zip(parts.parts, contents, strict=True):
                growth.put(run.path, _LOGS, part, content)
                mine[part.name] = part.at + part.size
            more = parts.more

    return failures(ask_all([*places.values()], fetch_from))


def _fetch_checkpoint(run: RunDir, step: int | None, passed_over: list[LaunchError]) -> list[str]:
    folder = checkpoint_folder(run)
    stocks, letters, _ = stocks_of(run, places_ever(run), folder)
    home = run.path / folder
    hosts = supplies.Hosts(stocks, letters, run.path.name, folder)
    found = supplies.newest_first([*stocks.values(), partial.inventory(home)], step)
    brought = supplies.first_that_comes(found, lambda held: hosts.bring_home(held, home), passed_over.append)
    if brought is None and step is not None:
        raise Refused(f"{run.path.name} has no whole checkpoint of step {step} on the hosts that answer")
    if brought is None:
        return ["no checkpoint yet"]
    held, count = brought
    place = home / f"step-{held.step:08d}"
    return [f"checkpoint of step {held.step}, {f'{count} files' if count else 'here already'}: {place}"]


def _less_came(trouble: LaunchError, lines: Sequence[str]) -> LaunchError:
    *words, hint = trouble.lines
    error = LaunchError(*words, *(f"here now: {line}" for line in lines), hint)
    error.exit_code = trouble.exit_code
    return error


def _bytes(run: RunDir) -> int:
    return sum(path.stat().st_size for name in _LOGS for path in (run.path / name).rglob("*") if path.is_file())
