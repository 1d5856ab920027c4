"""The trial job of `launch doctor`, as batch queues of all kinds have it; and what runs on each of its nodes.

python -m launcher.clusters.trial_jobs KIND FOLDER SECONDS NODE
"""

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.clusters.batch.client import Answer
from launcher.clusters.batch.cluster import queue_of
from launcher.clusters.batch.job.nodes import resolved
from launcher.clusters.batch.queue import Phase, Queue
from launcher.doctor.trial import NoTrial, answer_questions
from launcher.doctor.trial_checks import QueueWords, TrialJob, refused_finding
from launcher.errors import LaunchError

_SUBMIT_S = 30.0
_JOB = re.compile(r"^[ \t]*([0-9]{1,10})(?:;[\w.-]+)?[ \t\r]*$", re.MULTILINE)  # with Slurm's name of the cluster


@dataclass(frozen=True)
class TrialJobs:
    """A queue of this kind, for trials on so many nodes."""

    queue: Queue
    words: QueueWords
    ask: Callable[..., Answer]
    submits: Sequence[str]  # this command; it gets the script on its stdin
    on_each: str  # the shell command that runs a shell's program, which stands for {program}, on each node
    nodes: int
    began: float = field(default_factory=time.time)

    def submit(self, script: str) -> str:
        answer = self.ask(self.submits, limit_s=_SUBMIT_S, stdin=script)
        job = _JOB.search(answer.out)
        if answer.code != 0 or job is None:
            lines = (answer.err or answer.out).strip().splitlines()
            lines = [line.removeprefix(f"{self.words.submit}: ").removeprefix("error: ")[:200] for line in lines]
            said = "; ".join(dict.fromkeys(lines)) or f"{self.words.submit} leaves with {answer.code}"
            raise NoTrial(refused_finding(said, self.words))
        return job[1]

    def on_each_node(self, program: str) -> str:
        return self.on_each.format(program=shlex.quote(program))

    def look(self, job: str) -> TrialJob | None:
        found = next(iter(self.queue.jobs([job]) or self.queue.accounts([job], self.began)), None)
        if found is None:
            return None
        nodes_known = len(self.hosts(found.hosts)) >= self.nodes  # the first may be shown before the others are
        waits = found.phase in (Phase.QUEUED, Phase.UNKNOWN) or (found.phase is Phase.RUNNING and not nodes_known)
        word, why = ("RUNNING", "") if found.phase is Phase.RUNNING else (found.word, found.text)
        ended, code = found.phase is Phase.ENDED, found.exit_code or 0
        return TrialJob(waits, ended, word, why, found.hosts, found.starts_at, code)

    def hosts(self, nodes: str) -> tuple[str, ...]:
        return tuple(filter(None, nodes.split(",")))

    def cancel(self, job: str) -> None:
        self.queue.cancel(job)


def main() -> None:
    """Leaves with 0 where all was answered."""
    os.umask(0o077)
    kind, folder, limit_s, me = sys.argv[1:]
    try:
        address = queue_of(kind).hosts().get(me) or resolved(me, "hint: nodes have to know each other by name")
        answer_questions(Path(folder), float(limit_s), me, address)
    except LaunchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
