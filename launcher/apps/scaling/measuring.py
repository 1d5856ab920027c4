"""Carry out `launch scale`: run a training on one number of ranks after the other, for a few steps each, and report
what was measured: speed-up, lost time, advice and forecasts. A strategy is a way to divide a training over ranks, such
as ddp or fsdp.

spec ─ configurations ─► runs, one at a time ─ measured ─► points ─ accounts ─► speed-up, what was lost, advice
                                                             └──── model ─────► forecasts
"""

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec

from launcher import api
from launcher.api import Run
from launcher.apps.repeated_runs import RepeatedJob, Tell, gives, is_ours, job_of, name_of, to_its_end
from launcher.apps.scaling.accounts import accounted, advice, unsteady
from launcher.apps.scaling.configurations import (
    STRATEGIES,
    Configuration,
    Schedule,
    configurations,
    counted_role,
    of_roles,
    overrides_of,
    own_overrides,
    scalings_of,
    schedule_of,
)
from launcher.apps.scaling.findings import WEAK, ScaledRun, ScalingReport
from launcher.apps.scaling.measured import MeasuredSpeed, measured, parts_of, spread
from launcher.apps.scaling.model import foretold, volume_of
from launcher.errors import BadInput, LaunchError
from launcher.ids import RunId, parse_run_id
from launcher.run.layout import RunDir
from launcher.spec.model import RunOptions
from launcher.states import State
from launcher.status.compared import environments
from launcher.status.derive import RunStatus
from launcher.submission.requests import Request

Rows = dict[int, dict[str, float]]
TAG = "scale"
_OPTIONS = "add_options"  # of the trainer: a script that has it takes the options of all settings


def scale(
    ref: str, *, ranks: Sequence[int] = (1, 2), strategies: Sequence[str] = (), on: str | None = None,
    overrides: Sequence[str] = (), steps: int = 30, rounds: int = 1, per_node: int | None = None, strong: bool = False,
    weak: bool = False, keep: bool = False, role: str | None = None, tell: Tell = lambda _: None,
) -> ScalingReport:  # fmt: skip
    """Measure how much faster a training is on more ranks, and on what the other time is spent; return the report.

    `ref` is a spec file or a run, and `on` the cluster (None: the run's own, or this machine for a spec file).
    `overrides` such as `run.args.lr=0.1` change options of the spec. Each training has `steps` measured steps, and
    `rounds` repeats all of them. `strategies` are the ways to parallelise (empty: the spec's own), and `per_node` is
    the ranks on a node (None: the spec's). `strong` and `weak` choose the scalings; by default both are measured. In a
    spec with roles, the ranks are those of `role`, by default the main one. `tell` prints a line on the progress. If
    this is interrupted, the active run is cancelled. Runs are removed, unless `keep` or if they failed. Raise BadInput
    before anything starts if an argument, or the spec with it, is invalid.
    """
    for name, numbers in (("--ranks", ranks), ("--steps", [steps]), ("--rounds", [rounds]), ("--per-node", [per_node])):
        if not numbers or any(number is not None and number < 1 for number in numbers):
            raise BadInput(f"{name}: expected numbers above 0, got {', '.join(map(str, numbers)) or 'none'}")
    if unknown := [name for name in strategies if name not in STRATEGIES]:
        raise BadInput(f"--strategies: expected some of {', '.join(STRATEGIES)}, got {unknown[0][:100]!r}")
    job = job_of(ref, on=on, overrides=overrides)
    wish = job.request()
    run = wish.spec.run
    counted = counted_role(wish.spec, role)
    has_options = _has_options(run, Path(wish.project.path))
    if strategies and not has_options:
        raise BadInput(
            "--strategies: expected a script with the trainer's options: it has no add_options(parser)",
            "hint: leave them out: its rate is measured by the samples_per_s that it reports",
        )
    scalings = scalings_of(strong=strong, weak=weak, has_options=has_options)
    resources = (wish.spec.roles[counted].spec or wish.spec).resources if counted else wish.spec.resources
    wanted = configurations(ranks, strategies or [""], scalings, resources, per_node)
    work = _Measuring(job, wish, counted, name_of(wish), schedule_of(steps), has_options, tell)
    for one in wanted:
        job.request(work.overrides(one))
    return work.carry_out(wanted, scalings, rounds, str(ref), keep=keep)


def _has_options(run: RunOptions, project: Path) -> bool:
    """Return whether the program has the trainer's options: one of the trainer's tasks, or a script in the folder
    `project` whose text adds them.
    """
    if is_ours(run):
        return True
    place = run.script or (f"{run.module.replace('.', '/')}.py" if run.module else "")
    try:
        return bool(place) and _OPTIONS in (project / run.workdir / place).read_text(errors="replace")
    except OSError:
        return False


