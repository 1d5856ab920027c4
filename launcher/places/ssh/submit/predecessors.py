"""Find the hosts of a pool that can see the runs which a new one is to follow."""

from collections.abc import Sequence
from pathlib import Path

from launcher.errors import Refused
from launcher.places.ssh import run_hosts
from launcher.places.ssh.host_client import HostClient
from launcher.places.ssh.host_clients import ask_all
from launcher.places.ssh.messages import Release
from launcher.plan.facts import Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.remote.parallel import failures
from launcher.run.attempts import newest
from launcher.run.durable import readable
from launcher.run.layout import AttemptDir, RunDir
from launcher.spec.model import Ssh
from launcher.supervisor.waiting import WAITS_HERE, has_happened


def unseen(ssh: Ssh, awaited: Sequence[AwaitedRun]) -> list[Misfit]:
    """Return a list with the first problem with the runs `awaited`, for which a new one is to wait: one that no host of
    the pool sees, or one that no host sees together with all earlier ones of the list. Return [] if there is none.

    Runs whose end has come already, as this machine's records show, need not be seen.
    """
    common: set[str] | None = None
    for index, one in enumerate(awaited):
        if has_happened(one):
            continue
        seen = _seen_by(ssh, one)
        if not seen:
            return [
                Misfit(
                    f"queue.after.{index}", f"{one.run_id} is on no host of this pool, which would see it", WAITS_HERE
                )
            ]
        common = seen if common is None else common & seen
        if not common:
            others = ", ".join(before.run_id for before in awaited[:index])
            why = f"no host sees both {one.run_id} and {others}: each has a disk of its own"
            return [Misfit(f"queue.after.{index}", why, WAITS_HERE)]
    return []


def leaders_of(plan: Plan) -> set[str] | None:
    """Return the hosts that see the files of all runs for whose end the plan's run waits, so that one of them must be
    its first host.

    Return None if any host will do: the run waits for none, or for none that is on hosts of the pool. The set is empty
    if no host sees all of them. The result does not change when those runs end, because their files stay there.
    """
    first = readable(RunDir(Path(plan.run_dir)).plan, Plan)
    awaited = plan.awaited or (first.awaited if first is not None else ())
    seen = [hosts for one in awaited if (hosts := _seen_by(plan.spec.ssh, one))]
    return set.intersection(*seen) if seen else None


def release(run: RunDir, attempt: AttemptDir) -> None:
    """Release the run on its hosts, so that it need not wait for its user any more; raise Refused if it was not handed
    to any host yet, or Unreachable if one does not answer.
    """
    places = run_hosts.handed_to(run, attempt)
    if not places:
        raise Refused(f"{run.id} is being handed to its hosts", f"hint: launch status {run.id}")

    def tell(client: HostClient) -> None:
        """Release the run on one host."""
        client.ask(Release(run.id, client.place.workdir), type(None), limit_s=client.limits.soon_s)

    told = ask_all(places, tell)
    for error in failures(told).values():
        raise error


def _seen_by(ssh: Ssh, one: AwaitedRun) -> set[str]:
    """Return the names of the hosts of the pool `ssh` that can see the awaited run's files: those of them that the run
    was handed to, or all if they share a disk and the run was handed to one of them. None can if the run's newest
    attempt is not on a pool.
    """
    run = RunDir(Path(one.run_dir))
    attempt = newest(run)
    pool = {host.name for host in ssh.hosts}
    there = (
        {place.host.name for place in run_hosts.places_of(run)} if attempt and run_hosts.is_there(attempt) else set()
    )
    return pool if ssh.shared and there & pool else there & pool
