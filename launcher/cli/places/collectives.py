"""`launch doctor CLUSTER --collectives`: its options and its output."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.arguments import Arguments, number_below
from launcher.cli.terminal import columns, safe, tell, to_json
from launcher.errors import BadInput, Exit

if TYPE_CHECKING:
    from launcher.apps.collectives.findings import CollectivesReport

_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_OF_CHECK_UPS = ("try", "within", "partition", "account", "qos", "interface")
_STEP = 4  # from a size to the next one of a range
MANY = number_below(10**5)  # nodes, or ranks


def declare_collectives(arguments: Arguments) -> None:
    """Declare --collectives and its options."""
    arguments.add_argument(
        "--collectives",
        action="store_true",
        help="check and time the operations of torch.distributed on the cluster, instead of the usual checks",
    )
    arguments.add_argument(
        "--ranks",
        metavar="N,...",
        type=_ranks,
        help="with --collectives: number of ranks (default: 2, or one per node)",
    )
    arguments.add_argument(
        "--sizes", metavar="SIZE,...", type=_sizes, help="with --collectives: sizes of the data (default: 1KB..64MB)"
    )
    arguments.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="with --collectives: write a page with pictures, as HTML"
    )
    arguments.add_argument(
        "--backend", choices=("auto", "gloo", "nccl"), help="with --collectives: the backend (default: auto)"
    )


def refuse_without_collectives(options: argparse.Namespace) -> None:
    """Raise BadInput if an option that belongs to --collectives is given without it."""
    for name in ("ranks", "sizes", "backend", "output"):
        if getattr(options, name) is not None:
            raise BadInput(f"--{name} is of --collectives", f"hint: launch doctor --collectives --{name} ...")


def run_collectives(options: argparse.Namespace) -> int:
    """Measure the collectives of a cluster, print the report, and return the exit code: not OK if it has problems.
    Raise BadInput for an option that does not go with --collectives.
    """
    from launcher.apps.collectives.measuring import SIZES, collectives  # late: a check-up submits nothing
    from launcher.apps.collectives.page import write_page  # late: likewise
    from launcher.apps.collectives.tables import problems  # late: likewise

    if given := [name for name in _OF_CHECK_UPS if vars(options)[name]]:
        raise BadInput(f"--{given[0]} is not of --collectives", "hint: what a job asks for stands in the clusters file")
    if options.clusters is not None:
        raise BadInput("--clusters is not of --collectives", "hint: LAUNCH_CLUSTERS=FILE launch doctor ... does it")
    nodes = options.nodes or 1
    report = collectives(
        options.cluster,
        ranks=options.ranks or (max(2, nodes),),
        nodes=nodes,
        sizes=options.sizes or SIZES,
        backend=options.backend or "auto",
        tell=tell,
    )
    if options.json:
        print(to_json(report))
    elif lines := _lines(report):
        print("\n".join(lines))
    if options.output is not None and report.ranks:
        tell(str(write_page(report, options.output)))
    wrong = [*problems(report)]
    for line in wrong:
        tell(f"problem: {line}")
    return Exit.REFUSED if wrong else Exit.OK


def _lines(report: "CollectivesReport") -> list[str]:
    """Return the lines of the report's tables, or an empty list if nothing was measured."""
    from launcher.apps.collectives import tables  # late: a check-up has tables of its own

    if not report.ranks:
        return []
    found = [tables.heading(report)]
    if report.lines:
        found += columns([tables.HEADS, *tables.rows_of(report)])
    if report.pairs:
        found += ["", *columns([tables.PAIR_HEADS, *tables.pair_rows(report)])]
    return [safe(line) for line in (*found, *tables.notes(report))]


def _ranks(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks in a text such as `2,4`; raise ArgumentTypeError for any other text."""
    return tuple(MANY(word) for word in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in bytes that a text such as `1KB,64KB..4MB` lists, each once; in a range, whose end is included
    if it is met, each is four times the one before. Raise ArgumentTypeError for any other text.
    """
    found = list[int]()
    for word in text.split(","):
        low, dots, high = word.partition("..")
        size, end = _size(low), _size(high if dots else low)
        while size <= end:
            found.append(size)
            size *= _STEP
    if not found:
        raise argparse.ArgumentTypeError(f"expected sizes like 1KB..64MB, got {text!r}")
    return tuple(dict.fromkeys(found))


def _size(text: str) -> int:
    """Return the bytes in a text such as `64KB`; raise ArgumentTypeError for any other text."""
    parts = re.fullmatch(r"([1-9][0-9]{0,5})\s*([KMG]?B)", text.strip(), re.ASCII | re.IGNORECASE)
    if parts is None or int(parts[1]) * _UNITS[parts[2].upper()] > 4 * _UNITS["GB"]:
        raise argparse.ArgumentTypeError(f"expected a size like 64KB or 4MB, up to 4GB, got {text!r}")
    return int(parts[1]) * _UNITS[parts[2].upper()]
