"""`launch logs`: print the merged log of all ranks, or of some."""

import argparse
import re
import sys
import time
from dataclasses import replace

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.graphs.members import runs_called
from launcher.cli.looking.follow import follow
from launcher.cli.looking.log_lines import PlainLine, Prefix, json_line, with_restarts
from launcher.cli.looking.role_option import parts_of, refuse_several, takes_role
from launcher.errors import Exit
from launcher.run.layout import RunDir
from launcher.status.derive import exit_code_of
from launcher.status.log_choice import LogChoice
from launcher.status.restarts import RestartReader

EXAMPLES = """
  launch logs last               the whole log by time, with node:rank before each line
  launch logs resnet -f          follow the log until the run has ended; Ctrl-C stops only the display
  launch logs last -n 50         the last 50 lines; with -f these first
  launch logs last --since 5m    of the last five minutes
  launch logs last --rank 0,3-5  only of these ranks; may be repeated, as --node may
  launch logs last --role actors of a run of several programs, those of this one
  launch logs last --grep 'loss|nan'
  launch logs last --json        one object per line, for programs
"""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST = 1 << 20


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch logs`."""
    arguments.takes_run()
    arguments.add_argument(
        "-f", "--follow", action="store_true", help="follow the log until the run has ended; exits with the run's code"
    )
    arguments.add_argument("-n", "--lines", metavar="N", type=_count, help="only the last N of the chosen lines")
    arguments.add_argument("--since", metavar="TIME", type=_ago, help="only lines written since 30s, 5m, 2h or 1d ago")
    arguments.add_argument("--grep", metavar="REGEX", type=_pattern, help="only lines that match this expression")
    for name in ("rank", "node"):
        words = f"of this {name} only, or of several: 0,3-5; may be repeated"
        arguments.add_argument(f"--{name}", metavar="N", type=numbers, action="append", help=words)
    takes_role(arguments)
    arguments.prints_json(lambda: {"": PlainLine}, "one JSON object a line", by_line=True)


def run(options: argparse.Namespace) -> int:
    """Run `launch logs` and return its exit code."""
    choice, codes = _choice(options), list[int]()
    parts = [part for one in runs_called(options.run) for part in parts_of(one, options.role, choice.ranks or ())]
    if options.role is not None and options.follow:
        refuse_several(parts, "--follow")
    for part in parts:
        if len(parts) > 1:
            print(f"--- {part.name}", file=sys.stderr, flush=True)
        codes.append(_show(part.run, choice if part.rank is None else replace(choice, ranks=None), options))
    return next((code for code in codes if code != Exit.OK), Exit.OK)


def _show(one: api.Run, choice: LogChoice, options: argparse.Namespace) -> int:
    """Print the chosen lines of the log so far and return OK; with `options.follow` print on until the run ends, and
    return the run's exit code.
    """
    if options.follow and not options.json:
        return follow(one, choice)
    lines = one.logs(follow=options.follow, choice=choice)
    restarts = RestartReader(RunDir(one.path), late=choice.is_late)
    if choice.pattern is None:
        restarts.read()
    prefix = Prefix(sys.stdout)
    text = None
    for text in map(json_line, lines) if options.json else with_restarts(lines, restarts, prefix):
        print(text, flush=options.follow)
    if text is None:
        print(_nothing(one, choice), file=sys.stderr)
    return exit_code_of(one.status()) if options.follow else Exit.OK


def _choice(options: argparse.Namespace) -> LogChoice:
    """Return the choice of log lines that the options describe."""
    ranks, nodes = (frozenset(sum(each, ())) if each else None for each in (options.rank, options.node))
    since = time.time() - options.since if options.since is not None else None
    return LogChoice(ranks, nodes, since, options.grep, options.lines)


def _nothing(one: api.Run, choice: LogChoice) -> str:
    """Return the reason why no line of the log was printed, as text."""
    status = one.status()
    for kind, wanted, there in (
        ("rank", choice.ranks, {rank.rank for rank in status.ranks}),
        ("node", choice.nodes, {node.node for node in status.nodes}),
    ):
        if wanted is not None and there and not wanted & there:
            return f"no {kind} {min(wanted)}: {one.id} has {kind}s 0 to {max(there)}"
    return f"no such lines of {one.id}" if choice != LogChoice() else f"{one.id} has printed nothing"


def _count(text: str) -> int:
    """Parse the value of an option that is a number of lines, such as `50`; raise ArgumentTypeError for any other text
    and for too large a number.
    """
    if not (text.isascii() and text.isdigit() and int(text) <= _MOST):
        raise argparse.ArgumentTypeError(f"expected a number of lines such as 50, got {text!r}")
    return int(text)


def _ago(text: str) -> float:
    """Return the seconds that a time such as `5m` stands for; raise ArgumentTypeError for any other text."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)([smhd])", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 30s, 5m, 2h or 1d, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def _pattern(text: str) -> re.Pattern[str]:
    """Return the compiled regular expression; raise ArgumentTypeError if it is invalid."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"expected a regular expression, got {text!r}: {error}") from error


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in an option's text such as `0,3-5`; raise ArgumentTypeError for any other text."""
    ranges = [re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part, re.ASCII) for part in text.split(",")]
    found = [range(int(one[1]), int(one[2] or one[1]) + 1) for one in ranges if one is not None]
    if len(found) < len(ranges) or not all(found):
        raise argparse.ArgumentTypeError(f"expected numbers such as 0 or 0,3-5, got {text!r}")
    return tuple(number for each in found for number in each)
