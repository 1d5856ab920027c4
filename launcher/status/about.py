"""What a run is, in the words of its spec, of git and of people: arguments, description, commit, name, tags, note."""

import contextlib

import msgspec

from launcher.errors import LaunchError
from launcher.rundir.attempts import plan_as
from launcher.rundir.durable import readable
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Labels, Origin


class About(msgspec.Struct, frozen=True):
    """`launch status --json` prints it with the status."""

    args: tuple[str, ...] = ()
    description: str = ""
    commit: str = ""
    dirty: bool | None = None  # None: no commit is known
    tags: tuple[str, ...] = ()
    note: str = ""
    called: str = ""  # what a person has named it


class _Spec(msgspec.Struct, frozen=True):
    description: str = ""


class _Entry(msgspec.Struct, frozen=True):
    args: tuple[str, ...] = ()


class _Words(msgspec.Struct, frozen=True):
    """The part of plan.json that people have written."""

    spec: _Spec
    entry: _Entry


def about(run: RunDir, attempt: int) -> About:
    """As far as it can be read; arguments are those of this attempt."""
    words = None
    with contextlib.suppress(LaunchError, OSError):
        words = plan_as(run, attempt, _Words)
    origin, said = readable(run.origin, Origin), labels(run)
    return About(
        args=words.entry.args if words is not None else (),
        description=words.spec.description if words is not None else "",
        commit=origin.commit if origin is not None else "",
        dirty=origin.dirty if origin is not None else None,
        tags=said.tags,
        note=said.note,
        called=said.name,
    )


def labels(run: RunDir) -> Labels:
    return readable(run.labels, Labels) or Labels()


def argument(args: tuple[str, ...], name: str) -> str | None:
    """What an option was given: `0.1` of `--lr 0.1` or `--lr=0.1`, `true` of a bare one; the last time wins."""
    wanted, found = name.replace("_", "-"), None
    for index, word in enumerate(args):
        key, equals, value = word.partition("=")
        if not key.startswith("-") or key.lstrip("-").replace("_", "-") != wanted:
            continue
        after = args[index + 1] if index + 1 < len(args) else "--"
        found = value if equals else "true" if after.startswith("--") else after
    return found
