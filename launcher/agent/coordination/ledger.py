"""What the coordinator says in answer to one event, and the moment at which it says it."""

from launcher.agent.coordination.effects import Finish, Now, Out, Record, RecordExit, Send
from launcher.agent.coordination.pace import Pace
from launcher.agent.messages import ToAgent
from launcher.rundir.records import AttemptEnd, Event, RankExit
from launcher.words import Cause


class Ledger:
    def __init__(self, attempt: int, pace: Pace, now: Now) -> None:
        self.attempt = attempt
        self.generation = 0  # the newest
        self.opened_at = now.mono  # when it was
        self.now = now
        self.out: list[Out] = []
        self._pace = pace

    @property
    def mono(self) -> float:
        return self.now.mono

    def turn(self, now: Now) -> None:
        """A new event, a new page."""
        self.now, self.out = now, []

    def send(self, node: int, message: ToAgent) -> None:
        self.out.append(Send(node, message))

    def record(
        self,
        kind: str,
        text: str,
        *,
        node: int | None = None,
        rank: int | None = None,
        cause: Cause | None = None,
        where: str | None = None,
        evidence: str = "",
    ) -> Event:
        """One line of events.jsonl, with how far the run had come."""
        event = Event(
            at=self.now.wall,
            attempt=self.attempt,
            kind=kind,
            text=text,
            generation=self.generation,
            node=node,
            rank=rank,
            cause=cause,
            where=where,
            step=self._pace.step,
            checkpoint=self._pace.checkpoint,
            ran_s=round(self.mono - self.opened_at, 1) if kind == "failure" else 0.0,
            evidence=evidence,
        )
        self.out.append(Record(event))
        return event

    def record_exit(self, end: RankExit) -> None:
        self.out.append(RecordExit(end))

    def finish(self, end: AttemptEnd) -> None:
        self.out.append(Finish(end))
