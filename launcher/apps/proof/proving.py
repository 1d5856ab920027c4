"""Carry out `launch prove`: make an undisturbed run, then a run with kills for each mode, and compare each with the
first. If one differs, another undisturbed run shows whether the training repeats itself at all.

spec or run ─ target ─► undisturbed run ─ schedule ─► disturbed run of each mode ─ judging ─► exact; where not:
                                                       └ disturbing ─► kills        └ causes, by one more run
"""

import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from launcher import api
from launcher.api import WATCH_S, Run
from launcher.apps.proof.findings import ComparedRun, Judgement, Kill, Proof
from launcher.apps.proof.judging import FinishedRun, finished, judged, with_causes
from launcher.apps.proof.schedule import MODES, Mode, PlannedKill, held_at, planned
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
from launcher.errors import BadInput, LaunchError, Refused
from launcher.ids import RunId, parse_run_id
from launcher.node.inside.visit import Visit
from launcher.node.inside.visit_messages import KillHere
from launcher.run.durable import read_lines
from launcher.run.layout import RunDir
from launcher.run.records import Event
from launcher.spec.model import RunOptions
from launcher.states import State
from launcher.status.derive import RunStatus, exit_code_of
from launcher.status.series import newest_reported

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
_LOOK_S = 0.02
_GONE = "it had ended"
_OVER = "the training was over first"


class DisturbedRun:
    """A run in which ranks or whole nodes are killed at planned steps: call `strike` with the kills, then `finish`,
    which waits for the run's end. A run that ends because a whole node was killed is resumed.
    """

    def __init__(self, run: Run, mode: Mode, tell: Tell, *, saves: bool) -> None:
        """Prepare to disturb a run; `saves` says that the training reports its checkpoints, one of which must then
        exist before a kill.
        """
        self._run, self._mode, self._tell, self._saves = run, mode, tell, saves
        self._struck = (0, 0)  # attempt and generation that were hit last
        self._dark = False  # all of it was killed on a node, and it has not been resumed since

    def strike(self, kills: Sequence[PlannedKill]) -> list[Kill]:
        """Wait for the step of each kill in order, make the kill, and return for each a record of which rank or node it
        hit at which step.

        A kill is marked as missed if the training was over before its step.
        """
        return [self._strike(one) for one in kills]

    def finish(self) -> RunStatus:
        """Wait until the run has ended, and return its status; resume it if a kill has ended it."""
        while not (status := self._status_after_resume()).state.ended:
            time.sleep(_LOOK_S)
        return status

    def _strike(self, kill: PlannedKill) -> Kill:
        """Wait until the step of `kill` is reached, make the kill and return it; if the run ends before, return it as
        missed.

        Only a step that was trained after the newest start of the ranks counts; otherwise the kill would hit a start
        and not a training. If the run saves checkpoints, the first of them is awaited as well.
        """
        with contextlib.ExitStack() as stack:
            visit: Visit | None = None
            rank = node = 0
            while not (status := self._status_after_resume()).state.ended:
                if self._trains(status):
                    if visit is None:  # before its step, for it takes a while to get there
                        nodes = self._run.nodes_of_ranks()
                        rank = sorted(nodes)[kill.among(len(nodes))]
                        node = nodes[rank]
                        visit = stack.enter_context(self._run.visit(node))
                    step = max(status.step or 0, newest_reported(RunDir(self._run.path), status.attempt))
                    if step >= kill.step and (status.checkpoint is not None or not self._saves):
                        return self._hit(kill, status, step, visit, rank, node)
                time.sleep(_LOOK_S)
        return Kill(kill.step, _OVER)

    def _hit(self, kill: PlannedKill, status: RunStatus, step: int, visit: Visit, rank: int, node: int) -> Kill:
        """Kill the chosen `rank` or, if this run's mode is to lose whole nodes, everything of the run on its `node`,
        through `visit`, a connection to the node; return the kill.

        `step` is the last step that is known to be done, for the record of the kill. A kill that fails is returned with
        the reason in `missed`.
        """
        whole = self._mode.whole_node
        at = time.time()
        try:
            hit = visit.kill(KillHere(None if whole else rank))
        except LaunchError as error:
            return Kill(kill.step, str(error).partition("\n")[0])
        if not hit:
            return Kill(kill.step, _GONE)
        step = max(step, newest_reported(RunDir(self._run.path), status.attempt))  # it may have gone on meanwhile
        self._struck, self._dark = (status.attempt, status.generation), whole
        done = Kill(
            kill.step, "", None if whole else rank, node, status.attempt, status.generation, at, step,
            status.checkpoint,
        )  # fmt: skip
        self._tell(f"{struck_words(done)} was killed at step {step}")
        return done

    def _trains(self, status: RunStatus) -> bool:
        """Return whether the run has trained a step since it started again after the last kill."""
        now = (status.attempt, status.generation)
        if status.state is not State.RUNNING or now <= self._struck:
            return False
        history = read_lines(RunDir(self._run.path).events, Event)
        return any(one.kind == "training" and (one.attempt, one.generation) == now for one in history)

    def _status_after_resume(self) -> RunStatus:
        """Return the run's status; if a kill of a whole node has ended the run, resume it first and return the status
        after that.
        """
        status = self._run.status(WATCH_S)
        if not self._dark or (status.attempt, status.generation) > self._struck:
            self._dark = False
        elif status.state.ended and status.state is not State.SUCCEEDED:
            self._dark = False
            self._run.resume()
            return self._run.status()
        return status


