"""The program `launch`: find the command, import its module and no other, run it, and turn errors into messages and
exit codes. `argv` are the words of the command line that a function has to interpret, never the program's name.
"""

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.cli.commands import ALSO, COMMANDS, GROUPS, HEADINGS, THEIRS, shown, verbs_of
from launcher.errors import BadInput, Exit, LaunchError, said_by_the_system

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HELP = """usage: launch COMMAND ...

One YAML file, any machine: runs a training job, keeps it running, resumes it.

{commands}

pages:
{pages}

examples:
  launch submit job.yaml --follow       start it and watch it
  launch status                         what is running, and what has ended
  launch logs last -f                   the log of the newest run, as it grows

RUN is a run's id, a unique beginning of one, or `last`. `ls` and `ps` are `status`, `stop` is `cancel`.
`launch COMMAND --help` explains a command, `launch help PAGE` shows a page; `launch --version` names the version.

exit codes:
  0 ok                  1 internal error      2 bad input           3 no such run
  4 refused             5 unreachable         6 damaged             7 differs
130 interrupted       141 reader has left
  How a run ended (wait, --follow):
 10 user error         11 out of memory      12 killed              13 hang
 14 communication      15 node lost          16 preempted           17 time limit
 18 launcher's fault   19 no progress        20 cancelled           21 lost
 22 fenced             23 disk               24 no checkpoint       75 resume me
"""
# New objects: most come from imports and stay, and to look for garbage among them each 700 took a tenth of a start.
_COLLECT_EVERY = 50_000
_NO_SPACE = "free some space there"
_OF_THE_MACHINE = {
    errno.ENOSPC: _NO_SPACE, errno.EDQUOT: _NO_SPACE, errno.EFBIG: "`ulimit -f` shows how large a file may be",
    errno.EROFS: "", errno.EACCES: "", errno.EPERM: "", errno.ENOTDIR: "", errno.EISDIR: "", errno.EEXIST: "",
    errno.ENOENT: "", errno.ENAMETOOLONG: "", errno.ELOOP: "links there lead in a circle",
    errno.EMFILE: "`ulimit -n` shows how many files may be open", errno.ENFILE: "", errno.ENOMEM: "", errno.EIO: "",
    errno.ESTALE: "",
}  # fmt: skip


class _LenientStderr(io.FileIO):
    """A stderr on which write errors, such as a full disk or a reader that is gone, are ignored."""

    def write(self, data: "Any", /) -> int:
        """Write as much as possible, ignoring errors; return the length of `data` as if all of it were written."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default this process's, and return its exit code."""
    if argv is None:
        gc.set_threshold(_COLLECT_EVERY)
    _open_closed_streams()
    _make_printing_safe()
    code = _outcome(list(sys.argv[1:] if argv is None else argv))
    if argv is None:
        gc.freeze()  # the interpreter, on its way out, would look through all of it: a tenth of a submit's time
    return code


