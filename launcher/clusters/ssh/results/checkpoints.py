"""Where the checkpoints of a run are: on which of the hosts that it has ever been on, and here."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher.clusters.keeping import news
from launcher.clusters.ssh.letters import Letters, Place
from launcher.clusters.ssh.post import ask_all
from launcher.clusters.ssh.results import transfer
from launcher.clusters.ssh.run_hosts import gone, places_ever
from launcher.errors import LaunchError, Unreachable
from launcher.hostlink.parallel import failures, reasons
from launcher.rundir.attempts import attempts, read_plan
from launcher.rundir.durable import read_record
from launcher.rundir.layout import RunDir
from launcher.rundir.records import RunState
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.partial import Held


def checkpoint_folder(run: RunDir) -> str:
    return read_plan(run, attempts(run)[-1].number).spec.checkpoint.dir


def stocks_of(
    run: RunDir, places: Mapping[str, Place], folder: str
) -> tuple[dict[str, tuple[Held, ...]], dict[str, Letters], dict[str, LaunchError]]:
    """What each host has of the run's checkpoints, and who could not be asked: that is told to whoever listens."""
    letters: dict[str, Letters] = {}

    def ask(to: Letters) -> tuple[Held, ...]:
        letters[to.place.host.name] = to
        return transfer.stock_of(to, run.path.name, folder)

    results = ask_all([*places.values()], ask)
    stocks = {name: one for name, one in results.items() if not isinstance(one, LaunchError)}
    troubles = failures(results)
    for name, trouble in troubles.items():
        news.say(f"{name}: may have a newer checkpoint, and could not be asked: {trouble.lines[0]}")
    return stocks, letters, troubles


def settle_for(run: RunDir, wanted: Held | None, troubles: Mapping[str, LaunchError]) -> None:
    """Say that a run goes on from less than it had. Raises Unreachable where it would begin anew, and whoever is silent
    may have what it had."""
    state = read_record(run.state, RunState)
    had = state.checkpoint if state is not None else None
    if had is None or (wanted is not None and wanted.step >= had):
        return
    if wanted is None and troubles:
        raise Unreachable(
            f"no checkpoint can be found: {', '.join(troubles)} may have that of step {had}, and cannot be asked",
            *reasons(troubles),
            f"hint: of a host that is gone for good: launch cancel {run.path.name} --gone HOST",
        )
    if troubles or gone(run):  # else they are of a kind that only the program knows
        goes_on = "it begins anew" if wanted is None else f"it goes on from step {wanted.step}"
        news.say(f"the checkpoint of step {had} is not whole on the hosts that answer: {goes_on}")


def bring_newest(run: RunDir) -> None:
    """Before the run goes on elsewhere: what it would go on from is here, and the best one where it can be had.

    Raises Unreachable where nobody knows of any, NotBrought where none of those that are known can be had.
    """
    folder = checkpoint_folder(run)
    stocks, letters, troubles = stocks_of(run, places_ever(run), folder)
    home = run.path / folder
    hosts = transfer.Hosts(stocks, letters, run.path.name, folder)
    disks = [*stocks.values(), partial.inventory(home)]
    newest = bring_what_it_goes_on_from(run, disks, troubles, lambda held: hosts.bring_home(held, home))
    _set_torsos_aside(home, newest.step if newest is not None else -1)


def bring_what_it_goes_on_from(
    run: RunDir, disks: Sequence[Sequence[Held]], troubles: Mapping[str, LaunchError], bring: Callable[[Held], object]
) -> Held | None:
    """Bring the newest checkpoint that comes, which is returned, and the best one where it can be had."""
    brought = transfer.first_that_comes(transfer.newest_first(disks), bring, _pass_over)
    newest = brought[0] if brought is not None else None
    settle_for(run, newest, troubles)
    try:
        for best in transfer.newest_first(disks, kind="best")[:1]:
            bring(best)
    except LaunchError as error:  # no run waits for the one that is kept apart
        news.say("; ".join((error.lines[0], "the run goes on without it")))
    return newest


def _pass_over(trouble: LaunchError) -> None:
    news.say("; ".join((*trouble.lines[:-1], "the one before it is taken")))


def _set_torsos_aside(home: Path, above: int) -> None:
    """Of what an interrupted fetch left here: the run will save those steps again."""
    for held in partial.inventory(home):
        if held.committed and held.missing and (held.kind == "best" or held.step > above):
            partial.set_aside(home, held.step, held.kind)
