"""Move ranks off nodes that an administrator drains under a running job, as after `launch nodes drain`.

A scheduler does not inform a job about that and lets it end where it is. So the batch process asks twice a minute about
all nodes at once, and only if the run has a spare to move to.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from launcher.errors import Unreachable
from launcher.places.batch.batch import LIMIT_S, BatchSystem
from launcher.plan.model import Plan
from launcher.run.draining import ask_to_drain
from launcher.run.layout import AttemptDir

_LOOK_S = 30.0
_MOST = 200  # characters of what an administrator gives as the reason


@contextmanager
def watched_for_drains(queue: BatchSystem, attempt: AttemptDir, plan: Plan, look_s: float = _LOOK_S) -> Iterator[None]:
    """Watch for drained nodes in a thread while the attempt runs, because a scheduler may answer slowly."""
    if len(plan.nodes) <= plan.nodes_max:
        yield
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(queue, attempt, plan, look_s, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(LIMIT_S)


def _watch(queue: BatchSystem, attempt: AttemptDir, plan: Plan, look_s: float, over: threading.Event) -> None:
    """Ask for drained nodes at intervals, until `over` is set."""
    told = set[int]()
    while not over.wait(look_s):
        told |= note_drains(queue, attempt, plan, told)


def note_drains(queue: BatchSystem, attempt: AttemptDir, plan: Plan, told: Collection[int] = ()) -> set[int]:
    """Ask the coordinator to drain nodes that the scheduler drains, besides those in `told`; return the new ones.

    A node that is taken into use again gets no ranks until the next attempt. Nothing is new if the scheduler does not
    answer.
    """
    hosts = {node.host: node.index for node in plan.nodes}
    try:
        words = queue.nodes([*hosts])
    except Unreachable:
        return set()
    found = {hosts[host]: f"the scheduler says {word.text}"[:_MOST] for host, word in words.items() if word.drains}
    new = {index: why for index, why in found.items() if index not in told}
    if new:
        ask_to_drain(attempt, new)
    return set(new)
