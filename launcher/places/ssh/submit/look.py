"""Mirror the run's folders on its hosts in its folder here, which keeps the copies while hosts do not answer."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from launcher.errors import LaunchError
from launcher.places.ssh import run_hosts
from launcher.places.ssh.host_client import Place
from launcher.places.ssh.messages import RunReport
from launcher.places.ssh.run_hosts import handed_to, places_of
from launcher.places.ssh.submit import discovery
from launcher.places.ssh.submit.report import HostReport, ask_reports, best_of, keep, with_the_run
from launcher.plan.model import Plan
from launcher.plan.on_hosts import least_hosts
from launcher.remote.parallel import AT_ONCE, answers, failures, for_all, reasons
from launcher.run import registry
from launcher.run.attempts import last_attempt, last_seen, read_plan
from launcher.run.durable import write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterAnswer
from launcher.states import State
from launcher.supervisor.handover import Handover, is_open

T = TypeVar("T")


Asked = tuple[RunDir, AttemptDir]
_MAY_TAKE_OVER = 2  # hosts; one is never more than half of those that count


def look(wanted: Sequence[Asked], not_mended: Mapping[str, LaunchError] | None = None) -> list[ClusterAnswer | None]:
    """Return the state of each attempt in `wanted` as its hosts report it, in their order, or None while the attempt is
    being handed over to them; copy the hosts' records.

    If one run cannot be queried, the state in its place has the reason. If an attempt's submitter died before it had
    handed the attempt to its hosts, the caller has tried to do that now; `not_mended` has the error of each try that
    failed, by the attempt's folder.
    """
    why_not = not_mended or {}
    words = each(wanted, lambda run, attempt: _looked(run, attempt, why_not.get(str(attempt.path))))
    return [_as_answer(words[str(attempt.path)]) for _, attempt in wanted]


def each(wanted: Sequence[Asked], work: Callable[[RunDir, AttemptDir], T]) -> dict[str, T | LaunchError]:
    """Call `work` for each attempt, some of them at the same time, and return the results by the path of the attempt's
    folder. An attempt for which `work` raised has the error instead; any other than a LaunchError is made one.
    """

    def done(_: str, pair: Asked) -> T:
        """Return the result for one attempt."""
        try:
            return work(*pair)
        except LaunchError:
            raise
        except Exception as error:
            raise LaunchError(f"{pair[0].path}: {type(error).__name__}: {error}") from error

    return for_all({str(attempt.path): (run, attempt) for run, attempt in wanted}, done, at_once=AT_ONCE)


def _as_answer(word: ClusterAnswer | LaunchError | None) -> ClusterAnswer | None:
    """Return `word` itself, or instead of an error a ClusterAnswer of unknown state, which has the error's first line
    as `silent`.
    """
    return ClusterAnswer("unknown", "", 0.0, silent=word.lines[0]) if isinstance(word, LaunchError) else word


def _looked(run: RunDir, attempt: AttemptDir, why_not: LaunchError | None) -> ClusterAnswer | None:
    """Return the state of one run, or None while its submitter, the process that sends the attempt to the pool's hosts,
    is still doing that.

    `why_not` is the reason why the attempt of a submitter that has died could not be sent to its hosts now, or None if
    it could or that was not tried. The answer gives it as the reason why there is no newer state.
    """
    if is_open(run, attempt):
        handover = Handover.of(run, attempt)
        if handover.is_in_hand():
            return None
        if (word := _of_open(run, attempt, handover, why_not)) is not None:
            return word
    return judge(run, attempt)


def judge(run: RunDir, attempt: AttemptDir) -> ClusterAnswer:
    """Ask the run's hosts for reports and return the run's state by the report that knows most. Write the records in
    that report to the run's folder here, but copy no logs or other files.

    The leader is asked first, and the other hosts only if its report does not show that this attempt goes on.
    """
    plan = read_plan(run, last_attempt(run).number)
    places = _leader_first(plan, places_of(run))
    said = ask_reports(run, places[:1])
    if not any(one.lives and one.is_of(attempt) and not one.head.stale for one in with_the_run(said)):
        said |= ask_reports(run, places[1:])
        if registry.is_adopted(run.path) and not any(one.lives for one in with_the_run(said)):
            return _of_another_machine(run, attempt, plan, said)
    return _judged(run, attempt, plan, said)


def _of_another_machine(
    run: RunDir, attempt: AttemptDir, plan: Plan, said: Mapping[str, HostReport | LaunchError]
) -> ClusterAnswer:
    """Return the state of a run that another machine submitted, and may have resumed on further hosts of the pool.
    `said` has the report, or the error, of each host on which this machine knows the run to be.

    If one of these reports says that the run succeeded, that is its state. Otherwise the pool's other hosts are asked,
    too, and the state is that of a newer attempt which they report, if there is one. If they report none, and one of
    them does not answer, return the state last seen.
    """
    best = best_of(with_the_run(said), apart=plan.disks_apart)
    if best is not None and best.head.state is State.SUCCEEDED:
        return _judged(run, attempt, plan, said)
    others = discovery.rest_of_pool(run, plan.spec.ssh)
    heard = ask_reports(run, [*answers(others).values()])
    newer = best_of([one for one in with_the_run(heard) if best is None or one.head.attempt > best.head.attempt])
    if newer is not None:
        begun, there = newer.head.begun, run.attempt(newer.head.attempt)
        hosts = (*(begun.hosts if begun is not None else ()), newer.host)
        discovery.follow(there, hosts, run_hosts.everywhere(run) | answers(others))
        return judge(run, there)
    silent = reasons(failures(others) | failures(heard))
    return _unanswered(attempt, silent, best) if silent else _judged(run, attempt, plan, said)


def _judged(
    run: RunDir, attempt: AttemptDir, plan: Plan, said: Mapping[str, HostReport | LaunchError]
) -> ClusterAnswer:
    """Return the run's state from the best of the hosts' reports, after keeping that report in the run's folder here:
    one of the newest attempt, preferably of its end (see `best_of`). `said` has each host's report, or why it did not
    answer.

    In two cases no report is kept. If a host that did not answer may have a newer report, the last recorded answer is
    returned, marked as old; if all hosts answer and none knows the attempt, the run is lost.
    """
    silent = reasons(failures(said))
    best = best_of(with_the_run(said), apart=plan.disks_apart)
    if best is None or not best.is_of(attempt):
        if silent:
            return _unanswered(attempt, silent, best)
        text = "its hosts know nothing of it any more"
        return ClusterAnswer("ended", "", time.time(), text=text, ended_as=State.LOST)
    if silent and not best.lives and not _settles(best, plan, said):
        return _unanswered(attempt, silent, best)
    keep(run, best)
    word = replace(_word(best.head), unsupervised=best.host if best.lives and not best.head.supervised else "")
    write_record(run.attempt(best.head.attempt).seen, word)
    return word


def _settles(best: HostReport, plan: Plan, said: Mapping[str, HostReport | LaunchError]) -> bool:
    """Return whether hosts that do not answer cannot change what the best report says. `said` has each host's report,
    or the error in its place.

    They cannot if `best` reports that the run has succeeded, or that it has ended and the hosts share a disk. Else they
    cannot if half of the hosts report the end, or if the silent ones are too few to have continued the run: fewer than
    two, or than the run's least number of hosts.

    Return False in any case if `best` has no state, or one after which a host may continue without the others knowing
    it: lost, unknown or cancelled; likewise if the run has not ended and its leader reports nothing of this attempt.
    """
    if best.head.state in (None, State.LOST, State.UNKNOWN, State.CANCELLED):
        return False
    if best.has_ended and (best.head.state is State.SUCCEEDED or not plan.disks_apart):
        return True
    of_it = [one for one in with_the_run(said) if one.head.attempt == best.head.attempt]
    if not best.has_ended and best.leader not in {one.host for one in of_it}:
        return False
    agreed = sum(one.has_ended for one in of_it)
    return 2 * agreed >= len(said) or len(said) - len(with_the_run(said)) < max(_MAY_TAKE_OVER, least_hosts(plan))


def _of_open(run: RunDir, attempt: AttemptDir, handover: Handover, why_not: LaunchError | None) -> ClusterAnswer | None:
    """Return the state of an attempt whose submitter is gone and has not recorded that it was handed to its hosts. It
    is queued if another process hands it over now; otherwise it is the state last seen, with the reason why hosts do
    not answer or why there was no handover. Return None if one of its hosts has begun the attempt nevertheless.

    `why_not` is why the attempt could not be handed over now, or None if that was not tried.
    """
    if handover.is_locked():
        return ClusterAnswer("queued", "", time.time(), text="it is being handed to its hosts")
    said = ask_reports(run, handed_to(run, attempt))
    if any(one.has_begun(attempt) for one in with_the_run(said)):
        return None
    never = "it was never handed over" + (f": {why_not.lines[0]}" if why_not is not None else "")
    return _unanswered(attempt, reasons(failures(said)) or [never], None)


def _unanswered(attempt: AttemptDir, silent: Sequence[str], best: HostReport | None) -> ClusterAnswer:
    """Return the answer that was last recorded about the attempt, with the reason why there is no newer one, such as
    that hosts which may know better do not answer.

    `silent` has the reasons, one text for each such host. `best` is the report that knows most among those of the other
    hosts, or None; only its state is used, and mentioned in the reason.
    """
    why = silent[0] if len(silent) == 1 else f"{len(silent)} of its hosts do not answer: {'; '.join(silent)}"
    if best is not None and best.head.state is State.CANCELLED:
        why = f"{why}; the others say CANCELLED, without a word of those that it has ended there and holds no slots"
    elif best is not None and best.head.state is not None:
        why = f"{why}; the others, who may not know better, say {best.head.state.upper()}"
    return last_seen(attempt, why)


def _leader_first(plan: Plan, places: Sequence[Place]) -> list[Place]:
    """Return the hosts in the order of `plan`, in which the leader is first; hosts that the plan lacks are last."""
    order = [node.host for node in plan.nodes]
    return sorted(places, key=lambda place: order.index(place.host.name) if place.host.name in order else len(order))


def _word(said: RunReport) -> ClusterAnswer:
    """Return the run's state in a host's report as a ClusterAnswer. A run that has ended counts as running while the
    host has more of its events to send.
    """
    now = time.time()
    match said.state:
        case State.QUEUED:
            return ClusterAnswer("queued", "QUEUED", now, text=said.message)
        case State.LOST:
            return ClusterAnswer("ended", "LOST", now, text=said.message, ended_as=State.LOST)
        case State.UNKNOWN | None:
            return ClusterAnswer("unknown", "UNKNOWN", now, text=said.message)
        case state if state.ended and said.more:
            return ClusterAnswer("running", State.RUNNING.upper(), now, text="it has ended, and its events are coming")
        case state:
            return ClusterAnswer("running", state.upper(), now, text=said.message if said.stale else "")