def _outcome(argv: list[str]) -> int:
    """Run the command line and return its exit code; print an error that it raises, and return the error's exit
    code.
    """
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except LaunchError as error:
        _print_error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        code = Exit.PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - the last resort: one line for people, the rest on request
        if os.environ.get("LAUNCH_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        code = _print_unexpected(error)
    _flush_stdout()
    return code


def top_help() -> str:
    """Return the text of `launch --help`, made from the table of commands."""
    from launcher.cli.shipped import pages, title  # late: no command needs it on its way

    commands = "\n\n".join(
        "\n".join([f"{heading}:", *(f"  {name:<15}{_summary(name)}" for name in names)])
        for heading, names in HEADINGS.items()
    )
    listed = "\n".join(f"  {name:<20}{title(path)}" for name, path in pages().items())
    return _HELP.format(commands=commands, pages=listed)


def _summary(name: str) -> str:
    """Return the text about a command in `launch --help`; for a group, with its commands."""
    return f"{GROUPS[name]}: {', '.join(verbs_of(name))}" if name in GROUPS else COMMANDS[name][1]


def _group_help(group: str) -> str:
    """Return the help text of a group of commands, such as `launch nodes`."""
    verbs = "\n".join(f"  {verb:<10}{text}" for verb, text in verbs_of(group).items())
    text = f"{GROUPS[group][0].upper()}{GROUPS[group][1:]}."
    return f"usage: launch {group} COMMAND ...\n\n{text}\n\ncommands:\n{verbs}\n"


def _run(argv: list[str]) -> int:
    """Run a command, a command of a group, or `help`; return the exit code. Raise BadInput for a word that is no
    command, and what the command raises.
    """
    if argv[:1] == ["help"] and len(argv) > 1:
        if argv[1:] == ["spec"] or not _is_command(argv[1:]):
            from launcher.cli.topics import show  # late: nothing else looks at pages

            return show(argv[1], [*COMMANDS, *GROUPS])
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(top_help(), end="", file=sys.stdout if argv else sys.stderr)
        return Exit.OK if argv else Exit.BAD_INPUT
    if argv[0] == "_far":
        from launcher.apps.remote_api import serve_requests  # late: only a login node that is asked needs it

        return serve_requests()
    if argv[0] == "_inside":
        from launcher.apps.remote_api import serve_inside  # late: as above

        return serve_inside(*argv[1:])
    if argv[0] == "_complete":
        from launcher.cli.completion import complete  # late: only a shell asks for it

        return complete(argv[-1])
    if argv[0] == "--version":
        print(f"launch {__version__}")
        return Exit.OK
    _refuse_relative_home()
    if argv[0] in GROUPS:
        return _verb(argv[0], argv[1:])
    if not _is_command(argv):
        raise BadInput(f"no such command: {argv[0][:100]!r}", _hint(argv[0]))
    return _command(argv[0], argv[1:])


def _is_command(words: list[str]) -> bool:
    """Return whether the first of the words is a command, an older name of one, or a group."""
    return words[0] in GROUPS or ALSO.get(words[0], words[0]) in COMMANDS


def _verb(group: str, argv: list[str]) -> int:
    """Run the command of the group `group` that `argv` begins with; return its exit code. Raise BadInput if the group
    has no such command.

    If `argv` is empty or asks for help, print the group's help.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(_group_help(group), end="", file=sys.stdout if argv else sys.stderr)
        return Exit.OK if argv else Exit.BAD_INPUT
    known = {**{verb: f"{group} {verb}" for verb in verbs_of(group)}, **_older_verbs(group)}
    if argv[0] not in known:
        import difflib  # late: only for a typing error

        near = difflib.get_close_matches(argv[0][:100], known, n=1)
        hint = f"did you mean `launch {known[near[0]]}`?" if near else f"there is {', '.join(verbs_of(group))}"
        raise BadInput(f"no such command: {f'{group} {argv[0]}'[:100]!r}", f"hint: {hint}")
    return _command(known[argv[0]], argv[1:])


def _older_verbs(group: str) -> dict[str, str]:
    """Return {older name: present name} of the group's commands that have an older name, such as `pardon` of `nodes
    include`. Older names are accepted after the group's name as well: `launch nodes pardon`.
    """
    return {older: name for older, name in ALSO.items() if name.startswith(f"{group} ")}


def _command(called: str, argv: list[str]) -> int:
    """Parse the arguments of the command `called`, which may be an older name of it, and run the command; return its
    exit code.
    """
    from launcher.cli.arguments import Arguments  # late: argparse costs more than the whole of `launch --help`

    place, summary = shown(called)
    module: ModuleType = import_module(place)
    arguments = Arguments(ALSO.get(called, called), summary, module.EXAMPLES)
    module.declare(arguments)
    try:
        options = arguments.parse_args(argv)
    except SystemExit:  # argparse has printed the help
        return Exit.OK
    code: int = module.run(options)
    return code


def _hint(name: str) -> str:
    """Return a hint for a word that is no command: the command that other tools call so, or else one that is spelled
    like it, or else where all commands are listed.
    """
    import difflib  # late: only for a typing error

    known = THEIRS.get(name)
    words = [*(one for one in COMMANDS if " " not in one), *GROUPS, *ALSO]
    near = [known] if known in COMMANDS else difflib.get_close_matches(name[:100], words, n=1)
    return f"hint: did you mean `launch {near[0]}`?" if near else "hint: `launch --help` shows all commands"


def _print_error(error: LaunchError) -> None:
    """Print an error on stderr after `launch: `.

    An error about a place in a spec has no such prefix, so that editors find `file:line:col:` at the start of the line.
    """
    from launcher.cli.terminal import is_place, safe  # late: only for an error

    lines = [safe(line) for line in str(error).splitlines()] or ["no text"]
    named = lines[0] if is_place(lines[0]) else f"launch: {lines[0]}"
    print("\n".join([named, *lines[1:]]), file=sys.stderr)


def _print_unexpected(error: Exception) -> Exit:
    """Print an error that no command expects, and return its exit code.

    A full disk or a missing permission is reported as such, everything else as an internal error.
    """
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        hint = _OF_THE_MACHINE[error.errno] or _hint_to_move(error.filename)
        _print_error(LaunchError(said_by_the_system(error), *([f"hint: {hint}"] if hint else [])))
        return Exit.REFUSED
    first = (str(error) or "no text").splitlines()[0]
    print(f"launch: internal error: {type(error).__name__}: {first}; please report", file=sys.stderr)
    return Exit.INTERNAL


def _hint_to_move(file: object) -> str:
    """Return a hint for an error with `file`: if that is the launcher's own, the environment variable that sets another
    folder for such files, else "".
    """
    from launcher.run.registry import variable_of  # late: only for an error

    name = variable_of(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) else None
    return f"{name} names another folder for what is kept" if name else ""


def _refuse_relative_home() -> None:
    """Raise BadInput if the home folder, or $XDG_STATE_HOME or $XDG_CONFIG_HOME in its place, is a relative path: the
    user's files would depend on the working folder.
    """
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        said = os.environ.get(name)
        home = said or os.path.expanduser("~")
        if not os.path.isabs(home):
            named = name if said else "HOME"
            raise BadInput(f"{named}: expected an absolute path, got {home!r}", f"hint: export {named}=/...")


def _open_closed_streams() -> None:
    """Open /dev/null in place of each closed standard stream; otherwise the next opened file would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, stream := open(os.devnull, mode))  # noqa: SIM115 - it lives as long as we
            os.set_inheritable(stream.fileno(), True)


def _make_printing_safe() -> None:
    """Make printing replace characters that the terminal's encoding lacks, and ignore errors on stderr."""
    own = sys.__stderr__
    if own is not None and sys.stderr is own:
        aside = io.BufferedWriter(_LenientStderr(own.fileno(), "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(aside, own.encoding, "replace", line_buffering=True)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _flush_stdout() -> None:
    """Flush stdout; if its reader is gone, redirect it to /dev/null, so that the interpreter prints no error at
    exit.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
