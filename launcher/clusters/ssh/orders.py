"""What a person wants of the hosts of a run: that it ends there, or that they forgive some of their number."""

from collections.abc import Collection

from launcher.clusters import news
from launcher.clusters.protocol import CancelReport
from launcher.clusters.ssh import unfinished
from launcher.clusters.ssh.crowd import failures
from launcher.clusters.ssh.handover import alone
from launcher.clusters.ssh.letters import Letters
from launcher.clusters.ssh.mirror import judge
from launcher.clusters.ssh.places import places_ever, places_of
from launcher.clusters.ssh.post import ask_all
from launcher.clusters.ssh.testimony import LIMIT_S
from launcher.clusters.ssh.wire import Cancel, Cancelled, Done, Pardon
from launcher.errors import Refused, Unreachable
from launcher.rundir import avoided
from launcher.rundir.durable import read_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Blame


def cancel(run: RunDir, attempt: AttemptDir) -> CancelReport:
    """On every host at once; each answers when nothing of the run is left there. Names those that were not reached."""
    if not unfinished.is_unfinished(attempt):
        return _cancel(run, attempt)
    if not unfinished.in_hand(attempt):
        with alone(attempt) as first:
            if first:
                return _cancel_unfinished(run, attempt)
    hint = f"hint: launch cancel {run.path.name} again, in a moment"
    raise Refused(f"{run.path.name} is being handed to its hosts: nothing was ended", hint)


def _cancel_unfinished(run: RunDir, attempt: AttemptDir) -> CancelReport:
    report = _cancel(run, attempt)
    if unfinished.is_unfinished(attempt):
        unfinished.withdraw(run, attempt)
        return CancelReport(report.ended, already=False)
    return report


def _cancel(run: RunDir, attempt: AttemptDir) -> CancelReport:
    def end(letters: Letters) -> Cancelled:
        return letters.expect(Cancelled, letters.ask(Cancel(run.path.name, letters.place.workdir)))

    results = ask_all([*places_ever(run).values()], end, anew=True)
    answers = {name: one for name, one in results.items() if isinstance(one, Cancelled)}
    troubles = failures(results)
    if not unfinished.is_unfinished(attempt):
        judge(run, attempt)
    ended = tuple(f"{what} on {name}" for name, one in answers.items() for what in one.ended)
    if troubles:
        for line in ended:
            news.say(f"ended {line}")
        lines_ = [line for one in troubles.values() for line in one.lines[:1]]
        hint = f"hint: launch cancel {run.path.name} again, once {', '.join(troubles)} can be reached"
        raise Unreachable(f"could not ask {', '.join(troubles)}: something of the run may be left there", *lines_, hint)
    return CancelReport(ended, already=all(one.already for one in answers.values()))


def pardon(run: RunDir, hosts: Collection[str]) -> None:
    """Have the keepers of a run that goes on forget what they hold against these hosts, or against all."""

    def forget(letters: Letters) -> Done:
        wish = Pardon(run.path.name, letters.place.workdir, tuple(hosts))
        return letters.expect(Done, letters.ask(wish, limit_s=LIMIT_S))

    troubles = failures(ask_all(places_of(run), forget))
    # Who was ever blamed may well be gone, whether or not that still counts.
    silent = sorted(troubles.keys() - {blame.host for blame in read_record(run.avoided, list[Blame]) or []})
    if silent:
        avoided.pardon(run, hosts)  # what holds here does not wait for who is gone
        hint = f"hint: launch pardon {run.path.name} again, once {', '.join(silent)} can be reached"
        raise Unreachable(f"could not tell {', '.join(silent)}", troubles[silent[0]].lines[0], hint)
