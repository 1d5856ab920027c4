"""Carry out a user's requests to the hosts of a run: cancel it, include hosts again, or give hosts up."""

from collections.abc import Collection, Mapping, Sequence

from launcher.copies import news
from launcher.errors import LaunchError, Refused, Unreachable
from launcher.ids import RunId
from launcher.places.place import CancelReport
from launcher.places.ssh import run_hosts
from launcher.places.ssh.host_client import HostClient
from launcher.places.ssh.host_clients import ask_all
from launcher.places.ssh.messages import AskSubmitted, Cancel, IncludeHosts, ListRuns, PassOnCancel, Submitted
from launcher.places.ssh.run_hosts import places_of
from launcher.places.ssh.submit.look import judge
from launcher.plan.model import Plan
from launcher.remote.parallel import answers, failures, reasons
from launcher.remote.rpc.client import GREETING_S
from launcher.run import avoided
from launcher.run.attempts import newest, read_plan
from launcher.run.durable import read_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, ClusterAnswer, Exclusion
from launcher.supervisor.attempt_end import cancelled, write_end
from launcher.supervisor.handover import Handover, handover_error, is_open

_MOST_NAMED, _LONGEST_NAME = 8, 100


def cancel(run: RunDir, attempt: AttemptDir, *, gone: Collection[str] = ()) -> CancelReport:
    """Cancel the run on every host at once and return a report, which names hosts that were not reached.

    Each host answers when no process of the run is left on it. Hosts in `gone` that do not answer are given up from now
    on: the run may end without them. Raise Unreachable if ranks may be left on any other host, and Refused if the run
    was never on a host in `gone` or is just being handed to its hosts.
    """
    known = run_hosts.everywhere(run)
    if strangers := sorted(set(gone) - known.keys()):
        was_on = f"hint: it was on {', '.join(known)}" if known else "hint: it was on no host yet"
        raise Refused(f"{run.path.name} was never on {', '.join(strangers)}", was_on)
    if not is_open(run, attempt):
        return _cancel(run, attempt, gone)
    handover = Handover.of(run, attempt)
    if not handover.is_in_hand():
        with handover.held() as lock:
            if lock is not None:
                report = _cancel(run, attempt, gone)
                if not handover.is_open():
                    return report
                handover.withdraw()
                return CancelReport(report.ended, already=False)
    raise handover_error(run, "its hosts")


def _cancel(run: RunDir, attempt: AttemptDir, gone: Collection[str]) -> CancelReport:
    """Cancel the run on every host and return the report.

    `gone` are hosts, by name, that the user has given up: they need not answer. Raise Unreachable if ranks may be left
    on another host.
    """
    plan = read_plan(run, attempt.number)
    let_in: set[str] = set()

    def end(client: HostClient) -> CancelReport:
        """Cancel the run on one host, and return the report."""
        let_in.add(client.place.host.name)
        if client.place.host.name in gone:  # if it answers at all, it answers soon
            client.ask(ListRuns(client.place.workdir), list[RunId], limit_s=GREETING_S)
        limit_s = plan.spec.recovery.grace_s + client.limits.ends_s
        return client.ask(Cancel(run.id, client.place.workdir), CancelReport, limit_s=limit_s)

    results = ask_all([*run_hosts.everywhere(run).values()], end, anew=True)
    told = answers(results)
    missing = _not_waited_for(run, results, gone)
    for name in sorted(missing & let_in):
        news.say(f"{name} accepts the login and then does not answer: it counts as gone, and ranks left there continue")
    troubles = {name: one for name, one in failures(results).items() if name not in missing}
    ended = tuple(f"{what} on {name}" for name, one in told.items() for what in one.ended)
    if troubles:
        _have_others_informed(run, [*told], [*troubles])
        raise _not_ended(run, troubles, let_in, ended)
    _refuse_unknown_hosts(run, plan)
    word = None if is_open(run, attempt) else judge(run, attempt)
    by_word = word is not None and bool(missing) and _end_without(run, missing, word)
    return CancelReport(ended, already=not by_word and all(one.already for one in told.values()))


def _refuse_unknown_hosts(run: RunDir, plan: Plan) -> None:
    """Raise Unreachable if a run that another machine submitted is also on hosts that this machine does not know, as
    its pool here does not list them: a cancel from here would leave processes on them. The known hosts are asked for
    the names of all.
    """
    if plan.project:
        return
    places = run_hosts.everywhere(run)
    told = ask_all([*places.values()], lambda client: client.ask(AskSubmitted(run.id, client.place.workdir), Submitted))
    named = {name[:_LONGEST_NAME] for one in answers(told).values() for name in one.hosts}
    if strangers := sorted(named - places.keys()):
        who = ", ".join(strangers[:_MOST_NAMED]) + (", ..." if len(strangers) > _MOST_NAMED else "")
        text = f"{run.id} is also on hosts that {plan.cluster} has not here, and may be left there: {who}"
        raise Unreachable(text, "hint: launch cancel it on the machine that submitted it")


