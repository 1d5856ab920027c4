"""Carry out each request to start runs exactly once: a request has a token, and its outcome is kept, so that a
repetition after a lost connection gets the same answer.

<folder>/requests/<token>/
  lock           held while anything below is decided
  chosen.json    the runs that are about to be made; each exists once its folder does
  outcome.json   what was answered, and is answered again
  spec/          the spec as it was sent
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from launcher.errors import BadInput, Exit, LaunchError, Refused
from launcher.ids import RunId
from launcher.remote.rpc.wire import Made, Outcome
from launcher.run import registry
from launcher.run.durable import make_dir, read_record, sync_dir, write_record
from launcher.run.locks import NO_LOCKS_HERE, locked

_TOKEN = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")
_KEPT_S = 30 * 86_400.0

Runs = Sequence[tuple[RunId, Path]]  # ids and folders
# Told of runs before there is anything of them, perhaps of some and then of more; gives all once they are.
Start = Callable[[Callable[[Runs], None]], Runs]


class Token:
    """The records about one token: which runs its request was about to start, and the outcome. By them the request is
    carried out only once, even if the client repeats it.
    """

    def __init__(self, folder: Path, token: str) -> None:
        if not _TOKEN.fullmatch(token):
            raise BadInput("expected a token of 16 or 64 hex digits")
        self.path = folder / "requests" / token
        self._chosen = self.path / "chosen.json"
        self._outcome = self.path / "outcome.json"

    def redeem(self, start: Start) -> Outcome:
        """Start the runs by calling `start` and return the outcome, or return that of an earlier request with this
        token. If an earlier one was killed after it had created runs, its outcome has these, and an error if some of
        its runs are missing; if it had created none, the runs are started now.

        `start` gets a function, which it must call with the runs (id, folder) before it creates them, and returns the
        runs. A LaunchError that it raises becomes part of the outcome. Raise Refused on a file system without locks,
        and Damaged if a record of the token cannot be read.
        """
        with self._alone():
            outcome = self._settled()
            return outcome if outcome is not None else self._close(self._started(start))

    def void(self) -> Outcome:
        """Return the token's outcome; if it has none yet, record that the token is refused from now on, and return
        that.

        A request with this token that is being carried out is waited for. Raise Refused on a file system without locks,
        and Damaged if a record of the token cannot be read.
        """
        with self._alone():
            outcome = self._settled()
            if outcome is None:
                words = "the request was given up before it was carried out"
                outcome = self._close(Outcome(error=(words,), exit_code=Exit.REFUSED))
            return outcome

    def _settled(self) -> Outcome | None:
        """Return the outcome of an earlier request with this token, or None if there is neither an outcome nor a run of
        such a request, so that the request can be carried out.

        If a killed request left runs but no outcome, an outcome with these runs is recorded and returned. If it left
        only entries in the list of runs, they are removed. Raise Damaged if a record cannot be read.
        """
        outcome = read_record(self._outcome, Outcome)
        if outcome is not None:
            return outcome
        chosen = read_record(self._chosen, list[Made]) or []
        made = _there(chosen)
        if made:
            missing = len(chosen) - len(made)
            error = (f"{missing} of {len(chosen)} runs were not started: launch there was killed",) if missing else ()
            return self._close(Outcome(made, error, Exit.INTERNAL if missing else Exit.OK))
        registered = dict(registry.registered())
        for one in chosen:
            if registered.get(one.run) == Path(one.path):
                registry.forget(one.run)  # it was to be, and never came to be
        return None

    def _started(self, start: Start) -> Outcome:
        """Start the runs by calling `start` and return the outcome: the runs that exist now, and the error if not all
        could be started.
        """
        chosen: list[Made] = []

        def choose(runs: Runs) -> None:
            """Record the runs that are about to be created."""
            chosen.extend(Made(run_id, str(path)) for run_id, path in runs)
            write_record(self._chosen, chosen)

        try:
            runs = start(choose)
        except LaunchError as error:
            return Outcome(_there(chosen), error.lines, error.exit_code)
        return Outcome(tuple(Made(run_id, str(path)) for run_id, path in runs))

    def _close(self, outcome: Outcome) -> Outcome:
        """Record the token's outcome and return it. Raise OSError if that fails."""
        write_record(self._outcome, outcome)
        return outcome

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the token during the body, so that of two connections with the same token one waits for the other. Raise
        Refused on a file system without locks.
        """
        make_dir(self.path)
        sync_dir(self.path.parent)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self.path / "lock", wait=True))
            except OSError as error:
                if error.errno not in NO_LOCKS_HERE:
                    raise
                raise Refused(
                    f"{self.path}: a file system without locks: the same request could be carried out twice",
                    "hint: `folder:` in the clusters file names one that has them, such as the home folder",
                ) from error
            yield


def _there(chosen: Sequence[Made]) -> tuple[Made, ...]:
    """Return those of `chosen`, the runs that a request was to create, whose folders exist."""
    return tuple(one for one in chosen if Path(one.path).is_dir())


def tidy(folder: Path, now: float) -> None:
    """Delete the records below `folder` of tokens that are more than a month old at the time `now`."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder / "requests") as found:
        for entry in found:
            if _TOKEN.fullmatch(entry.name) and entry.stat().st_mtime < now - _KEPT_S:
                shutil.rmtree(entry.path, ignore_errors=True)