def struck_words(kill: Kill) -> str:
    """Return text that names what the kill hit: a rank, or all of a node."""
    return f"all of node {kill.node}" if kill.rank is None else f"rank {kill.rank}"


def prove(
    ref: str, *, on: str | None = None, overrides: Sequence[str] = (), kills: int = 3, seed: int | None = None,
    modes: Sequence[str] = (), steps: int | None = None, metrics: Sequence[str] = (), keep: bool = False,
    tell: Tell = lambda _: None,
) -> Proof:  # fmt: skip
    """Check that a training ends with the same results wherever it is killed, and return the verdict.

    `ref` is a spec file or a run, and `on` the cluster (None: the run's own, or this machine for a spec file). It is
    trained once undisturbed and once in each of the `modes` of disturbing it (empty: those that suit the spec). Each
    mode makes `kills` kills, at steps drawn by `seed` (None: a random one). `steps` limits the training, and only
    `metrics` are compared (empty: all but rates and times). `tell` prints a line on the progress. If this is
    interrupted, the active run is cancelled. If no run differs from the undisturbed one, all are removed, unless
    `keep`. Raise BadInput or Refused, before anything starts, if a proof is impossible.
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
    """Raise BadInput for a name that is no mode of disturbing a run."""
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise BadInput(f"--modes: expected some of {', '.join(MODES)}, got {unknown[0][:100]!r}")


def _chosen(names: Sequence[str], recovery_mode: str) -> dict[str, Mode]:
    """Return the modes (ways to kill and restart) by name: those in `names`, which were checked, or if it is empty
    those whose `usual_for` has the spec's `recovery.mode`.

    In the second case a mode gets its `usual_overrides`, if it has any, in place of its overrides of the spec.
    """
    if names:
        return {name: mode for name, mode in MODES.items() if name in names}
    usual = {name: mode for name, mode in MODES.items() if recovery_mode in mode.usual_for}
    return {
        name: mode if mode.usual_overrides is None else replace(mode, overrides=mode.usual_overrides)
        for name, mode in usual.items()
    }


@dataclass(slots=True)
class _Proving:
    """The runs of one proof so far. `id` begins the ids of its runs, and `once_more` has the second undisturbed run
    once it was made (None if it failed).
    """

    target: RepeatedJob
    id: RunId
    kills: int  # in each disturbed run
    seed: int  # draws the steps of the kills
    metrics: Sequence[str]  # to be compared; empty: all but rates and times
    tell: Tell  # prints a line on the progress
    runs: list[Run] = field(default_factory=list)
    once_more: list[FinishedRun | None] = field(default_factory=list)  # empty until the second undisturbed run is made

    def carry_out(self, modes: dict[str, Mode], *, keep: bool) -> Proof:
        """Make the undisturbed run, then one with kills in each of `modes` (by name), and return the result.

        No run with kills is made if the undisturbed one fails or makes fewer than two steps. If no run with kills
        differs from the undisturbed one, and enough could be compared to prove that, all are removed, unless `keep`.
        """
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
        """Make an undisturbed run, whose id ends with `name`, and wait for its end; return (its records, the run)."""
        run = self._start(name, ())
        return finished(run, to_its_end(run, run.wait, self.tell)), run

    def _disturbed(self, name: str, mode: Mode, alone: FinishedRun) -> ComparedRun:
        """Make a run with the kills of the mode called `name`, and compare it with the undisturbed run `alone`.

        If they differ, compare also with a second undisturbed run, which shows whether the kills are the cause.
        """
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
        """Return the records of a second undisturbed run, which is made at the first call; None if it failed."""
        if not self.once_more:
            again, _ = self._undisturbed("again")
            self.once_more.append(None if again.failure else again)
        return self.once_more[0]

    def _start(self, name: str, more: Sequence[str]) -> Run:
        """Start a run of the proof, whose id ends with `name`, with the overrides in `more`, and return it."""
        run = self.target.start(parse_run_id(f"{self.id}-{name}"), more)
        self.runs.append(run)
        run.label(add=[TAG, self.id])
        self.tell(f"{name}: {run.id}")
        return run


def _too_short(steps: int) -> str:
    """Return the reason why a training of so many steps cannot be killed between two of them, or "" if it can: it needs
    at least two.
    """
    return "" if steps > 1 else f"it reports {steps or 'no'} step{'s'[: steps != 1]}: nothing can be killed in between"


def for_a_proof(target: RepeatedJob, *, steps: int | None, kills: int) -> RepeatedJob:
    """Return the job with settings that all runs of a proof need.

    With `steps`, the training is limited to so many steps, and saves checkpoints often enough for `kills` kills. The
    user's own overrides win. Raise Refused if no rank can be killed on the cluster, and BadInput for a wrong spec or if
    `steps` cannot be set.
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
    """Return an override by which the program logs metrics at each step, or an empty list if it has no such option."""
    return [f"run.args.{_LOGS}=1"] if is_ours(run) or gives(run, _LOGS) else []
