"""Results of a run on other machines come here: what a person fetches, and what the run is to go on from elsewhere."""

from collections.abc import Callable, Mapping, Sequence

from launcher.copies import news
from launcher.copies.mirror import logs
from launcher.copies.mirror.holders import Holders, NotTransferred, first_that_comes
from launcher.copies.mirror.logs import Theirs
from launcher.errors import LaunchError, Refused, Unreachable
from launcher.remote.parallel import reasons
from launcher.run.attempts import attempts, read_plan
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
    """Inside the run's folder, on every machine that has one."""
    return read_plan(run, attempts(run)[-1].number).spec.checkpoint.dir


def fetch(
    run: RunDir,
    checkpoint: str,
    *,
    theirs: Theirs,
    bring_logs: Callable[[], Mapping[str, LaunchError]],
    holders: Callable[[], Holders],
) -> list[str]:
    """Bring home logs, metrics and a checkpoint: `newest` with the best, `none`, or a step; a line for each thing.

    Where one had to be passed over, the one before it comes, and then that is raised.
    """
    before = logs.size(run)
    troubles = bring_logs()
    lines = [f"logs and metrics, {logs.size(run) - before:,} new bytes"]
    passed_over: list[LaunchError] = []
    moved_on = not theirs(attempts(run)[-1])
    if checkpoint == "newest" and moved_on:
        lines.append(f"checkpoints are written here: {run.path / checkpoint_folder(run)}")
    elif checkpoint == "newest":
        lines += _newest_and_best(holders, passed_over)
    elif checkpoint != "none":
        if moved_on and not derive(read_facts(run.path)).state.ended:
            hint = "hint: again, once it has ended; or --checkpoint none"
            raise Refused(f"{run.path.name} runs from the checkpoints that are here: no other is put among them", hint)
        lines += _that_of(int(checkpoint), run, holders, passed_over)
    if passed_over:
        raise _less_came(passed_over[0], lines) from passed_over[0]
    if troubles:
        hint = f"hint: launch fetch {run.path.name} again brings the rest"
        raise Unreachable(*reasons(troubles), hint)
    return lines


def _newest_and_best(look: Callable[[], Holders], passed_over: list[LaunchError]) -> list[str]:
    lines = _brought(look, None, "step", passed_over) or ["no checkpoint yet"]
    return lines + _brought(look, None, "best", passed_over)


def _that_of(step: int, run: RunDir, look: Callable[[], Holders], passed_over: list[LaunchError]) -> list[str]:
    """The best one of that step is as good: it may be all that is left of it."""
    lines = _brought(look, step, "step", passed_over) or _brought(look, step, "best", passed_over)
    if not lines:
        raise Refused(f"{run.path.name} has no whole checkpoint of step {step} on the hosts that answer")
    return lines


def _brought(look: Callable[[], Holders], step: int | None, kind: Kind, passed_over: list[LaunchError]) -> list[str]:
    """The newest, or that of this step; nothing where there is none. Again where a run that goes on has let all go that
    was there, for newer ones."""
    holders = look()
    found = holders.newest_first(step, kind)
    for _ in range(_AGAIN):
        try:
            return _told(first_that_comes(found, holders.bring_home, passed_over.append), holders)
        except NotTransferred:
            seen, holders = found, look()
            found = holders.newest_first(step, kind)
            if all(held in seen for held in found[:1]):
                raise
    return _told(first_that_comes(found, holders.bring_home, passed_over.append), holders)


def _told(brought: tuple[Held, int] | None, holders: Holders) -> list[str]:
    if brought is None:
        return []
    held, count = brought
    what = f"{'best checkpoint, ' if held.kind == 'best' else 'checkpoint '}of step {held.step}"
    files = f"{count} files" if count else "here already"
    return [f"{what}, {files}: {holders.home / folder_name(held.step, held.kind)}"]


def _less_came(trouble: LaunchError, lines: Sequence[str]) -> LaunchError:
    *words, hint = trouble.lines
    error = LaunchError(*words, *(f"here now: {line}" for line in lines), hint)
    error.exit_code = trouble.exit_code
    return error


def bring_newest(run: RunDir, holders: Holders) -> None:
    """Before the run goes on elsewhere: what it would go on from is here, and the best one where it can be had.

    Raises Unreachable where nobody knows of any, NotTransferred where none of those that are known can be had.
    """
    newest = bring_what_it_goes_on_from(run, holders, holders.bring_home)
    _set_torsos_aside(holders, newest.step if newest is not None else -1)


def bring_what_it_goes_on_from(run: RunDir, holders: Holders, bring: Callable[[Held], object]) -> Held | None:
    """Bring the newest checkpoint that comes, which is returned, and the best one where it can be had."""
    brought = first_that_comes(holders.newest_first(), bring, _pass_over)
    newest = brought[0] if brought is not None else None
    settle_for(run, newest, holders)
    try:
        for best in holders.newest_first(kind="best")[:1]:
            bring(best)
    except LaunchError as error:  # no run waits for the one that is kept apart
        news.say("; ".join((error.lines[0], "the run goes on without it")))
    return newest


def settle_for(run: RunDir, wanted: Held | None, holders: Holders) -> None:
    """Say that a run goes on from less than it had. Raises Unreachable where it would begin anew, whoever is silent may
    have what it had, and no person has said that it may."""
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
        goes_on = "it begins anew" if wanted is None else f"it goes on from step {wanted.step}"
        news.say(f"the checkpoint of step {had} is not whole on the hosts that answer: {goes_on}")


def _may_begin_anew(run: RunDir) -> bool:
    """A person has said so of the newest attempt."""
    last = attempts(run)[-1].number
    return any(event.kind == ANEW and event.attempt == last for event in read_lines(run.events, Event))


def _pass_over(trouble: NotTransferred) -> None:
    news.say("; ".join((*trouble.lines[:-1], "the one before it is taken")))


def _set_torsos_aside(holders: Holders, above: int) -> None:
    """Of what an interrupted fetch left here: the run will save those steps again."""
    for held in partial.inventory(holders.home):
        if held.committed and held.missing and (held.kind == "best" or held.step > above):
            partial.set_aside(holders.home, held.step, held.kind)
