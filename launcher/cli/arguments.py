"""An argparse parser for the arguments of a command: with our own error messages and exit code, help that ends with
examples, and methods that declare the arguments which several commands have.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.cli.commands import shown
from launcher.errors import BadInput

if TYPE_CHECKING:
    import ssl

RUN_HELP = "a run's id, a unique beginning of one, or `last`"
_PATTERN = "a pattern of ids and names, such as 'lr-*', quoted from the shell"

# The types of what --json prints, by a text that says when each is printed ("" for the only one).
Answers = Callable[[], Mapping[str, Any]]
_MOST_S = 1e9


class Arguments(argparse.ArgumentParser):
    """The parser of one command's arguments. `of_the_script` is a hint for an unknown option that may be the script's.
    `answers` returns a mapping for the forms of the command's --json output, from a text that says when a form is
    printed ("" for the only form) to its type; with `answers_by_line` the output is one object per line.
    """

    of_the_script = ""  # a hint how to give the script an option, or ""

    def __init__(self, command: str, summary: str, examples: str) -> None:
        super().__init__(
            prog=f"launch {command}",
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"examples:\n{examples.strip(chr(10))}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._takes_command = False
        self.answers: Answers = dict
        self.answers_by_line = False

    def error(self, message: str) -> NoReturn:
        """Raise BadInput with the message and a hint, in place of argparse's own exit."""
        hint = f"hint: `{self.prog} --help` shows how it is used"
        if self.of_the_script and message.startswith("unrecognized arguments: --"):
            hint = f"{hint}; {self.of_the_script}"
        raise BadInput(message, hint)

    def parse_args(self, *words: Any, **more: Any) -> Any:  # what it gives is argparse's
        """Return the parsed options; the arguments are those of argparse. If --clusters is given, set $LAUNCH_CLUSTERS
        to its value, because other code reads the file's path there.

        For a command that takes another command after `--`, the words of that are in `options.command`.
        """
        if not self._takes_command:
            options = super().parse_args(*words, **more)
        else:
            ours, command = _cut_at_dashes(*words)
            options = super().parse_args(ours, **more)
            options.command = command
        if getattr(options, "clusters", None) is not None:
            os.environ["LAUNCH_CLUSTERS"] = str(options.clusters)  # code that needs the file reads it there
        return options

    @property
    def taken(self) -> "list[argparse.Action]":
        """Return all arguments that were declared, in order."""
        return [*self._actions]

    def takes_run(self, *, pattern: bool = False, **more: str) -> None:
        """Declare the argument RUN; with `pattern`, a pattern such as `lr-*` for several runs is allowed.

        `more` are further arguments of argparse's add_argument.
        """
        text = f"{RUN_HELP}; or {_PATTERN}" if pattern else RUN_HELP
        self.add_argument("run", metavar="RUN", help=text, **more)  # type: ignore[arg-type]

    def takes_runs(self, *, patterns: bool = False) -> None:
        """Declare the argument RUN for one or more runs; with `patterns`, patterns such as `lr-*` are allowed."""
        self.add_argument("runs", metavar="RUN", nargs="+", help=f"{RUN_HELP}; or {_PATTERN}" if patterns else RUN_HELP)

    def takes_timeout(self) -> None:
        """Declare --timeout, in seconds, which is infinite by default."""
        text = "stop waiting after this time, with exit code 4"
        self.add_argument("--timeout", metavar="SECONDS", type=seconds, default=float("inf"), help=text)

    def prints_json(
        self, answers: Answers, text: str, *, by_line: bool = False,
        among: "argparse._ActionsContainer | None" = None,
    ) -> None:  # fmt: skip
        """Declare --json with this help `text`.

        `answers` is a function that returns a mapping with one entry for each form of output: a text that says when it
        is printed ("" for the only form), and its type.

        With `by_line`, the output is one object per line. `among` is the group of mutually exclusive options to which
        --json is added (None: to no group).
        """
        self.answers, self.answers_by_line = answers, by_line
        (among or self).add_argument("--json", action="store_true", help=text)

    def takes_tls(self) -> None:
        """Declare --tls-cert and --tls-key, for a command that listens."""
        self.add_argument(
            "--tls-cert", metavar="FILE", type=Path, help="serve over TLS with this certificate chain, in PEM"
        )
        self.add_argument("--tls-key", metavar="FILE", type=Path, help="the key of --tls-cert, in PEM")

    def takes_command(self) -> None:
        """Let the words of another command follow after `--`; `parse_args` puts them into `options.command`. argparse
        does not parse them, because it would take their options for those of this command.
        """
        self._takes_command = True
        self.usage = f"{self.format_usage().removeprefix('usage: ').strip()} -- COMMAND [ARGS ...]"

    def takes_place(
        self, default: str | None, shown: str = "the cluster of the last attempt, with the options that it had then"
    ) -> None:
        """Declare --on, --clusters and --set, for a command that starts a run.

        `default` is the default of --on; if it is None, `shown` describes the default in the help.
        """
        self.of_the_script = "an option of the script's is set by --set run.args.lr=0.1"
        shown = default or shown
        self.add_argument(
            "--on",
            metavar="CLUSTER",
            default=default,
            help=f"local, slurm, ssh (the hosts of the spec) or a name of the clusters file (default: {shown})",
        )
        self.add_argument(
            "--clusters",
            metavar="FILE",
            type=Path,
            help="the file that names clusters (default: $LAUNCH_CLUSTERS, else ~/.config/launch/clusters.yaml)",
        )
        self.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            dest="overrides",
            help="override a field of the spec: resources.nodes=4; run.args+=x adds to a list; may be repeated",
        )


def arguments_of(command: str) -> Arguments:
    """Return the parser of a command, with its arguments declared."""
    place, summary = shown(command)
    module = import_module(place)
    arguments = Arguments(command, summary, module.EXAMPLES)
    module.declare(arguments)
    return arguments


def tls_of(options: argparse.Namespace) -> "ssl.SSLContext | None":
    """Return the TLS context for --tls-cert and --tls-key, or None if they are not given.

    Raise BadInput if only one is given, or the files cannot be used.
    """
    if (options.tls_cert is None) != (options.tls_key is None):
        raise BadInput("--tls-cert, --tls-key: expected both, got one of them")
    if options.tls_cert is None:
        return None
    from launcher.apps.web.listening import tls_context  # late: where TLS is asked for

    return tls_context(options.tls_cert, options.tls_key)


def _cut_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """Return (the words before the first `--`, the words after it), or (all words, none) without a `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def number_below(most: int) -> Callable[[str], int]:
    """Return a function that parses an option's text as a whole number above 0 and below `most`; it raises
    ArgumentTypeError for any other text.
    """

    def number(text: str) -> int:
        """Return the number in an option's text; raise ArgumentTypeError for any other text."""
        if not (text.isascii() and text.isdigit() and 0 < int(text) < most):
            raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
        return int(text)

    return number


def seconds(text: str) -> float:
    """Return the seconds in an option's text, a plain number such as `60` or `0.5`; raise ArgumentTypeError for any
    other text.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < _MOST_S:
        raise argparse.ArgumentTypeError(f"expected seconds such as 60, got {text!r}")
    return value
