"""Compare runs: spec, arguments, environment, code and results, from records on this machine only. A table is a dict
from the name of a fact to its value for each run, in the order of the runs; a side is one of the runs with its facts.
An attempt is one batch job, or one start on a pool's hosts.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from launcher.errors import LaunchError
from launcher.plan.model import Plan
from launcher.run.attempts import read_plan
from launcher.run.code.diffing import FileChange, changes
from launcher.run.code.origin import changes_since
from launcher.run.code.renewing import as_frozen, folder_as_frozen
from launcher.run.durable import readable
from launcher.run.layout import RunDir
from launcher.run.records import Environment, Origin
from launcher.spec.fields import JOB
from launcher.spec.kinds.sections import Section, Shorthand
from launcher.spec.model import JobSpec, NodeRange
from launcher.status.about import About, about, options_in
from launcher.status.derive import RunStatus, duration_s
from launcher.status.series import Figure, figures_of, read_rows

Value = str | int | float | None
Table = dict[str, tuple[Value, ...]]  # a value for each run, in their order


class CodeComparison(msgspec.Struct, frozen=True):
    """The files in which a run's code differs from other code: among several runs, from the code of the first run; for
    one run alone, from the commit that was checked out when it was submitted. `unknown` says why this cannot be told.
    """

    run: str  # its id
    changes: tuple[FileChange, ...] = ()  # from the other code to the run's; empty: none, or unknown
    unknown: str = ""  # why the changes cannot be told, or ""


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of several runs, as `launch compare --json` prints it: all results and metrics, and of everything
    else the differences. Each row has a value for every run in order. If the packages of some runs are not recorded on
    this machine, those runs are in `unnoted`, and `packages` is empty.
    """

    runs: tuple[str, ...]
    results: Table
    metrics: dict[str, tuple[Figure | None, ...]]  # by name
    arguments: Table
    spec: Table
    environment: Table
    packages: Table
    unnoted: tuple[str, ...]  # runs whose packages are not recorded on this machine
    commits: tuple[str, ...]  # of each run's code; "": not known
    code: tuple[CodeComparison, ...]  # of each run but the first, whose code the others are compared with


@dataclass(frozen=True, slots=True)
class Side:
    """A compared run with its facts; `about` has its arguments and its commit, `figures` are summaries of its
    metrics by name, `plan` is that of its newest attempt (None: cannot be read), and `found` are the environments of
    its nodes.
    """

    run: RunDir
    status: RunStatus
    about: About
    figures: Mapping[str, Figure]
    plan: Plan | None
    found: tuple[Environment, ...]  # the environment of each node


def compared(statuses: Sequence[tuple[RunDir, RunStatus]]) -> Comparison:
    """Return the comparison of two or more (run, status), each by its newest attempt."""
    sides = [_side(run, status) for run, status in statuses]
    now = time.time()
    return Comparison(
        runs=tuple(str(side.run.id) for side in sides),
        results=_table(sides, lambda side: _results(side.status, now)),
        metrics=_metrics(sides),
        arguments=_differing(_table(sides, lambda side: options_in(side.about.args))),
        spec=_differing(_table(sides, _spec)),
        environment=_differing_environment(sides),
        packages=_differing(_table(sides, _packages)) if all(map(_packages, sides)) else {},
        unnoted=tuple(str(side.run.id) for side in sides if not _packages(side)),
        commits=tuple(side.about.commit + ("+changes" if side.about.dirty else "") for side in sides),
        code=tuple(_code(sides[0], side) for side in sides[1:]),
    )


def _side(run: RunDir, status: RunStatus) -> Side:
    """Return the facts about one run that are compared; its plan is None if it cannot be read."""
    plan = None
    with contextlib.suppress(LaunchError, OSError):
        plan = read_plan(run, status.attempt)
    figures = {one.name: one for one in figures_of(read_rows(run))}
    return Side(run, status, about(run, status.attempt), figures, plan, environments(run, status.attempt))


def environments(run: RunDir, attempt: int) -> tuple[Environment, ...]:
    """Return the environments that nodes recorded, in order of the nodes, in the newest attempt up to `attempt` in
    which any node recorded one; an empty tuple if none did.
    """
    for number in range(attempt, 0, -1):
        files = sorted(run.metrics.glob(run.environment(number, 0).name.replace(".n000.", ".n*.")))
        if found := tuple(one for file in files if (one := readable(file, Environment)) is not None):
            return found
    return ()


def _table(sides: Sequence[Side], facts: Callable[[Side], Mapping[str, Value]]) -> Table:
    """Return a table of the facts that `facts` returns about each run: by name, a value for every run, None where it
    lacks one.
    """
    found = [facts(side) for side in sides]
    return {name: tuple(one.get(name) for one in found) for name in _names(found)}


def _names(found: Iterable[Mapping[str, object]]) -> list[str]:
    """Return all names in the mappings, each once, in order of appearance."""
    return [*dict.fromkeys(name for one in found for name in one)]


def _differing(table: Table) -> Table:
    """Return the rows of the table whose values differ between runs."""
    return {name: values for name, values in table.items() if any(one != other for one, other in pairwise(values))}


def _differing_environment(sides: Sequence[Side]) -> Table:
    """Return the facts about the environment, such as GPUs and driver, that differ among the runs that recorded it.

    The interpreter is compared over all runs, because it is in the plan of a run that recorded nothing, too.
    """
    found = _table(sides, _environment)
    recorded = {
        name: [value for value, side in zip(values, sides, strict=True) if side.found or name == "interpreter"]
        for name, values in found.items()
    }
    return {name: values for name, values in found.items() if len({*recorded[name]}) > 1}


