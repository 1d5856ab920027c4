"""`launch scale`: measure a training on one rank and on many: how much faster it gets, and on what the other time is
spent.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.arguments import Arguments, number_below
from launcher.cli.terminal import columns, fitting, safe, show_news, tell, to_json, width_of
from launcher.errors import Exit

if TYPE_CHECKING:
    from launcher.apps.scaling.findings import ScalingReport

EXAMPLES = """
  launch scale job.yaml --ranks 1,2,4             a table, sentences, what would help most, and forecasts for more ranks
  launch scale job.yaml --ranks 1,2 -o report     also a page with pictures, and the results as Markdown and JSON
  launch scale job.yaml --strategies ddp,fsdp     which strategy, on one rank and on two
  launch scale job.yaml --strategies dp,master,ddp    threads of one process, a parameter master, all-reduce
  launch scale job.yaml --strategies mp,ddp       layers on several devices by hand, which wait for each other
  launch scale job.yaml --ranks 1,8,16 --per-node 8 --on cluster    a GPU, a node, two nodes
  launch scale job.yaml --strong --rounds 3       the batch stays; each training three times, round by round

Strong scaling: the batch of a step stays, however many ranks share it. Weak: each rank's part of it stays. Both are
measured, unless one is chosen. Ends with 0 where all could be measured, else with 4.
`launch help scaling` is the page.
"""
_LESS = ("OTHER", "DATA", "RANGE", "STEP", "MEMORY", "SCALING")  # first to go where a terminal is narrow
_NUMBER = number_below(10**6)


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch scale`."""
    arguments.add_argument("what", metavar="RUN_OR_SPEC", help="a YAML file; or a run's id, or `last`, with its code")
    arguments.takes_place(default=None, shown="the cluster of a run; local for a spec")
    arguments.add_argument(
        "--ranks", metavar="N,...", type=_numbers, default=(1, 2), help="numbers of ranks (default: 1,2)"
    )
    arguments.add_argument(
        "--strategies",
        metavar="NAME,...",
        default="",
        help="strategies of the trainer, such as ddp,zero1,fsdp, and master, mp (default: the spec's)",
    )
    arguments.add_argument(
        "--strong", action="store_true", help="strong scaling: the same batch for all numbers of ranks"
    )
    arguments.add_argument(
        "--weak", action="store_true", help="weak scaling: a batch in proportion to the number of ranks"
    )
    arguments.add_argument(
        "--steps", metavar="N", type=_NUMBER, default=30, help="number of measured steps of each training (default: 30)"
    )
    arguments.add_argument(
        "--rounds", metavar="N", type=_NUMBER, default=1, help="number of repetitions of all measurements (default: 1)"
    )
    arguments.add_argument(
        "--per-node", metavar="N", type=_NUMBER, help="ranks of a node (default: the spec's; of a single node, all)"
    )
    arguments.add_argument(
        "--role", metavar="ROLE", help="in a spec with roles, the role whose ranks are counted (default: the main one)"
    )
    arguments.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        help="write index.html, scaling.md and scaling.json into this folder",
    )
    arguments.add_argument("--keep", action="store_true", help="keep the runs")
    arguments.prints_json(_answers, "all that was found, for programs")


def _answers() -> "dict[str, type[ScalingReport]]":
    """Return the type of what `launch scale --json` prints, under the key "", as it has only one form."""
    from launcher.apps.scaling.findings import ScalingReport  # late: the help does without

    return {"": ScalingReport}


def run(options: argparse.Namespace) -> int:
    """Run `launch scale` and return its exit code."""
    from launcher.apps.scaling.measuring import scale  # late: the help does without
    from launcher.apps.scaling.page import write_pages  # late: only with -o

    show_news()
    report = scale(
        options.what,
        ranks=options.ranks,
        strategies=[name.strip() for name in options.strategies.split(",") if name.strip()],
        on=options.on,
        overrides=options.overrides,
        steps=options.steps,
        rounds=options.rounds,
        per_node=options.per_node,
        strong=options.strong,
        weak=options.weak,
        keep=options.keep,
        role=options.role,
        tell=tell,
    )
    print(to_json(report) if options.json else "\n".join(lines_of(report)))
    if options.output is not None:
        for path in write_pages(report, options.output):
            tell(str(path))
    return Exit.REFUSED if any(one.why for one in report.points) else Exit.OK


def _numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers, each above 0 and below a million, that a text such as `1,2,4` lists; raise
    ArgumentTypeError for any other text.
    """
    return tuple(_NUMBER(word.strip()) for word in text.split(","))


def lines_of(report: "ScalingReport") -> list[str]:
    """Return the lines of a report: a table, a sentence on each row, hints on what would help, and a forecast for more
    ranks.
    """
    from launcher.apps.scaling.tables import (  # late: the help does without
        FORECAST_HEADS,
        HEADS,
        VOLUME_HEADS,
        forecast_rows,
        model_lines,
        rows_of,
        sentences,
        volume_note,
        volume_rows,
    )

    table = fitting([HEADS, *rows_of(report.points)], _LESS, width_of(sys.stdout))
    found = [*table, "", *sentences(report), *report.notes]
    if rows := volume_rows(report.points):
        found += ["", volume_note(report.points), *columns([VOLUME_HEADS, *rows])]
    if report.advice:
        found += ["", "what would help first:", *(f"- {line}" for line in report.advice)]
    if report.forecasts:
        found += ["", "more ranks, by a model:", *(f"- {line}" for line in model_lines(report.models))]
        found += ["", *columns([FORECAST_HEADS, *forecast_rows(report.forecasts)])]
    if report.kept:
        found += ["", f"its runs: {' '.join(report.kept)}"]
    return [safe(line) for line in found]
