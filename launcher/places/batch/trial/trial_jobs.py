"""Submit the job of a trial (`launch doctor --try`), wait for it and end it, in batch queues of all kinds."""

import math
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from launcher.errors import Unreachable
from launcher.health.findings import Finding
from launcher.places.batch.batch import BatchSystem, Phase
from launcher.places.batch.client import Answer, error_lines
from launcher.places.batch.trial.checks import QueueNames, Trial, TrialJob, no_nodes_finding, refused_finding

LOOK_S, ASK_S = 0.05, 1.0
_SUBMIT_S = 30.0
_END_S = 45.0  # Slurm's KillWait, and then some


class NoTrial(Exception):
    """Raised if a trial is impossible; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


@dataclass(frozen=True)
class TrialJobs:
    """The batch queue in which trial jobs of `nodes` nodes are submitted and watched, with the commands for that.

    `ask` runs a command; `submits` is the submitting command, which gets the script on stdin; `on_each` is the shell
    command that runs {program} on each node; `began` is when the trial began, as Unix time.
    """

    queue: BatchSystem
    words: QueueNames  # names for messages
    ask: Callable[..., Answer]
    submits: Sequence[str]  # the submitting command, which reads the script from stdin
    on_each: str  # the shell command that runs {program} on each node
    nodes: int
    minutes: int  # time limit of the job
    began: float = field(default_factory=time.time)

    def submit(self, script: str) -> str:
        """Submit the script and return the job's id; raise NoTrial if it is refused."""
        answer = self.ask(self.submits, limit_s=_SUBMIT_S, stdin=script)
        job = self.queue.submitted(answer.out)
        if answer.code != 0 or job is None:
            lines = error_lines(self.words.submit, answer.err or answer.out)
            said = "; ".join(dict.fromkeys(lines)) or f"{self.words.submit} leaves with {answer.code}"
            raise NoTrial(refused_finding(said, self.words))
        return job

    def on_each_node(self, program: str) -> str:
        """Return a shell command that runs `program`, itself a shell command, on every node, with the node's name in
        $NODE.

        Each line that the program prints comes out with the node's number in the job and `: ` in front.
        """
        return self.on_each.format(program=shlex.quote(program))

    def look(self, job: str) -> TrialJob | None:
        """Return the job's state, or None if neither the queue nor the accounting shows the job."""
        found = next(iter(self.queue.jobs([job]) or self.queue.accounts([job], self.began)), None)
        if found is None:
            return None
        nodes_known = len(self.hosts(found.hosts)) >= self.nodes  # the first may be shown before the others are
        waits = found.phase in (Phase.QUEUED, Phase.UNKNOWN) or (found.phase is Phase.RUNNING and not nodes_known)
        word, why = ("RUNNING", "") if found.phase is Phase.RUNNING else (found.word, found.text)
        ended, code = found.phase is Phase.ENDED, found.exit_code or 0
        return TrialJob(waits, ended, word, why, found.hosts, found.starts_at, code)

    def hosts(self, nodes: str) -> tuple[str, ...]:
        """Return the names of the nodes in `nodes`, a list in the queue's own notation."""
        return tuple(filter(None, nodes.split(",")))

    def cancel(self, job: str) -> None:
        """End the trial job in the queue."""
        self.queue.cancel(job)


class JobOnTrial:
    """A submitted trial job, and its state as last read."""

    def __init__(self, queue: TrialJobs, job: str) -> None:
        self.id, self.began, self.state = job, time.monotonic(), TrialJob()
        self.queue, self._looked_at, self._turn = queue, -math.inf, threading.Lock()

    def look(self, *, every_s: float = 0.0) -> TrialJob:
        """Return the job's state; the queue is asked only if the last answer is older than `every_s`."""
        with self._turn:
            if time.monotonic() >= self._looked_at + every_s:
                self.state = self.queue.look(self.id) or replace(self.state, waits=False, has_ended=True)
                self._looked_at = time.monotonic()
            return self.state

    def wait_for_nodes(self, within_s: float, tell: Callable[[str], None]) -> None:
        """Wait until the job has its nodes, has ended or was requeued; raise NoTrial if it still waits `within_s`
        seconds after it was submitted. `tell` is called with a line when the reason for waiting changes.
        """
        deadline, told = self.began + within_s, ""
        while (state := self.look()).waits and not state.restarts:
            now = time.monotonic()
            if now >= deadline:
                raise NoTrial(no_nodes_finding(self.id, within_s, state.reason, state.starts_at, self.queue.words))
            if state.reason != told and now > self.began + ASK_S:
                told = state.reason
                tell(f"job {self.id} is pending: {told}")
            time.sleep(min(ASK_S / 2, max(LOOK_S, deadline - now)))

    def end(self, trial: Trial) -> bool:
        """End the job and return whether the queue shows it as ended; until then it may write into the folder, which
        the caller wants to remove. Raise Unreachable if the queue does not answer.

        If a node has sent its report (in `trial`), the job first gets a second to end by itself. Wait for its end up to
        45 seconds if any node has answered, else up to one second.
        """
        now = time.monotonic()
        # A job that has reported nothing, on a node that does not answer, may take as long as it likes.
        deadline = now + (_END_S if trial.seen else ASK_S)
        cancel_at = now + ASK_S if trial.reported else now  # with reports it is about to end by itself
        try:
            while not self.look().has_ended:
                now = time.monotonic()
                if now >= cancel_at:
                    self.queue.cancel(self.id)
                    cancel_at = math.inf
                elif now >= deadline:
                    return False
                time.sleep(LOOK_S)
        except Unreachable as error:
            hint = f"hint: job {self.id} may still wait or run: {self.queue.words.queue.ends} {self.id}"
            raise Unreachable(error.lines[0], hint) from error
        return True
