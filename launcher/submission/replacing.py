"""Replace lost hosts of a run on a pool, which is a list of SSH hosts. The clusters file may have a command that names
the pool's hosts; it is run when the run is resumed, and while a command such as `launch wait` follows a run with too
few hosts.
"""

import time
from collections.abc import Callable, Collection

from msgspec.structs import replace

from launcher.copies import news
from launcher.errors import LaunchError
from launcher.plan.model import Plan
from launcher.plan.on_hosts import least_hosts, most_of_a_host
from launcher.run.attempts import newest, read_plan
from launcher.run.layout import RunDir
from launcher.spec.model import Ssh
from launcher.states import Cause, State
from launcher.status.derive import RunStatus

ASK_EVERY_S = 30.0  # a cloud takes minutes to start a machine, and limits how often it can be asked


def listed_now(plan: Plan) -> Ssh | None:
    """Return the pool of the run with the hosts that the pool's command names now.

    Return None if hosts are not named by a command. Raise LaunchError if the command fails.
    """
    from launcher.places.clusters_file import ClusterEntry, as_reached_now, is_pool, pool_of  # late: it reads YAML

    then = ClusterEntry(plan.cluster_kind, plan.cluster, plan.defaults)
    if not is_pool(plan.cluster_kind) or pool_of(then).hosts != plan.spec.ssh.hosts:
        return None  # the spec names its own
    now = as_reached_now(then)
    return replace(plan.spec.ssh, hosts=pool_of(now).hosts) if now.hosts is not None else None


def unlisted(run: RunDir) -> set[str]:
    """Return the hosts of the run that its pool's command names no longer, which therefore count as gone for good.

    The set is empty if hosts are not named by a command. Raise LaunchError if the command fails.
    """
    from launcher.places.ssh.run_hosts import places_ever  # late: of pools alone

    attempt = newest(run)
    pool = listed_now(read_plan(run, attempt.number)) if attempt is not None else None
    return places_ever(run).keys() - _names(pool) if pool is not None else set()


class Replacement:
    """Resumes a run that has ended for lack of hosts, once the pool's command names others, by a call of `resume`.

    A command that follows the run, such as `launch wait`, calls `poll` with each status that it reads; the pool's
    command is run at most every `every_s` seconds.
    """

    def __init__(self, run: RunDir, resume: Callable[[], object], every_s: float = ASK_EVERY_S) -> None:
        self._run, self._resume, self._every_s = run, resume, every_s
        self._lived = False  # an end that was there before is for a person to go on from
        self._resumed = 0
        self._until: float | None = None
        self._next = 0.0
        self._why = ""

    def poll(self, status: RunStatus) -> RunStatus:
        """Resume the run if it lacks hosts and the pool's command names enough usable ones by now; return the status to
        show to the user.

        A run lacks hosts if it has ended for that cause, or if its state is unknown and none of its hosts can continue
        it. After such an end the state shown is `queued` for `recovery.gone_after`, while other hosts may still come,
        and only if fewer resumes were made than `recovery.node_lost` allows restarts. Otherwise `status` is returned
        unchanged, also for a run that had ended before the first call.
        """
        lacks_hosts = status.cause is Cause.NODE_LOST and status.state in (State.FAILED, State.INTERRUPTED)
        if not lacks_hosts and status.state is not State.UNKNOWN:
            self._lived, self._until = self._lived or not status.state.ended, None
            return status
        if not self._lived:
            return status
        plan, now = read_plan(self._run, status.attempt), time.monotonic()
        if self._until is None:
            most = plan.spec.recovery.node_lost.restarts
            spent = most is not None and self._resumed >= most
            self._until, self._next = now if spent else now + plan.spec.recovery.gone_after_s, now
        if self._next <= now < self._until:
            self._next = now + self._every_s
            try:
                self._replace(plan, status.state)
            except LaunchError as error:
                self._why = error.lines[0]
            if self._why:
                news.say(f"{status.run}: {self._why}")
        if status.state.ended and now < self._until:
            return replace(status, state=State.QUEUED, exit_code=None, ended_at=None, message=self._why)
        return status

    def _replace(self, plan: Plan, state: State) -> None:
        """Resume the run if the pool's command names other hosts, enough of its hosts are usable (as many as the plan
        needs at least), and no host of the run can continue it; otherwise keep the reason in `_why`, for the user.

        `plan` and `state` are those of the newest attempt. Raise LaunchError if the command or the resume fails.
        """
        from launcher.places.kinds import of_kind  # late: of pools alone
        from launcher.places.ssh.run_hosts import places_of  # late: likewise
        from launcher.places.ssh.submit.report import ask_reports, with_the_run  # late: likewise

        pool = listed_now(plan)
        if pool is None:
            self._until, self._why = 0.0, ""
            return
        places = places_of(self._run)
        there, listed = {place.host.name for place in places}, _names(pool)
        self._why = f"waits until the command of {plan.cluster} names hosts in place of lost ones"
        if not listed - there:
            return
        reports = with_the_run(ask_reports(self._run, [place for place in places if place.host.name in listed]))
        over = {one.host for one in reports if one.head.state is not None and one.head.state.ended}
        if not may_replace(state, there, listed, over):
            self._why = "waits for lost hosts, which may go on where they are as long as the command names them"
            return
        hosts = of_kind(plan.cluster_kind).hosts_now(replace(plan.spec, ssh=pool))
        usable = {one.host for one in hosts if one.gpus is not None and one.gpus >= most_of_a_host(plan).gpus}
        if len(usable) < least_hosts(plan) or not usable - there:
            self._why = f"waits for hosts that can be used: {len(usable)} of at least {least_hosts(plan)}"
            return
        self._resume()
        self._resumed += 1
        self._why = f"resumed on {plan.cluster}, whose command names {', '.join(sorted(usable - there))} by now"


def may_replace(state: State, there: Collection[str], listed: Collection[str], over: Collection[str]) -> bool:
    """Return whether no host of the run can continue it, so that it may be resumed on others.

    `there` are the hosts of the run, `listed` those that the pool's command names now, and `over` those that have
    reported the run's end. It is True if the run's `state` is failed, as most hosts have agreed, or if some of its
    hosts are no longer listed and all that still are have reported the run's end.
    """
    left = {*there} & {*listed}
    return state is State.FAILED or (left < {*there} and left <= {*over})


def _names(pool: Ssh) -> set[str]:
    """Return the names of the pool's hosts."""
    return {host.name for host in pool.hosts}
