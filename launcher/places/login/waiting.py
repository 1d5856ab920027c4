"""Make a run wait on its login node's cluster for other runs, under the ids that these have there."""

import json
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from launcher.errors import LaunchError, Refused
from launcher.places.login.address import KIND, Address, address_of
from launcher.places.login.lines import ANSWER_S, ask, persistently
from launcher.places.login.messages import AskQueue, AskRunsFolder, ReleaseRun
from launcher.plan.facts import Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.run.attempts import newest
from launcher.run.durable import readable
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import Handle
from launcher.spec.model import Predecessor, QueueOptions
from launcher.supervisor.waiting import WAITS_HERE, not_followed

_USUAL = QueueOptions()


def queue_problems(address: Address, queue: QueueOptions, awaited: Sequence[AwaitedRun]) -> list[Misfit]:
    """Return a problem for each queue option, and each run to wait for, that the cluster behind the login node does not
    support; an empty list if it supports all.
    """
    if queue == _USUAL:
        return []
    follows, problems = list[Predecessor](), list[Misfit]()
    for index, one in enumerate(awaited):
        try:
            follows.append(_run_on_login_node(one, address))
        except LaunchError as error:
            problems.append(not_followed(index, error))
    if problems:
        return problems
    question = AskQueue(address.on, queue, tuple(follows))
    found = persistently(address, lambda line: line.ask(question, list[Misfit], timeout_s=ANSWER_S), without=())
    return [Misfit(one.key if one.key.startswith("queue.") else "queue", one.reason, one.hint) for one in found]


def remote_options(plan: Plan, address: Address, *, again: bool = False) -> tuple[str, ...]:
    """Return the overrides by which the run's copy on the login node waits as the plan on this machine says:
    `queue.after` for the same runs, under their ids there, and `queue.hold` as the plan has it (whether it waits until
    a user releases it). `queue.at=null` is added if the plan has no start time, to remove one that the spec's copy may
    have.

    Return an empty tuple if the plan sets no option of `queue`. With `again`, return the overrides even then, because
    the login node may still have the options of an earlier attempt. Raise Refused if a run to wait for is not on that
    node.
    """
    if not again and plan.spec.queue == _USUAL and not any(word.startswith("queue.") for word in plan.overrides):
        return ()
    follows = [str(_run_on_login_node(one, address)) for one in plan.awaited]
    after = f"queue.after={json.dumps(follows) if follows else 'null'}"
    at = () if plan.starts_at is not None else ("queue.at=null",)
    return (after, f"queue.hold={json.dumps(plan.spec.queue.hold)}", *at)


def runs_folder(address: Address) -> str:
    """Return the folder on the login node that contains the folders of all runs."""
    question = AskRunsFolder(address.folder)
    return persistently(address, lambda line: line.ask(question, str, timeout_s=ANSWER_S), without=())


def release(run: RunDir, attempt: AttemptDir) -> None:
    """Release the run on its login node, where it was submitted to be held. Raise Refused if it is not there yet, and
    another LaunchError if the login node does not answer or refuses.
    """
    handle = readable(attempt.handle, Handle)
    there = handle.run_there() if handle is not None else None
    if there is None:
        raise Refused(f"{run.id} is being handed to its login node", f"hint: launch status {run.id}")
    ask(address_of(run, attempt), ReleaseRun(there), type(None), timeout_s=ANSWER_S)


def _run_on_login_node(one: AwaitedRun, address: Address) -> Predecessor:
    """Return the condition to wait for the run `one`, with the id that this run has on the login node at `address`.

    Raise Refused if the run is not on that node.
    """
    run = RunDir(Path(one.run_dir))
    attempt = newest(run)
    handle = readable(attempt.handle, Handle) if attempt is not None else None
    there = handle.run_there() if handle is not None and handle.cluster_kind == KIND else None
    if attempt is None or there is None or not _shares_runs_folder(address_of(run, attempt), address):
        raise Refused(
            f"{one.run_id} is not on {address.login}, which waits for its own runs alone",
            f"hint: {WAITS_HERE}",
        )
    return replace(Predecessor(there), until=one.until, step=one.step)


def _shares_runs_folder(there: Address, address: Address) -> bool:
    """Return whether both addresses have the same folder of runs, as all clusters behind one login node have."""
    return (there.login, there.folder) == (address.login, address.folder)
