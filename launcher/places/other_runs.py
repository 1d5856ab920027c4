"""Read the state of other runs, on whatever cluster, for a run that waits for them. A cluster is asked about a run at
most every 15 seconds; in between its last answer counts.
"""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from launcher.errors import LaunchError
from launcher.places.kinds import kind_named, of_kind
from launcher.run.records import ClusterAnswer
from launcher.states import State
from launcher.status.derive import derive, state_text
from launcher.status.facts import RunFacts, read_facts
from launcher.supervisor.waiting import OtherRun

_ASK_S = 15.0  # how old the cluster's answer may be


class OtherRuns:
    """A reader of the states of runs that another run waits for. It reads their folders each time, and keeps the
    clusters' last answers.
    """

    def __init__(self) -> None:
        self._words: dict[Path, tuple[float, ClusterAnswer | None]] = {}

    def look(self, run_dir: Path) -> OtherRun:
        """Return the state of the run in the folder `run_dir`; its `state` is None if the folder does not exist.

        For a lost run of this machine, whose processes were all killed, first write its end if its records show one,
        else start it again, unless the machine was rebooted since.
        """
        if not run_dir.is_dir():
            return OtherRun(None)
        facts = read_facts(run_dir)
        status = derive(replace(facts, answer=self._answer(facts)))
        if status.state is State.LOST and facts.kind_to_query:  # what may have been brought back, or is to be
            self._words.pop(facts.attempt_dir[1].path, None)
            word = self._answer(facts)
            if word is None:
                _mend_here(facts)
            facts = read_facts(run_dir)
            status = derive(replace(facts, answer=word))
        return OtherRun(status.state, state_text(status), status.step)

    def _answer(self, facts: RunFacts) -> ClusterAnswer | None:
        """Return the cluster's answer about the run, the last one if that is less than 15 seconds old. Return None if
        the run's folder shows everything that the cluster could say. If the cluster does not answer, the result has the
        state `unknown` and the reason.
        """
        kind = kind_named(facts.kind_to_query) if facts.kind_to_query else None
        if kind is None or not kind.asked:
            return None
        _, attempt = facts.attempt_dir
        asked_at, word = self._words.get(attempt.path, (-_ASK_S, None))
        if time.monotonic() - asked_at >= _ASK_S:
            word = _asked(facts)
            self._words[attempt.path] = (time.monotonic(), word)
        return word


def _mend_here(facts: RunFacts) -> None:
    """End or continue a lost run of this machine, whose processes were all killed: write its end if that follows
    from its records; else start it again, unless the machine was rebooted since. An error is ignored, because the
    run's own status reports it.
    """
    with contextlib.suppress(LaunchError, OSError):
        of_kind(facts.kind_to_query).mend([facts.attempt_dir])


def _asked(facts: RunFacts) -> ClusterAnswer | None:
    """Return the cluster's answer about the run, or None if it knows no more than the run's folder shows. If it does
    not answer, return an answer with the state unknown, and the reason.

    If the process that submitted the run was killed, first complete its work, such as submitting the job.
    """
    try:
        place = of_kind(facts.kind_to_query)
        place.mend([facts.attempt_dir])  # its submitter may be gone, and no other command may look
        return place.look([facts.attempt_dir])[0]
    except LaunchError as error:
        return ClusterAnswer("unknown", "", 0.0, silent=str(error))