@dataclass(slots=True)
class _Measuring:
    """The runs of one scaling measurement and what they reported so far. Each run trains with one configuration: a
    strategy on a number of ranks. `id` begins the ids of the runs, `role` is the role whose ranks are measured,
    `schedule` says how many steps of a run warm up, are measured and are traced, `why` says why a configuration could
    not be measured, and `crowded` warns if its ranks share cores.
    """

    job: RepeatedJob
    wish: Request  # the checked request for a run of the job
    role: str  # whose ranks are measured; "" for a run of one program
    id: RunId
    schedule: Schedule
    has_options: bool  # whether the program has the trainer's options
    tell: Tell  # prints a line on the progress
    runs: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)  # those of `runs` that gave no measurement
    rows: dict[Configuration, list[Rows]] = field(default_factory=dict)  # the metrics by step of each of its runs
    why: dict[Configuration, str] = field(default_factory=dict)
    crowded: dict[Configuration, str] = field(default_factory=dict)

    def carry_out(
        self, wanted: Sequence[Configuration], scalings: Sequence[str], rounds: int, spec: str, *, keep: bool
    ) -> ScalingReport:
        """Measure the configurations in `wanted`, and return the report, which names the spec file as `spec`.

        Each of `rounds` rounds runs every configuration once, except those that could not be measured before; this way
        other load on the machines affects all alike. `scalings` are the kinds of scaling to report: strong, weak, or
        the only one of a script without the trainer's options. Runs are removed, unless `keep` or if they failed.
        """
        began = time.monotonic()
        many = len(wanted) * rounds
        self.tell(f"{self.id}: {many} run{'s' if many > 1 else ''} of {self.schedule.end} steps")
        for number in range(1, rounds + 1):
            for one in wanted:
                if one not in self.why:
                    self._measure(one, number, wanted)
        points = accounted(self._points(wanted, scalings))
        if not keep:
            api.remove([run for run in self.runs if run not in self.failed])
        models, forecasts = foretold(points)
        return ScalingReport(
            self.id, spec, self.job.on, self.schedule.measured, rounds, time.monotonic() - began, tuple(points),
            models, forecasts, tuple(advice(points)), tuple(unsteady(points)),
            tuple(run.id for run in (self.runs if keep else self.failed)),
        )  # fmt: skip

    def overrides(self, one: Configuration, batch: int | None = None) -> list[str]:
        """Return the overrides with which a configuration is run; `batch` is the samples of a step (None: the
        spec's).
        """
        run = self.wish.spec.run
        if self.has_options:
            found = overrides_of(one, run, self.schedule, batch, self.wish.spec.resources.cpus_per_rank)
        else:
            found = own_overrides(one, run, self.schedule)
        return of_roles(found, self.wish.spec, self.role)

    def _measure(self, one: Configuration, number: int, wanted: Sequence[Configuration]) -> None:
        """Run the configuration `one` in round `number`, and store its metrics, or why it could not be measured. In a
        round every configuration is run once.

        `wanted` are all configurations: in weak scaling, the batch of `one` follows from that of the configuration with
        the fewest ranks.
        """
        try:
            batch = self._batch(one, wanted)
            name = f"{self.id}-{one.name}" + (f"-{number}" if number > 1 else "")
            run = self.job.start(parse_run_id(name), self.overrides(one, batch))
        except LaunchError as error:
            self._failed(one, str(error).partition("\n")[0])
            return
        self.runs.append(run)
        run.label(add=[TAG, self.id])
        status = to_its_end(run, run.wait, self.tell)
        if why := _failure(status, self.schedule.end if self.has_options else 0):
            self.failed.append(run)
            self._failed(one, why)
            return
        run.renew()
        self.rows.setdefault(one, []).append(run.metrics())
        self.crowded[one] = self._crowded(one, run, status)
        self.tell(f"{run.id}: {self._rate(one)}")

    def _failed(self, one: Configuration, why: str) -> None:
        """Record, and print, why a configuration could not be measured."""
        self.why[one] = why
        self.tell(f"{self.id}-{one.name}: {why}")

    def _rate(self, one: Configuration) -> str:
        """Return as text the samples per second that a configuration's newest run reached, or why it reached none."""
        rates = measured(self.rows[one][-1:], self.schedule.warm, self.schedule.last).rates
        return f"{statistics.median(rates):.4g} samples/s" if rates else "no samples_per_s was reported"

    def _batch(self, one: Configuration, wanted: Sequence[Configuration]) -> int | None:
        """Return the batch with which to measure a configuration of weak scaling: the base's samples in a step, in
        proportion to the ranks. Return None, so that the spec's batch is used, for the base itself and for strong
        scaling.

        The base is the first configuration of the same strategy in `wanted`, with the fewest ranks; it has to be
        measured before. Raise BadInput if the base could not be measured, or its number of samples in a step is not
        known.
        """
        base = next(other for other in wanted if other.strategy == one.strategy)
        if one.scaling != WEAK or one is base:
            return None
        if base not in self.rows:
            raise BadInput(f"nothing to compare with: {base.ranks} ranks could not be measured")
        samples = self._measured(base).step_samples
        if samples is None:
            raise BadInput("nobody knows of how many samples its steps are")
        return round(samples * one.ranks / base.ranks)

    def _crowded(self, one: Configuration, run: Run, status: RunStatus) -> str:
        """Return a warning if the ranks of a run on CPUs have fewer cores than threads, so that they take turns, else
        "". The ranks of all nodes that are on one machine are counted together; `one` is what the run measures.
        """
        nodes = environments(RunDir(run.path), status.attempt)
        if any(node.gpus for node in nodes):
            return ""
        threads = self.wish.spec.resources.cpus_per_rank or 1
        for host, count in Counter(node.host for node in nodes).items():
            cpus = next(node.cpus for node in nodes if node.host == host)
            ranks = one.per_node * count
            if cpus and ranks * threads > cpus:
                return f"{ranks} ranks take turns on {cpus} cores"
        return ""

    def _points(self, wanted: Sequence[Configuration], scalings: Sequence[str]) -> list[ScaledRun]:
        """Return the points of all curves, each with the measurements of one configuration. There is a curve for each
        strategy in `wanted` and each of `scalings`: strong (the batch is fixed), weak (each rank's share of it is) or
        as it is (the script decides).

        A strategy's configuration with the fewest ranks, measured once, is the first point of each of its curves.
        """
        found = list[ScaledRun]()
        for scaling in scalings:
            for strategy in dict.fromkeys(one.strategy for one in wanted):
                mine = [one for one in wanted if one.strategy == strategy]
                found += [self._point(one, scaling) for one in mine if one is mine[0] or one.scaling == scaling]
        return found

    def _measured(self, one: Configuration) -> MeasuredSpeed:
        """Return the speed of a configuration, which has the logged lines of all its runs so far, one after the other.
        The first steps of each run, which only warm up, do not count.
        """
        return measured(self.rows.get(one, []), self.schedule.warm, self.schedule.last)

    def _point(self, one: Configuration, scaling: str) -> ScaledRun:
        """Return what was measured with the configuration `one`, as a point on the curve of `scaling`: strong, weak or
        as it is (ScaledRun). If nothing could be measured, the point has no rates, and its `why` says the reason.
        """
        strategy = one.strategy or _strategy(self.wish.spec.run)
        runs = tuple(run.id for run in self.runs if _is_of(run, f"{self.id}-{one.name}"))
        point = ScaledRun(strategy, scaling, one.ranks, one.nodes, runs, crowded=self.crowded.get(one, ""))
        found = self._measured(one)
        why = self.why.get(one, "")
        if not why and not found.rates:
            why = "it reports no samples_per_s, by which its rate could be known"
        if why:
            return msgspec.structs.replace(point, why=why)
        return msgspec.structs.replace(
            point, rates=found.rates, samples_per_s=spread(found.rates), step_samples=found.step_samples,
            step_s=statistics.median(found.steps_s), memory_gb=found.memory_gb, parts=parts_of(found),
            volume=None if gives(self.wish.spec.run, "mesh") else volume_of(strategy, one, found.model_bytes),
        )  # fmt: skip


def _is_of(run: Run, name: str) -> bool:
    """Return whether the run is one of the configuration with the name `name`: its id is this name, or the name and a
    number, such as `-2` for the second round of measurements.
    """
    return run.id == name or run.id.removeprefix(f"{name}-").isdigit()


def _failure(status: RunStatus, steps: int) -> str:
    """Return the reason why the run gives no measurement of speed, such as that it ended before step `steps`, or "" if
    it gives one.
    """
    if status.state is State.SUCCEEDED and status.restarts.total:
        return f"it was restarted {status.restarts.total} times"
    if status.state is State.SUCCEEDED:
        return "" if (status.step or 0) >= steps else f"it ended after {status.step or 0} of {steps} steps"
    return f"it {status.state}" + (f": {status.last_word}" if status.last_word else "")


def _strategy(run: RunOptions) -> str:
    """Return the strategy in the program's arguments, else the program's default."""
    for word, after in pairwise((*run.args, "")):
        if word == "--strategy":
            return after
        if word.startswith("--strategy="):
            return word.partition("=")[2]
    return "ddp" if is_ours(run) or gives(run, "strategy") else "as it is"
