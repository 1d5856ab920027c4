"""Declare what a run waits for as options of a command: each is a field of the spec's `queue:`."""

import argparse
import re

from launcher.cli.arguments import Arguments

_STEP = re.compile(r":step[:=](?=\d)")


def declare_waits(arguments: Arguments) -> None:
    arguments.add_argument("--hold", action="store_true", help="it waits until `launch release RUN`")
    arguments.add_argument("--at", metavar="WHEN", help="it waits until then: 22:00, or 2027-01-31 22:00")
    arguments.add_argument(
        "--after-hours", action="store_const", dest="at", const="after-hours",
        help="it waits until 18:00 on a weekday between 8:00 and then",
    )  # fmt: skip
    arguments.add_argument(
        "--after", metavar="RUN[:WHAT]", action="append", default=[],
        help="it starts once that run has `succeeded` (the default), has `ended`, or has come to `step=N`, and is "
        "cancelled where that cannot happen any more; may be repeated",
    )  # fmt: skip
    arguments.add_argument("--priority", metavar="N", help="which of your own waiting runs goes first: the higher one")
    arguments.add_argument("--now", action="store_true", help="here: do not wait for GPUs and slots that others have")
    arguments.add_argument(
        "--max-parallel", metavar="N", help="of the runs that are submitted together so many go on at once"
    )


def overrides_of(options: argparse.Namespace) -> list[str]:
    """Return the `--set` overrides of a command, with its waiting options added."""
    said = {"at": options.at, "priority": options.priority, "max_parallel": options.max_parallel}
    flags = [name for name in ("hold", "now") if getattr(options, name)]
    return [
        *options.overrides,
        *(f"queue.{name}=true" for name in flags),
        *(f"queue.{name}={value}" for name, value in said.items() if value is not None),
        *(f"queue.after+={_STEP.sub(':step ', ref)}" for ref in options.after),
    ]
