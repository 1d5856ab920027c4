"""Find the secrets of a run and replace them in data, because a page may be shown to others. Secrets are the values of
`secrets:`, addresses in `notify:`, and what `env:` or an option of the script sets for a name such as API_KEY or
--token.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from launcher.decoding import converted
from launcher.errors import LaunchError
from launcher.plan.secret_values import names_a_secret, without_secrets
from launcher.run.attempts import plan_as
from launcher.run.durable import read_record
from launcher.run.layout import RunDir
from launcher.status.about import options_in
from launcher.supervisor.notify.record import Notifying

T = TypeVar("T")
# Of an option, where `--sort-key` and `--pad-token` are words as others are, a key has to say more.
_OPTION_OF_A_SECRET = re.compile(
    r"(?:(?:^|api|access|secret|private|auth|license|account)[-_]?key"
    r"|(?<!pad)(?<!bos)(?<!eos)(?<!unk)(?<!sep)(?<!cls)(?<!mask)(?:^|[-_]|auth|access)token"
    r"|secret|passw(?:or)?d|passphrase|credentials?)$",
    re.IGNORECASE,
)


class _EnvSpec(msgspec.Struct, frozen=True):
    """The part of the spec in plan.json that has environment variables, by name."""

    env: dict[str, str] = {}


class _EntryArgs(msgspec.Struct, frozen=True):
    """The part of `entry` in plan.json, which says how the program is started, that can have secrets: its arguments."""

    args: tuple[str, ...] = ()


class _SpelledOut(msgspec.Struct, frozen=True):
    """The parts of plan.json in which a user may have written a secret: environment and arguments."""

    spec: _EnvSpec
    entry: _EntryArgs


def secrets_of(run: RunDir, attempt: int) -> Iterator[str]:
    """Yield the secrets of a run's attempts up to `attempt`, each in the forms in which a text may contain it, for
    instance as JSON; raise LaunchError or OSError if a record is unreadable.
    """
    for value in (read_record(run.secrets, dict[str, str]) or {}).values():
        yield from _as_shown(value)
    if (told := read_record(run.notify, Notifying)) is not None:
        yield from told.secrets()
    for number in range(1, max(1, attempt) + 1):
        words = plan_as(run, number, _SpelledOut)
        for name, value in words.spec.env.items():
            if names_a_secret(name):
                yield from _as_shown(value)
        for name, value in options_in(words.entry.args).items():
            if name.startswith("-") and _OPTION_OF_A_SECRET.search(name.lstrip("-")):
                yield from _as_shown(value)


def known_secrets(run: RunDir, attempt: int) -> tuple[str, ...]:
    """Return each secret of a run's attempts up to `attempt` once, to be left out of a page.

    The search ends without an error at a record that cannot be read, so that secrets may be missing: only a page whose
    reader may read all of them anyway should rely on it.
    """
    found = list[str]()
    with contextlib.suppress(LaunchError, OSError):
        for one in secrets_of(run, attempt):
            found.append(one)
    return tuple(dict.fromkeys(found))


def _as_shown(value: str) -> Iterable[str]:
    """Return the forms in which a text may contain `value`: whole, line by line, on one line, as JSON, and in an
    address.
    """
    return (value, *value.splitlines(), " ".join(value.split()), json.dumps(value)[1:-1], quote(value, safe=""))


def redacted(answer: Any, secrets: Sequence[str]) -> Any:
    """Return the data with `(secret)` in place of every secret in its texts.

    Without secrets it is returned unchanged, else as plain dicts, lists and texts.
    """
    return _without(msgspec.to_builtins(answer), tuple(secrets)) if secrets else answer


def redacted_record(record: T, secrets: Sequence[str]) -> T:
    """Return a record of the same type with `(secret)` in place of every secret in its texts."""
    return converted(redacted(record, secrets), type(record)) if secrets else record


def _without(answer: Any, secrets: tuple[str, ...]) -> Any:
    """Return the value with `(secret)` in place of the secrets in all texts in it, keys included."""
    match answer:
        case str():
            return without_secrets(answer, secrets)
        case dict():
            return {_without(name, secrets): _without(value, secrets) for name, value in answer.items()}
        case list() | tuple():
            return [_without(value, secrets) for value in answer]
        case _:
            return answer
