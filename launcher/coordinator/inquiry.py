"""Ask what all ranks are doing once they are silent for longer than their own steps explain, and act on it. Pure. A
generation is one set of ranks that train together. Every time `mono` is by the coordinator's monotonic clock. A look
(RankLook) is the record of what one rank was doing. A verdict is the conclusion from these, which names the ranks at
fault.

silent ─► Look to every node ─► Looked by each rank, or time is up ─► judged ─► shown in the run's status
                                                                     └─► ends the generation, where that is certain,
                                                                         or the silence has lasted for hang_after
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from statistics import median

import msgspec

from launcher.coordinator import hang, verdict
from launcher.coordinator.attempt import Attempt
from launcher.coordinator.closing import Closer
from launcher.coordinator.generation import Rank
from launcher.run.hangs import HangKind, HangReport, HangVerdict, RankLook
from launcher.wire import messages

LOOKED_S = 8.0  # from the question to all answers; a rank that does not answer takes its agent two to five
AGAIN_S = 5.0  # between a verdict and the next look at the same silence; twice as long each time
FLOOR_S, CEILING_S = 8.0, 300.0  # of a silence that is worth a look
_STEPS, _USUAL, _LONGEST = 50, 20.0, 3.0
_FRESH_S = 10.0  # a verdict that is not older needs no other look before the end
# What no time mends. Of the others a rank may be in a long validation, save or compilation.
_CERTAIN = frozenset({
    HangKind.DIFFERENT_COLLECTIVES, HangKind.DIFFERENT_SHAPES, HangKind.LEFT_EARLY, HangKind.DEAD_PEER,
})  # fmt: skip
_FROZEN_S = 60.0  # after which stopped ranks are not expected to be continued
_STOPPED_S = 1.0  # of a rank whose peers run: a debugger stops all ranks, not one for that long


class StepTimes:
    """The step times of a generation, from which follows how long its ranks may be silent before that is suspicious."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=_STEPS)
        self._longest_s = 0.0
        self._step: int | None = None
        self._moved_at: float | None = None

    def note(self, step: int | None, mono: float) -> bool:
        """Record the generation's newest step, or nothing if `step` is None; return True if it is later than all
        before.
        """
        if step is None or (self._step is not None and step <= self._step):
            return False
        if self._moved_at is not None and self._step is not None:
            gap_s = mono - self._moved_at
            self._gaps.append(gap_s / (step - self._step))
            self._longest_s = max(self._longest_s, gap_s)
        self._step, self._moved_at = step, mono
        return True

    def still_s(self, mono: float) -> float:
        """Return the seconds since the last new step, or infinity if no step was made."""
        return inf if self._moved_at is None else mono - self._moved_at

    def suspicious_s(self) -> float:
        """Return how many seconds ranks may be silent before they are inspected, between FLOOR_S and CEILING_S, and
        CEILING_S before three steps are known.

        The limit is a multiple of the median step's time, or of the longest pause so far if that gives more: that was
        a validation, a save or a compilation and may come again.
        """
        if len(self._gaps) < 2:
            return CEILING_S
        return min(CEILING_S, max(FLOOR_S, _USUAL * median(self._gaps), _LONGEST * self._longest_s))


