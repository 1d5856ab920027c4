"""`launch`: finds the command, runs it, and turns what it raises into words and exit codes.

Only the module of the command that was asked for is imported.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.errors import BadInput, Exit, LaunchError

if TYPE_CHECKING:
    from types import ModuleType

COMMANDS = {
    "submit": ("launcher.cli.submit", "start a run; prints its id"),
    "status": ("launcher.cli.status", "all runs as a table, or everything about one"),
    "checkpoints": ("launcher.cli.checkpoints", "what a run has saved, and whether it is whole"),
    "logs": ("launcher.cli.logs", "the merged log of all ranks of a run"),
    "wait": ("launcher.cli.wait", "wait until a run has ended; ends with the run's exit code"),
    "cancel": ("launcher.cli.cancel", "end a run: the ranks are asked first, then no process is left; its files stay"),
    "resume": ("launcher.cli.resume", "continue an ended or lost run from its newest checkpoint"),
    "fetch": ("launcher.cli.fetch", "bring home logs, metrics and checkpoints that are on other machines"),
    "pardon": ("launcher.cli.pardon", "let a run use nodes again that it lost"),
    "hosts": ("launcher.cli.hosts", "the SSH hosts of a pool: free, taken and by which run; `trust` a new one"),
    "doctor": ("launcher.cli.doctor", "what a cluster is like, and what is in the way of runs there"),
    "validate": ("launcher.cli.validate", "check spec files; shows all problems at once"),
    "schema": ("launcher.cli.schema", "print the JSON Schema of the spec, for editors"),
    "init": ("launcher.cli.init", "write a commented spec to start from"),
}

_HELP = """usage: launch COMMAND ...

One YAML file, any machine: runs a training job, keeps it running, resumes it.

commands:
{commands}

examples:
  launch submit job.yaml --follow       start it and watch it
  launch status                         what is running, and what has ended
  launch logs last -f                   the log of the newest run, as it grows

RUN is a run's id, a unique beginning of one, or `last`.
`launch COMMAND --help` explains a command; `launch --version` names the version.

exit codes:
  0 ok                  1 internal error      2 bad input           3 no such run
  4 refused             5 unreachable         6 damaged           130 interrupted
  How a run ended (wait, --follow):
 10 user error         11 out of memory      12 killed              13 hang
 14 communication      15 node lost          16 preempted           17 time limit
 18 launcher's fault   19 no progress        20 cancelled           21 lost
 22 fenced             75 resume me
"""
_PIPE_CLOSED = 128 + 13  # as a shell shows a process that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """The whole command line; gives the exit code."""
    _never_fail_to_print()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except LaunchError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()
        return _PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - the last resort: one line for people, the rest on request
        if os.environ.get("LAUNCH_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        first = (str(error) or "no text").splitlines()[0]
        print(f"launch: internal error: {type(error).__name__}: {first}; please report", file=sys.stderr)
        return Exit.INTERNAL


def top_help() -> str:
    """`launch --help`, from the table."""
    return _HELP.format(commands="\n".join(f"  {name:<13}{text}" for name, (_, text) in COMMANDS.items()))


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(top_help(), end="", file=sys.stdout if argv else sys.stderr)
        return Exit.OK if argv else Exit.BAD_INPUT
    if argv[0] == "_far":
        from launcher.cli.far import run  # late: only a login node that is asked from elsewhere needs it

        return run()
    if argv[0] == "--version":
        print(f"launch {__version__}")
        return Exit.OK
    if argv[0] not in COMMANDS:
        raise BadInput(f"no such command: {argv[0][:100]!r}", _hint(argv[0]))
    return _command(argv[0], argv[1:])


def _command(name: str, argv: list[str]) -> int:
    from launcher.cli.arguments import Arguments  # late: argparse costs more than the whole of `launch --help`

    module: ModuleType = import_module(COMMANDS[name][0])
    arguments = Arguments(name, COMMANDS[name][1], module.EXAMPLES)
    module.declare(arguments)
    try:
        options = arguments.parse_args(argv)
    except SystemExit:  # argparse has printed the help
        return Exit.OK
    code: int = module.run(options)
    return code


def _hint(name: str) -> str:
    import difflib  # late: only for a typing error

    near = difflib.get_close_matches(name[:100], COMMANDS, n=1)
    return f"hint: did you mean `launch {near[0]}`?" if near else "hint: `launch --help` shows all commands"


def _complain(error: LaunchError) -> None:
    """On stderr; problems of a spec as they are, so that editors find `file:line:col:` at the start of the line."""
    from launcher.cli.terminal import is_place, safe  # late: only for an error

    lines = [safe(line) for line in str(error).splitlines()] or ["no text"]
    named = lines[0] if is_place(lines[0]) else f"launch: {lines[0]}"
    print("\n".join([named, *lines[1:]]), file=sys.stderr)


def _never_fail_to_print() -> None:
    """A name that the terminal's encoding lacks is shown with a mark in its place."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _let_go_of_stdout() -> None:
    """The reader has gone; without this the interpreter would complain once more when it leaves."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
