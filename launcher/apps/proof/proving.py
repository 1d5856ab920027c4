"""Carry out a whole proof: an undisturbed run, a disturbed run of each mode, and their comparison.

spec or run ─ target ─► undisturbed run ─ schedule ─► disturbed run of each mode ─ judging ─► exact; where not:
                                                       └ disturbing ─► kills        └ causes, by one more run
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from launcher import api
from launcher.api import Run
from launcher.apps.proof.disturbing import DisturbedRun
from launcher.apps.proof.findings import ComparedRun, Judgement, Proof
from launcher.apps.proof.judging import FinishedRun, finished, judged, with_causes
from launcher.apps.proof.schedule import MODES, Mode, held_at, planned
from launcher.apps.repeated_runs import (
    RepeatedJob,
    Tell,
    as_it_ran,
    gives,
    is_ours,
    job_of,
    name_of,
    steps_override,
    to_its_end,
)
from launcher.errors import BadInput, Refused
from launcher.ids import RunId, parse_run_id
from launcher.spec.model import RunOptions
from launcher.status.derive import exit_code_of

_LOGS = "log-every"
_KEPT = 1000  # checkpoints: the first that differs is looked for among all of them
# Killed again and again on purpose, and nobody is to hear of it.
_ALWAYS = (
    "sweep=null",
    "notify.to=[]",
    f"checkpoint.keep={_KEPT}",
    "recovery.no_progress=off",
    *(f"recovery.{cause}={{restarts: unlimited, backoff: 0s}}" for cause in ("killed", "communication", "node_lost")),
)

TAG = "prove"
HOLDS = "TRAINER_HOLDS"
_GRAVEST_FIRST = (Judgement.FAILED, Judgement.DIFFERS, Judgement.UNPROVEN, Judgement.EXACT)


def prove(
    ref: str, *, on: str | None = None, overrides: Sequence[str] = (), kills: int = 3, seed: int | None = None,
    modes: Sequence[str] = (), steps: int | None = None, metrics: Sequence[str] = (), keep: bool = False,
    tell: Tell = lambda _: None,
) -> Proof:  # fmt: skip
    """Return a verdict on whether the training of a spec or a run ends as undisturbed wherever it is killed. This
    takes as long as the training for each mode and once more. If interrupted, the active run is cancelled. Runs of an
    exact proof are removed, unless `keep`.
    """
    _refuse_unknown(modes)
    if kills < 1:
        raise BadInput(f"--kills: expected a number above 0, got {kills}")
    if steps is not None:
        planned(0, "", kills, steps)  # what cannot be is refused before anything is started
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    target = for_a_proof(job_of(ref, on=on, overrides=overrides), steps=steps, kills=kills)
    wish = target.request()
    chosen = _chosen(modes, wish.spec.recovery.mode)
    for mode in chosen.values():
        target.request(mode.overrides)
    return _Proving(target, name_of(wish), kills, seed, metrics, tell).carry_out(chosen, keep=keep)


def _refuse_unknown(names: Sequence[str]) -> None:
    """Raise BadInput for a mode that does not exist."""
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise BadInput(f"--modes: expected some of {', '.join(MODES)}, got {unknown[0][:100]!r}")


def _chosen(names: Sequence[str], recovery_mode: str) -> dict[str, Mode]:
    """Return the wanted modes, or those that suit the run's recovery mode."""
    if names:
        return {name: mode for name, mode in MODES.items() if name in names}
    usual = {name: mode for name, mode in MODES.items() if recovery_mode in mode.usual_for}
    return {
        name: mode if mode.usual_overrides is None else replace(mode, overrides=mode.usual_overrides)
        for name, mode in usual.items()
    }


