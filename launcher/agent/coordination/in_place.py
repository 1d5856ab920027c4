"""recovery.mode hot: a rank was killed, and the ranks that live keep their processes in the next generation.

Only what died is started anew, and who was yet to meet the others when another one died. The ranks themselves see to it
that no step is lost; where one of them cannot, it fails, and then all are replaced, as after any other failure.
"""

from math import inf

from launcher.agent.coordination import verdict
from launcher.agent.coordination.attempt import Attempt, AttemptPhase
from launcher.agent.coordination.closing import Aftermath
from launcher.agent.coordination.generation import Generation, Rank
from launcher.agent.coordination.opening import START_S, Search, silence_of, starts
from launcher.agent.messages import GoOn
from launcher.recovery.classify import classify, failed
from launcher.words import Cause

_HOT = "hot"


class HotOpener:
    """Opens a generation after a failure without closing the one before it, where that can be."""

    def __init__(self, attempt: Attempt, aftermath: Aftermath) -> None:
        self._attempt = attempt
        self._aftermath = aftermath

    def go_on(self) -> bool:
        """After a rank has failed by itself. False: all have to be replaced; why is told with what follows."""
        attempt = self._attempt
        if attempt.rules.mode != _HOT:
            return False
        if self._starts_in_place:
            return True  # it is asked again once all of its ranks have started
        attempt.warm_because = self._obstacle()
        if attempt.warm_because:
            return False
        found = verdict.of_exits(attempt.current, preempting=False)
        if not self._aftermath.goes_on_in_place(found, _who(attempt.current)):
            attempt.warm_because = "there were several kills without a step in between"
            return False
        self._open()
        return True

    @property
    def _starts_in_place(self) -> bool:
        attempt = self._attempt
        return attempt.phase is AttemptPhase.STARTING and any(rank.joins for rank in attempt.current.ranks)

    def _obstacle(self) -> str:
        attempt, generation = self._attempt, self._attempt.current
        if attempt.phase is not AttemptPhase.RUNNING:
            return "the generation had just begun"
        if attempt.plan.disks_apart:
            return "each node has a disk of its own"
        if generation.returned or not all(attempt.nodes[index].hears_us for index in generation.members):
            return "a node was cut off"
        gone = [rank for rank in generation.ranks if not rank.live]
        if len(gone) == len(generation.ranks):
            return "no rank is left"
        for rank in gone:
            if rank.exit is None or not failed(rank.exit):
                return f"rank {rank.number} had left"
            cause = classify(rank.exit)
            if cause is not Cause.KILLED and not (_is_to_meet(rank) and cause is Cause.COMMUNICATION):
                return f"rank {rank.number} was not killed"
        live = [rank for rank in generation.ranks if rank.live]
        unable = next((rank for rank in live if not rank.stays and not _is_to_meet(rank)), None)
        if unable is not None:
            return f"rank {unable.number} has not said that its training can go on in place"
        return "" if any(rank.stays for rank in live) else "no rank is left that has the state of the training"

    def _open(self) -> None:
        attempt, before = self._attempt, self._attempt.current
        number, each = before.number + 1, attempt.plan.ranks_per_node
        generation = Generation(number, before.members, each, silence_of(attempt), attempt.mono)
        for rank, was in zip(generation.ranks, before.ranks, strict=True):
            rank.stays, rank.joins = (True, False) if _stays(was) else (None, True)
        attempt.generation, attempt.phase = generation, AttemptPhase.STARTING
        attempt.start_by, attempt.blame_at = attempt.mono + START_S, inf
        attempt.pace.restart(in_place=True)
        generation.led = True  # ranks that meet in place look for rank 0 again at once
        ledger = attempt.ledger
        ledger.generation, ledger.opened_at = number, ledger.mono
        attempt.standing.message = f"generation {number} starts"
        ledger.record("generation_opened", f"generation {number}: {_who(before)}")
        members = [attempt.nodes[index] for index in generation.members]
        restarts = sum(attempt.standing.restarts.values())
        for index, start in starts(number, members, each, restarts, Search()):
            attempt.nodes[index].holds = number
            attempt.nodes.settle(attempt.nodes[index])
            stay = tuple(rank.number for rank in before.of_node(index) if _stays(rank))
            ledger.send(index, GoOn(start, stay))


def _who(generation: Generation) -> str:
    """`rank 2 is started anew, the other 3 stay`."""
    gone = [str(rank.number) for rank in generation.ranks if not _stays(rank)]
    new = f"rank {gone[0]} is" if len(gone) == 1 else f"ranks {', '.join(gone)} are"
    return f"{new} started anew, the other {len(generation.ranks) - len(gone)} stay"


def _stays(rank: Rank) -> bool:
    return rank.live and rank.stays is True


def _is_to_meet(rank: Rank) -> bool:
    """It was started to meet ranks that have the state of the training, and has not taken it from them so far."""
    return rank.joins and rank.stays is None