class Inquiry:
    """The inspection of silent ranks of the open generation, which closes the generation if they hang."""

    def __init__(self, attempt: Attempt, closer: Closer) -> None:
        self._attempt, self._closer = attempt, closer
        self._generation = 0
        self._times = StepTimes()
        self._number = 0  # of the newest look
        self._hangs = 0  # that this attempt has a report of
        self._asked_at: float | None = None  # None: no look is under way
        self._looks = dict[int, RankLook]()
        self._awaited = set[int]()  # ranks that have not answered; some may have ended since
        self._found: HangVerdict | None = None  # of the present silence
        self._told = ""  # what is shown of it
        self._found_at = self._began_at = 0.0
        self._seen_twice = False
        self._pause_s = AGAIN_S
        self._active_from = -inf  # no reporting rank was last active before then
        self._ends = False  # some are silent for as long as they may be

    def receive(self, message: messages.Looked) -> None:
        """Record one rank's answer to `Look`: what the rank was doing."""
        if self._asked_at is not None and message.number == self._number:
            rank = self._attempt.current.rank_of(message.node, message.look.rank)
            if rank is not None and message.look.node == message.node:
                self._looks[rank.number] = message.look
                self._awaited.discard(rank.number)

    def end(self) -> None:
        """Make the next `check` close the generation as hung; it first inspects all ranks once more, unless its last
        conclusion is at most ten seconds old. The caller has found that ranks were silent for longer than the spec
        allows.
        """
        self._ends = True

    def check(self) -> None:
        """Ask all ranks what they are doing, if some are silent for longer than their earlier pauses explain, if a
        signal has stopped some while others run, or if `end` was called because the silence is longer than the spec
        allows.

        Judge their answers once all live ranks have answered, or after `LOOKED_S` seconds. Do nothing if the spec turns
        the detection of hangs off. Call this on every event while all ranks run.
        """
        attempt, mono = self._attempt, self._attempt.mono
        if attempt.rules.hang_after_s is None:
            return
        self._forget_if_outdated()
        if self._asked_at is not None:
            if not self._is_any_awaited() or mono - self._asked_at >= LOOKED_S:
                self._conclude(mono)
        elif self._ends and self._found is not None and mono - self._found_at <= _FRESH_S:
            self._close(attempt.current.suspects(mono))
        elif self._ends or (
            (self._is_silent(mono) or self._is_stopped(mono)) and mono - self._found_at > self._pause_s
        ):
            self._ask(mono)

    def _is_any_awaited(self) -> bool:
        """Return whether a rank that was asked what it is doing still runs and has not answered. Ranks that have ended
        are not waited for any more.
        """
        while self._awaited:
            number = next(iter(self._awaited))
            if self._attempt.current.ranks[number].live:
                return True
            self._awaited.discard(number)
        return False

    def next_check(self) -> float:
        """Return the time at which ranks that a signal has stopped are to be inspected: some seconds after the first
        one was stopped. Return inf if no live rank is stopped, or if all are.
        """
        return self._attempt.current.stopped_at() + _STOPPED_S

    def _is_stopped(self, mono: float) -> bool:
        """Return whether some ranks have been stopped by a signal while others ran, and no rank has made a step, for
        `_STOPPED_S` seconds.
        """
        return self.next_check() <= mono and self._times.still_s(mono) >= _STOPPED_S

    def _forget_if_outdated(self) -> None:
        """Drop the verdict if it is about an earlier generation, or if a new step was made since. A new step does not
        count once `end` was called, as the generation is then closed in any case.
        """
        attempt = self._attempt
        if attempt.current.number != self._generation:
            self._generation, self._times, self._active_from = attempt.current.number, StepTimes(), -inf
            self._forget()
        if self._times.note(attempt.pace.step if attempt.pace.moves else None, attempt.mono) and not self._ends:
            self._forget()

    def _forget(self) -> None:
        """Drop the last verdict on which ranks hang, and clear the message about it in the run's status."""
        if self._told and self._attempt.standing.message == self._told:
            self._attempt.standing.message = ""
        self._told = ""
        self._asked_at, self._found, self._found_at, self._seen_twice = None, None, -inf, False
        self._pause_s, self._ends = AGAIN_S, False

    def _is_silent(self, mono: float) -> bool:
        """Return whether, for longer than the pauses so far explain (`StepTimes.suspicious_s`), no rank has made a new
        step and at least one rank was silent. A rank that has reported nothing yet does not count as silent.
        """
        limit_s = self._times.suspicious_s()
        if self._times.still_s(mono) <= limit_s or mono - self._active_from <= limit_s:
            return False
        self._active_from = self._attempt.current.active_from(mono)
        return mono - self._active_from > limit_s

    def _silent_s(self, mono: float) -> float:
        """Return the seconds since the last new step, or since the rank that is silent for longest was last active,
        whichever is shorter. Ranks that have reported nothing yet do not count.
        """
        return min(mono - self._attempt.current.active_from(mono), self._times.still_s(mono))

    def _ask(self, mono: float) -> None:
        """Send `Look`, the question what its ranks are doing, to every reachable node with ranks, and begin to await an
        answer about each live rank.
        """
        attempt = self._attempt
        self._number += 1
        self._asked_at, self._looks = mono, {}
        self._awaited = {rank.number for rank in attempt.current.ranks if rank.live}
        if self._found is None:
            self._began_at = mono
        for index in attempt.current.members:
            if attempt.nodes[index].is_reachable:
                attempt.ledger.send(index, messages.Look(attempt.current.number, self._number))

    def _conclude(self, mono: float) -> None:
        """Judge by the looks that have come which ranks hang, keep the report, and show the verdict in the run's
        status. A live rank whose node sent no look counts as unknown.

        Close the generation if its ranks were silent for as long as the spec allows, or, where the spec permits to end
        hangs early, if waiting longer cannot help (`_is_certain`).
        """
        attempt, generation = self._attempt, self._attempt.current
        self._asked_at = None
        looks = [
            self._with_gpus(self._looks.get(rank.number) or _unseen(rank)) if rank.live else _ended(rank)
            for rank in generation.ranks
        ]
        found, before = hang.judge(looks), self._found
        self._seen_twice = before is not None and (before.kind, before.ranks) == (found.kind, found.ranks)
        if self._found is None:
            self._hangs += 1
        else:
            self._pause_s = min(CEILING_S, 2 * self._pause_s)
        self._found, self._found_at = found, mono
        if found.kind is not HangKind.UNKNOWN:
            attempt.standing.message = self._told = found.text
        report = HangReport(attempt.ledger.now.wall, attempt.ledger.attempt, generation.number, found, tuple(looks))
        attempt.ledger.keep_hang(self._hangs, msgspec.structs.replace(report, took_s=round(mono - self._began_at, 2)))
        if self._ends:
            self._close(generation.suspects(mono))
        elif attempt.rules.hang_auto and self._is_certain(found, mono):
            silent = generation.silent(mono, self._times.suspicious_s())
            self._close(silent or [generation.ranks[number] for number in found.ranks])

    def _with_gpus(self, look: RankLook) -> RankLook:
        """Return `look` with the load of the rank's GPUs added, from the node's newest sample, if there is one."""
        load = self._attempt.nodes[look.node].load
        if load is None:
            return look
        own = {index for rank in load.ranks if rank.rank == look.rank for index in rank.gpus}
        busy = tuple(gpu.busy for gpu in load.gpus if gpu.index in own and gpu.busy is not None)
        return msgspec.structs.replace(look, gpus_busy=busy)

    def _is_certain(self, found: HangVerdict, mono: float) -> bool:
        """Return whether waiting longer cannot help, so that the generation is to be closed for the verdict `found`.

        That is so in three cases. Two inspections in a row gave the same verdict, of a kind that time does not mend,
        such as a mismatch of collectives. A signal has stopped all ranks at fault, and for some seconds ranks have been
        stopped while others ran and no step was made. Or two inspections in a row found the same ranks frozen, a signal
        has stopped some of them, and the generation has been silent for a minute.
        """
        if found.kind is HangKind.FROZEN:
            stopped = [self._looks[rank].state == "T" for rank in found.ranks if rank in self._looks]
            if stopped and all(stopped) and self._is_stopped(mono):  # heartbeats and this look say the same
                return True
            return self._seen_twice and any(stopped) and self._silent_s(mono) >= _FROZEN_S
        return self._seen_twice and found.kind in _CERTAIN

    def _close(self, suspects: Sequence[Rank]) -> None:
        """Drop the conclusion about who hangs, and close the generation for a hang of those `suspects` that are live;
        if none is, leave it open.
        """
        attempt, found = self._attempt, self._found
        live = [rank for rank in suspects if rank.live]
        self._forget()
        if live:
            self._closer.close(verdict.of_hang(attempt.current, live, attempt.mono, found), hung=live)


def _unseen(rank: Rank) -> RankLook:
    """Return the record of what a rank was doing (unknown) for a rank whose node did not answer `Look`."""
    return RankLook(rank.number, rank.node, rank.pid or 0, problem="its node did not answer", step=rank.step)


def _ended(rank: Rank) -> RankLook:
    """Return the record of what a rank was doing (nothing) for a rank that has ended."""
    end = rank.exit
    code, signal = (end.code, end.signal) if end is not None else (None, None)
    return RankLook(rank.number, rank.node, rank.pid or 0, ended=True, exit_code=code, exit_signal=signal)