@dataclass(slots=True)
class _Proving:
    """The runs of one proof, and what is known of them."""

    target: RepeatedJob
    id: RunId
    kills: int
    seed: int
    metrics: Sequence[str]
    tell: Tell
    runs: list[Run] = field(default_factory=list)
    once_more: list[FinishedRun | None] = field(default_factory=list)  # none before it is asked for

    def carry_out(self, modes: dict[str, Mode], *, keep: bool) -> Proof:
        """Make all runs of the proof and return the result."""
        began = time.monotonic()
        alone, run = self._undisturbed("alone")
        steps = alone.status.step or 0
        compared = tuple[ComparedRun, ...]()
        why = alone.failure or _too_short(steps)
        if not why:
            self.target = as_it_ran(run)  # whatever becomes of the project meanwhile
            compared = tuple(self._disturbed(name, mode, alone) for name, mode in modes.items())
        verdicts = [one.verdict for one in compared]
        if why:
            verdicts = [Judgement.FAILED if alone.failure else Judgement.UNPROVEN]
        verdict = min(verdicts, key=_GRAVEST_FIRST.index)
        if verdict is Judgement.EXACT and not keep:
            api.remove(self.runs)
            self.runs = []
        return Proof(
            self.id, self.seed, verdict, steps, run.id, alone.took_s, time.monotonic() - began,
            alone.status.fingerprint, exit_code_of(alone.status), compared, tuple(one.id for one in self.runs), why,
        )  # fmt: skip

    def _undisturbed(self, name: str) -> tuple[FinishedRun, Run]:
        """Make an undisturbed run and wait for its end."""
        run = self._start(name, ())
        return finished(run, to_its_end(run, run.wait, self.tell)), run

    def _disturbed(self, name: str, mode: Mode, alone: FinishedRun) -> ComparedRun:
        """Make a disturbed run and compare it with the undisturbed one."""
        plan = planned(self.seed, name, self.kills, alone.status.step or 0, alone.first_saved)
        holds = held_at(plan, max(1, len(alone.status.ranks)))
        run = self._start(name, (*mode.overrides, f"env.{HOLDS}={holds}"))
        disturbed = DisturbedRun(run, mode, self.tell, saves=alone.status.checkpoint is not None)
        kills = to_its_end(run, lambda: disturbed.strike(plan), self.tell)
        status = to_its_end(run, disturbed.finish, self.tell)
        ended = finished(run, status)
        found = judged(name, kills, ended, alone, self.metrics)
        if found.verdict is not Judgement.DIFFERS:
            return found
        self.tell(f"{name} differs: once more undisturbed, to see whether the training repeats itself")
        return with_causes(found, ended, alone, self._once_more(), self.metrics)

    def _once_more(self) -> FinishedRun | None:
        """Return a second undisturbed run, made at the first call, or None if it failed."""
        if not self.once_more:
            again, _ = self._undisturbed("again")
            self.once_more.append(None if again.failure else again)
        return self.once_more[0]

    def _start(self, name: str, more: Sequence[str]) -> Run:
        """Start a run of the proof."""
        run = self.target.start(parse_run_id(f"{self.id}-{name}"), more)
        self.runs.append(run)
        run.label(add=[TAG, self.id])
        self.tell(f"{name}: {run.id}")
        return run


def _too_short(steps: int) -> str:
    """Return why the training is too short to be killed, or ""."""
    return "" if steps > 1 else f"it reports {steps or 'no'} step{'s'[: steps != 1]}: nothing can be killed in between"


def for_a_proof(target: RepeatedJob, *, steps: int | None, kills: int) -> RepeatedJob:
    """Return the job with the settings that all runs of a proof share; the user's own overrides win. Raise BadInput
    or Refused.
    """
    wish = target.request(_ALWAYS)
    if not wish.cluster.supports_reach:
        raise Refused(f"--on {target.on}: no rank can be killed there", "hint: prove it on another cluster")
    words = [*_ALWAYS, *_logged(wish.spec.run)]
    if steps is not None:
        words += [
            steps_override(wish.spec.run, steps, wish.code.root),
            f"checkpoint.every={max(1, steps // (2 * kills + 2))} steps",
        ]
    return replace(target, overrides=(*words, *target.overrides))


def _logged(run: RunOptions) -> list[str]:
    """Return an override that logs metrics at each step, if the program supports it."""
    return [f"run.args.{_LOGS}=1"] if is_ours(run) or gives(run, _LOGS) else []
