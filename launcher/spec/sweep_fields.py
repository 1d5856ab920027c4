"""The options of `sweep`: many runs of one spec, and how the options in which they differ are chosen."""

from collections.abc import Iterator
from collections.abc import Mapping as Values
from typing import Any

from launcher.spec.kinds.groups import TableOf
from launcher.spec.kinds.leaf import Leaf, Unfit, WordOr
from launcher.spec.kinds.numbers import Integer
from launcher.spec.kinds.sections import Field, Section, Shorthand
from launcher.spec.kinds.space import KEY, Choices
from launcher.spec.kinds.text import Choice, InnerPath, Text
from launcher.spec.kinds.times import Duration
from launcher.spec.model import Dimension, EarlyStop, SweepBudget, SweepOptions
from launcher.spec.problems import Problem
from launcher.spec.tree import Mapping, Scalar

SEARCHES = ("grid", "random", "tpe", "gp", "cmaes", "qmc")
_ENDLESS = ("random", "tpe", "gp", "cmaes", "qmc")
_UNLIMITED = WordOr("unlimited", Integer(1, 1_000_000), ("infinite", "never", "none"))


class SearchOrFile(Leaf, frozen=True):
    """A way to search, such as `random`, or the path of a CSV file with the points to try."""

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"one of {', '.join(SEARCHES)}, or the path of a .csv file of points"

    def convert(self, scalar: Scalar) -> str:
        """Return the name of the search, or the path of the CSV file relative to the project; raise Unfit for any other
        text.
        """
        if scalar.text in SEARCHES:
            return scalar.text
        if not scalar.text.endswith(".csv"):
            lower = scalar.text.lower()
            raise Unfit(f"write {lower}" if lower in SEARCHES else "")
        return str(InnerPath("the path of a file of points", "the project").convert(scalar))

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of all values of this kind."""
        return {"anyOf": [{"enum": [*SEARCHES]}, {"type": "string", "pattern": r"\.csv$"}]}


def _search_as_option(sweep: Mapping) -> Problem | None:
    """Return a problem if the way to search is written as an option (`sweep: {grid: ...}`), as other tools have it,
    else None.
    """
    named = next((entry.key for key, entry in sweep.entries.items() if key in SEARCHES), None)
    if named is None:
        return None
    lacking = "".join(f", {key}: ..." for key in ("metric", "mode") if key not in sweep.entries)
    hint = f"write search: {named.text}, space: {{...}}{lacking}; `launch help sweeps` shows one"
    return Problem(named.mark, "a way to search, and not an option", hint, (named.text,))


def _trials_problems(sweep: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if the number of trials is missing for a search that never ends by itself (any but a grid or a
    file), and one if the space is missing for a search that needs it (any but a file).
    """
    search = values.get("search", "tpe")
    if search in _ENDLESS and "trials" not in sweep.entries:
        named = search if "search" in sweep.entries else f"search is {search} by default, which"
        yield Problem(sweep.mark, f"missing: {named} has no end of its own", "write trials: 40", ("trials",))
    if search in SEARCHES and not values.get("space") and "space" not in sweep.entries:
        yield Problem(sweep.mark, "missing", "write space: {run.args.lr: {from: 1e-5, to: 1e-1}}", ("space",))


def _space_problems(sweep: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each option of a grid search whose range has infinitely many values: neither a step nor
    integers only. Also yield one for each `when` that names an option further down, whose value is chosen later.

    `sweep` is the section as written in the spec, which has the place of each option for the message; `values` are its
    parsed keys, such as `space` and `search`.
    """
    space: Values[str, Dimension] = values.get("space") or {}
    written = sweep.find("space")
    entries = written.value.entries if written is not None and isinstance(written.value, Mapping) else {}
    for at, (key, dimension) in enumerate(space.items()):
        mark, named = entries[key].key.mark, ("space", key)
        if values.get("search") == "grid" and not dimension.values and dimension.step is None and not dimension.whole:
            yield Problem(mark, "a grid needs a list of values, or a step", "add step: 0.1", named)
        if dimension.when is not None and dimension.when[0] in [*space][at:]:
            yield Problem(mark, f"{dimension.when[0]} is chosen after it", "write that one above it", named)


STOP = Section(
    EarlyStop,
    (
        Field("early", Choice(("asha", "hyperband", "median", "none")), "Which rule ends a trial that does worse than "
              "others at the same step: asha and hyperband let the best of each round go on, median the better half",
              example="asha"),
        Field("min_steps", Integer(1), "No trial is stopped before this step", example="20"),
        Field("factor", Integer(2, 100), "One of so many goes on into the next round, which is so many times longer",
              example="3"),
    ),
)  # fmt: skip

SWEEP = Section(
    SweepOptions,
    (
        Field("search", SearchOrFile(), "How values are chosen: grid, random, tpe, gp, cmaes, qmc, or a .csv file with "
              "the options in its first line and a line for each trial", example="tpe"),
        Field("trials", Integer(1, 1_000_000), "Number of trials; by default all points of a grid or a file",
              example="40"),
        Field("parallel", Integer(1, 10_000), "Number of trials at the same time", example="2"),
        Field("metric", Text("the name of a metric", r"[^\s=]+"), "The metric that is compared; its last reported "
              "value counts", example="val_accuracy"),
        Field("mode", Choice(("min", "max")), "Whether the smallest (min) or the largest (max) value is best",
              example="max"),
        Field("space", TableOf(KEY, Choices()), "Keys as in `--set`, and the values that each may have",
              example="{run.args.lr: {from: 1e-5, to: 1e-1, log: true}, run.args.batch-size: [32, 64]}"),
        Field("stop", Shorthand(STOP, "early"), "Which trials are stopped before their end: a rule, or its options",
              example="{early: asha, min_steps: 20, factor: 3}"),
        Field("budget", Section(SweepBudget, (
            Field("time", Duration(zero=False), "Time after which no new trial starts", ("time_s",), "8h"),)),
              "How much the whole may take"),
        Field("failures", _UNLIMITED, "Number of failed trials after which no new trial starts", example="5"),
        Field("seed", Integer(0, 2**31 - 1), "With the same seed, grid, random and qmc choose the same points; by "
              "default it is random", example="1"),
    ),
    misread=_search_as_option,
    checks=(_trials_problems, _space_problems),
    required=True,
)  # fmt: skip