def _metrics(sides: Sequence[Side]) -> dict[str, tuple[Figure | None, ...]]:
    """Return {metric: its last and best value in every run}, None where a run lacks the metric."""
    return {name: tuple(side.figures.get(name) for side in sides) for name in _names([side.figures for side in sides])}


def _results(status: RunStatus, now: float) -> dict[str, Value]:
    """Return the results of a run by name: state, cause, step, total_steps, duration_s (up to the Unix time `now` if it
    has not ended), restarts, attempts, ranks, checkpoint (its step) and fingerprint.
    """
    return {
        "state": str(status.state),
        "cause": None if status.cause is None else str(status.cause),
        "step": status.step,
        "total_steps": status.total_steps,
        "duration_s": duration_s(status, now),
        "restarts": status.restarts.total,
        "attempts": status.attempt,
        "ranks": status.world_size,
        "checkpoint": status.checkpoint,
        "fingerprint": status.fingerprint,
    }


# -- the spec, by the keys that a person writes


def _spec(side: Side) -> dict[str, Value]:
    """Return {option: value} of a run's spec, without options that have no value."""
    if side.plan is None:
        return {}
    found = {"cluster": side.plan.cluster, **spec_values(side.plan.spec)}
    return {name: value for name, value in found.items() if name != "run.args"}


def spec_values(spec: JobSpec) -> dict[str, Value]:
    """Return {option: value} of a spec, with units for durations and sizes; options without a value are left out."""
    more = ((f"{kind}.{key}", value) for kind, values in spec.plugins.items() for key, value in values.items())
    return dict(_values(JOB, spec, "")) | {name: _plain(value) for name, value in more}


def _values(section: Section, values: object, path: str) -> Iterator[tuple[str, Value]]:
    """Yield (key, value) for each option of `section`, a section of the spec's schema, that has a value in `values`,
    the object read from that section; `path` stands before each key.
    """
    for field in section.options:
        name = f"{path}{field.key}"
        inner = field.kind.section if isinstance(field.kind, Shorthand) else field.kind
        given = [(one, value) for one in field.attributes if (value := getattr(values, one, None)) is not None]
        if given and isinstance(inner, Section):
            yield from _values(inner, given[0][1], f"{name}.")
        elif given and isinstance(given[0][1], dict):
            yield from ((f"{name}.{key}", _plain(value)) for key, value in given[0][1].items())
        elif given:
            said = [_plain(value, "" if one == field.key else one.rpartition("_")[2]) for one, value in given]
            yield name, said[0] if len(said) == 1 else "..".join(map(str, said))


def _plain(value: object, unit: str = "") -> Value:
    """Return a value for a table: numbers and texts as they are, all else as JSON.

    A number with a `unit` becomes text such as `7200 s`.
    """
    if isinstance(value, NodeRange):
        return str(value)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return msgspec.json.encode(value).decode()
    return f"{value:.15g} {unit}" if unit and not isinstance(value, str) else value


# -- what its ranks found


def _environment(side: Side) -> dict[str, Value]:
    """Return {name of a fact: its value} about a run's environment: interpreter, hosts, GPUs, driver and the like; None
    for one that is not known.
    """
    first = side.found[0] if side.found else None
    facts: dict[str, Value] = {"interpreter": side.plan.entry.python if side.plan is not None else None}
    facts["hosts"] = ", ".join(dict.fromkeys(one.host for one in side.found)) or None
    if first is not None:
        many = dict.fromkeys(one for found in side.found for one in found.gpus)
        facts |= {"python": first.version, "system": first.system, "cpus": first.cpus, "driver": first.driver}
        facts["gpus"] = ", ".join(f"{[*first.gpus].count(one)} {one}" for one in many)
    return {name: value or None for name, value in facts.items()}


def _packages(side: Side) -> dict[str, Value]:
    """Return {package: version} on the run's first node, or an empty dict if that is not recorded."""
    return {**side.found[0].packages} if side.found else {}


# -- its code


def since_commit(run: RunDir, attempt: int) -> CodeComparison:
    """Return how the code of the run's attempt differs from the commit that was checked out when the run was submitted;
    if this cannot be told, as when no commit is known, the result says why.
    """
    name, origin = str(run.id), readable(run.origin, Origin)
    if origin is None:
        return CodeComparison(name, unknown="no commit was known when it was submitted")
    try:
        plan = read_plan(run, attempt)
        if not folder_as_frozen(run, plan.code.digest).is_dir():
            return CodeComparison(name, unknown=f"the code of {name} is not here")
        code = as_frozen(run, plan.code.digest)
        return CodeComparison(
            name, tuple(changes_since(origin.commit, Path(plan.project), code, plan.spec.code.exclude))
        )
    except (LaunchError, OSError) as error:
        return CodeComparison(name, unknown=str(error).partition("\n")[0])


def _code(first: Side, other: Side) -> CodeComparison:
    """Return how the code of `other` differs from that of the `first` run."""
    name = str(other.run.id)
    if first.plan is None or other.plan is None:
        return CodeComparison(name, unknown="its plan cannot be read")
    digests = first.plan.code.digest, other.plan.code.digest
    if digests[0] == digests[1]:
        return CodeComparison(name)
    for side, digest in zip((first, other), digests, strict=True):
        if not folder_as_frozen(side.run, digest).is_dir():
            return CodeComparison(name, unknown=f"the code of {side.run.id} is not here")
    try:
        before, now = (as_frozen(side.run, digest) for side, digest in zip((first, other), digests, strict=True))
        return CodeComparison(name, tuple(changes(before, now)))
    except (LaunchError, OSError) as error:
        return CodeComparison(name, unknown=str(error).partition("\n")[0])
