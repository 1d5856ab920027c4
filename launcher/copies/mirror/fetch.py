"""Fetch results of a run from other machines: logs and checkpoints that a user asks for, and the checkpoint from which
the run continues on another cluster. A Held is the entry of a disk's list about one checkpoint: its identity, and the
names of its files that are there and that are missing.
"""

from collections.abc import Callable, Mapping, Sequence

from launcher.copies import news
from launcher.copies.mirror import logs
from launcher.copies.mirror.holders import Holders, NotTransferred, first_that_comes
from launcher.copies.mirror.logs import Theirs
from launcher.errors import LaunchError, Refused, Unreachable
from launcher.remote.parallel import reasons
from launcher.run.attempts import last_attempt, read_plan
from launcher.run.durable import read_lines, read_record
from launcher.run.layout import RunDir
from launcher.run.records import ANEW, Event, RunState
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.layout import Kind, folder_name
from trainer.checkpoint_files.partial import Held

_AGAIN = 3  # a run that lets its checkpoints go faster than they can be fetched is not chased for ever


def checkpoint_folder(run: RunDir) -> str:
    """Return the path of the checkpoint directory within the run's folder, which is the same on every machine."""
    return read_plan(run, last_attempt(run).number).spec.checkpoint.dir


def fetch(
    run: RunDir,
    checkpoint: str,
    *,
    theirs: Theirs,
    bring_logs: Callable[[], Mapping[str, LaunchError]],
    holders: Callable[[], Holders],
) -> list[str]:
    """Fetch logs, metrics and a checkpoint; return a line of text for each thing fetched. `checkpoint` is "newest" (the
    newest, and the one that was saved as the best), "none", or the step of one.

    If the newest or best checkpoint cannot be fetched, an older one is, and then the error is raised. `theirs` tells
    whether an attempt's ranks wrote on other machines; `bring_logs` fetches logs and returns errors by machine;
    `holders` returns the machines that have checkpoints. Raise Refused for a step while the run goes on here, and
    Unreachable if a machine's logs could not be fetched.
    """
    before = logs.size(run)
    troubles = bring_logs()
    lines = [f"logs and metrics, {logs.size(run) - before:,} new bytes"]
    passed_over: list[LaunchError] = []
    moved_on = not theirs(last_attempt(run))
    if checkpoint == "newest" and moved_on:
        lines.append(f"checkpoints are written here: {run.path / checkpoint_folder(run)}")
    elif checkpoint == "newest":
        lines += _newest_and_best(holders, passed_over)
    elif checkpoint != "none":
        if moved_on and not derive(read_facts(run.path)).state.ended:
            hint = "hint: again, once it has ended; or --checkpoint none"
            raise Refused(f"{run.path.name} runs from the checkpoints that are here: no other is put among them", hint)
        lines += _fetch_step(int(checkpoint), run, holders, passed_over)
    if passed_over:
        raise _less_came(passed_over[0], lines) from passed_over[0]
    if troubles:
        hint = f"hint: launch fetch {run.path.name} again brings the rest"
        raise Unreachable(*reasons(troubles), hint)
    return lines


def _newest_and_best(look: Callable[[], Holders], passed_over: list[LaunchError]) -> list[str]:
    """Fetch the newest and the best checkpoint to the run's folder of checkpoints on this machine; return lines for the
    user about them.

    `look` finds the machines that have checkpoints. If a checkpoint cannot be fetched, an older one is tried; if that
    succeeds, the errors before are added to `passed_over`, else the first is raised (NotTransferred).
    """
    lines = _fetch_newest(look, None, "step", passed_over) or ["no checkpoint yet"]
    return lines + _fetch_newest(look, None, "best", passed_over)


def _fetch_step(step: int, run: RunDir, look: Callable[[], Holders], passed_over: list[LaunchError]) -> list[str]:
    """Fetch the checkpoint of `step`, or the one kept as the best if it is of that step; return lines about it.

    Raise Refused if there is none. `look` finds the machines that have checkpoints. Errors of checkpoints that could
    not be fetched are added to `passed_over`.
    """
    lines = _fetch_newest(look, step, "step", passed_over) or _fetch_newest(look, step, "best", passed_over)
    if not lines:
        raise Refused(f"{run.path.name} has no whole checkpoint of step {step} on the hosts that answer")
    return lines


def _fetch_newest(
    look: Callable[[], Holders], step: int | None, kind: Kind, passed_over: list[LaunchError]
) -> list[str]:
    """Fetch the newest checkpoint of this kind ("step" or "best"), or that of `step`; return a list of one line about
    it, or an empty list if there is none.

    `look` finds the machines that have checkpoints, and is called again if an active run has replaced all that were
    found. Errors of checkpoints that could not be fetched are added to `passed_over`.
    """
    holders = look()
    found = holders.newest_first(step, kind)
    for _ in range(_AGAIN):
        try:
            return _report_lines(first_that_comes(found, holders.bring_home, passed_over.append), holders)
        except NotTransferred:
            seen, holders = found, look()
            found = holders.newest_first(step, kind)
            if all(held in seen for held in found[:1]):
                raise
    return _report_lines(first_that_comes(found, holders.bring_home, passed_over.append), holders)