def _have_others_informed(run: RunDir, heard: Collection[str], missed: Sequence[str]) -> None:
    """Have the hosts `heard`, which answered, inform the hosts `missed` that the run is cancelled: these may come back,
    or be cut off only from this machine.
    """

    def pass_on(client: HostClient) -> None:
        """Ask one host to inform the others."""
        client.ask(PassOnCancel(run.id, client.place.workdir, tuple(missed)), type(None), limit_s=client.limits.soon_s)

    places = run_hosts.everywhere(run)
    for host, trouble in failures(ask_all([places[host] for host in heard], pass_on)).items():
        news.say(f"{host} does not tell the others: {trouble.lines[0]}")


def _not_waited_for(run: RunDir, results: Mapping[str, object], gone: Collection[str]) -> set[str]:
    """Return the hosts that do not answer and that a user has given up, in this call or earlier. `results` has each
    host's answer or error.

    Before that, record that hosts in `gone` that do not answer are given up, and that hosts that answered are not given
    up any more.
    """
    silent = {name for name, one in results.items() if isinstance(one, Unreachable)}
    run_hosts.take_back(run, results.keys() - silent)
    if lost := silent & set(gone):
        run_hosts.give_up(run, lost)
    return silent & run_hosts.gone(run)


def _not_ended(
    run: RunDir, troubles: Mapping[str, LaunchError], let_in: Collection[str], ended: Sequence[str]
) -> Unreachable:
    """Return the error that a cancelled run's ranks may be left on some hosts, with the reasons in `troubles`, by host.

    The message tells hosts in `let_in`, which accepted a connection but did not confirm the end, from hosts that could
    not be asked. Before that, what was ended on other hosts (the texts in `ended`) is printed.
    """
    for line in ended:
        news.say(f"ended {line}")
    shut = ", ".join(name for name in troubles if name not in let_in)
    asked = ", ".join(name for name in troubles if name in let_in)
    what = "; ".join([f"could not ask {shut}"] * bool(shut) + [f"asked {asked} in vain"] * bool(asked))
    hint = f"hint: launch cancel {run.path.name} again"
    if shut:
        hint += f", once {shut} can be reached"
    if any(isinstance(one, Unreachable) for one in troubles.values()):
        hint += f"; of a host that is gone for good: launch cancel {run.path.name} --gone HOST"
    return Unreachable(f"{what}: something of the run may be left there", *reasons(troubles), hint)


def _end_without(run: RunDir, missing: Collection[str], word: ClusterAnswer) -> bool:
    """Write on this machine that the run was cancelled without the hosts `missing`, and return True; return False if
    the run's end is already recorded on this machine, or there is no attempt of the run.

    `word` is the run's state as the other hosts report it; raise Unreachable if it says that hosts which may know how
    the run ended did not answer (`silent`).
    """
    last = newest(run)
    end = read_record(last.end, AttemptEnd) if last is not None else None
    if last is None or (end is not None and end.state.ended):
        return False
    if word.silent:
        hint = f"hint: launch cancel {run.path.name} again"
        raise Unreachable("nothing is left of it, but how it ended could not be asked", word.silent, hint)
    write_end(run, last, cancelled(f"cancelled, without {', '.join(sorted(missing))}"), read_plan(run, last.number))
    return True


def include_hosts(run: RunDir, hosts: Collection[str]) -> None:
    """Have the supervisors of an active run use excluded hosts again: the named ones, or all if `hosts` is empty.

    Excluded hosts need not answer. Raise Unreachable if another host could not be informed; the hosts are then included
    in this machine's records and on the hosts that did answer.
    """

    def forget(client: HostClient) -> None:
        """Include the hosts again on one host."""
        client.ask(IncludeHosts(run.id, client.place.workdir, tuple(hosts)), type(None), limit_s=client.limits.soon_s)

    troubles = failures(ask_all(places_of(run), forget))
    # Who was ever blamed may well be gone, whether or not that still counts.
    silent = sorted(troubles.keys() - {exclusion.host for exclusion in read_record(run.avoided, list[Exclusion]) or []})
    if silent:
        avoided.include(run, hosts)  # applies here at once, without waiting for hosts that are gone
        hint = f"hint: launch nodes include {run.path.name} again, once {', '.join(silent)} can be reached"
        raise Unreachable(f"could not tell {', '.join(silent)}", troubles[silent[0]].lines[0], hint)
