"""Describe a run: its arguments, its description, the git commit of its code, and the name, tags and note that its user
gave it.
"""

import contextlib
from collections.abc import Sequence

import msgspec

from launcher.errors import LaunchError
from launcher.run.attempts import plan_as
from launcher.run.durable import readable
from launcher.run.layout import RunDir
from launcher.run.records import Labels, Origin


class About(msgspec.Struct, frozen=True):
    """The part of `launch status --json` that describes a run: arguments, description, commit, and labels by users.
    `command` is set instead of `args` for a shell command; `dirty` tells whether files differed from the commit (None:
    no commit is known); `called` is the name that a user gave the run.
    """

    args: tuple[str, ...] = ()
    command: str = ""  # if the program is a text for a shell
    description: str = ""
    commit: str = ""
    dirty: bool | None = None  # None: no commit is known
    tags: tuple[str, ...] = ()
    note: str = ""
    called: str = ""  # the name that a user gave it


class _Spec(msgspec.Struct, frozen=True):
    """The only part of the spec in plan.json that is read here: the user's description."""

    description: str = ""


class _Entry(msgspec.Struct, frozen=True):
    """The program to run, as plan.json has it."""

    kind: str = ""  # script, module or command
    target: str = ""  # the script, module or program
    args: tuple[str, ...] = ()


class _Words(msgspec.Struct, frozen=True):
    """The part of plan.json whose text the user has written: the run's description (in `spec`), and the program with
    its arguments (`entry`).
    """

    spec: _Spec
    entry: _Entry


def about(run: RunDir, attempt: int) -> About:
    """Return the description of a run, with the arguments of attempt number `attempt`; what its files do not tell, or
    cannot be read, is empty.
    """
    words = None
    with contextlib.suppress(LaunchError, OSError):
        words = plan_as(run, attempt, _Words)
    origin, said = readable(run.origin, Origin), labels(run)
    args, command = words.entry.args if words is not None else (), ""
    if words is not None and (words.entry.kind, words.entry.target, *args[:1]) == ("command", "/bin/sh", "-c"):
        command, args = "".join(args[1:2]), args[3:]
    return About(
        args=args,
        command=command,
        description=words.spec.description if words is not None else "",
        commit=origin.commit if origin is not None else "",
        dirty=origin.dirty if origin is not None else None,
        tags=said.tags,
        note=said.note,
        called=said.name,
    )


def labels(run: RunDir) -> Labels:
    """Return the labels that a user gave the run (name, tags and note), all empty if there are none."""
    return readable(run.labels, Labels) or Labels()


def argument(args: Sequence[str], name: str) -> str | None:
    """Return the value of an option of a program: `0.1` for `--lr 0.1` or `--lr=0.1`, `true` for a bare `--lr`.

    `name` is without its dashes, and `_` in it is the same as `-`. Return None if the option is absent. If it is given
    twice, the last value counts.
    """
    wanted = name.replace("_", "-")
    given = options_in(args).items()
    return next((value for key, value in given if key[:1] == "-" and key.lstrip("-").replace("_", "-") == wanted), None)


def options_in(args: Sequence[str]) -> dict[str, str]:
    """Return {option: value} of a program's arguments, such as `--lr`: `0.1`; several values of an option are joined by
    spaces.

    An option without a value has `true`; an argument that belongs to no option is called `word 1`, `word 2` and so on.
    """
    found: dict[str, str] = {}
    option, places = "", 0
    for word in args:
        if word.startswith("-") and not _is_number(word):
            option, equals, value = word.partition("=")
            found[option] = value if equals else ""
            option = "" if equals else option
        elif option:
            found[option] = f"{found[option]} {word}".strip()
        else:
            places += 1
            found[f"word {places}"] = word
    return {name: value or "true" for name, value in found.items()}


def _is_number(word: str) -> bool:
    """Return whether the word is a number, and so no option even if it begins with a dash."""
    try:
        float(word)
    except ValueError:
        return False
    return True