def _report_lines(brought: tuple[Held, int] | None, holders: Holders) -> list[str]:
    """Return a line that says which checkpoint was fetched, how many files came and where it now is; an empty list if
    `brought` is None.

    `brought` is (the checkpoint, how many of its files had to be fetched; 0 if all were here).
    """
    if brought is None:
        return []
    held, count = brought
    what = f"{'best checkpoint, ' if held.kind == 'best' else 'checkpoint '}of step {held.step}"
    files = f"{count} files" if count else "here already"
    return [f"{what}, {files}: {holders.home / folder_name(held.step, held.kind)}"]


def _less_came(trouble: LaunchError, lines: Sequence[str]) -> LaunchError:
    """Return an error like `trouble`, with one more line before its hint for each of `lines`, which say what was
    fetched in spite of the trouble.
    """
    *words, hint = trouble.lines
    error = LaunchError(*words, *(f"here now: {line}" for line in lines), hint)
    error.exit_code = trouble.exit_code
    return error


def bring_newest(run: RunDir, holders: Holders) -> None:
    """Fetch the newest checkpoint, from which the run will resume on another cluster, and the best one, from the
    machines in `holders`. A failure to fetch the best one is only reported to the user. Then set aside (rename) what an
    earlier fetch left incomplete here: the best one, and any newer than the one fetched.

    Raise Unreachable if none is found although a machine that does not answer may have one, unless the user has allowed
    to begin without; raise NotTransferred if none that is found can be fetched.
    """
    newest = fetch_to_resume_from(run, holders, holders.bring_home)
    _set_incomplete_aside(holders, newest.step if newest is not None else -1)


def fetch_to_resume_from(run: RunDir, holders: Holders, bring: Callable[[Held], object]) -> Held | None:
    """Fetch the newest checkpoint that can be had, by calling `bring`, and return it, or None if no machine has one.

    Raise NotTransferred if none that is found can be fetched. Raise Unreachable if there is none although a machine
    that does not answer may have one, unless a user has allowed to begin without. The best one is fetched too; a
    failure of that is only reported to the user.
    """
    brought = first_that_comes(holders.newest_first(), bring, _report_passed_over)
    newest = brought[0] if brought is not None else None
    report_if_older(run, newest, holders)
    try:
        for best in holders.newest_first(kind="best")[:1]:
            bring(best)
    except LaunchError as error:  # no run waits for the one that is kept apart
        news.say("; ".join((error.lines[0], "the run continues without it")))
    return newest


def report_if_older(run: RunDir, wanted: Held | None, holders: Holders) -> None:
    """Report to the user if `wanted`, the checkpoint from which the run resumes (None for none), is older than the last
    one that the run saved. This is left out if all machines in `holders` answered and none is gone.

    Raise Unreachable if the run would begin without a checkpoint although a machine that does not answer may have one,
    unless a user has allowed that by `launch resume --anew`.
    """
    state = read_record(run.state, RunState)
    had = state.checkpoint if state is not None else None
    if had is None or (wanted is not None and wanted.step >= had):
        return
    anew = _may_begin_anew(run)
    if wanted is None and holders.silent and not anew:
        raise Unreachable(
            f"no checkpoint can be found: {', '.join(holders.silent)} may have that of step {had}, and cannot be asked",
            *reasons(holders.silent),
            f"hint: of a host that is gone for good: launch cancel {run.path.name} --gone HOST; "
            f"launch resume {run.path.name} --anew begins without it",
        )
    if holders.silent or holders.gone or anew:  # else they are of a kind that only the program knows
        goes_on = "it begins anew" if wanted is None else f"it continues from step {wanted.step}"
        news.say(f"the checkpoint of step {had} is not whole on the hosts that answer: {goes_on}")


def _may_begin_anew(run: RunDir) -> bool:
    """Return whether a user has allowed the newest attempt to begin without a checkpoint."""
    last = last_attempt(run).number
    return any(event.kind == ANEW and event.attempt == last for event in read_lines(run.events, Event))


def _report_passed_over(trouble: NotTransferred) -> None:
    """Report to the user why a checkpoint cannot be fetched (`trouble`), and that the one before it is tried."""
    news.say("; ".join((*trouble.lines[:-1], "the one before it is taken")))


def _set_incomplete_aside(holders: Holders, above: int) -> None:
    """Set aside (rename, so that they are not loaded) the checkpoints on this machine that an interrupted fetch left
    incomplete, if their step is above `above` or they are a best one, because the run will save them again.
    """
    for held in partial.inventory(holders.home):
        if held.committed and held.missing and (held.kind == "best" or held.step > above):
            partial.set_aside(holders.home, held.step, held.kind)
