"""Read the values of secrets at submit, from the environment variables in `environ` or a file; they never appear in
messages.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.errors import BadInput
from launcher.spec.model import JobSpec, Secret

_MAX_BYTES = 1 << 16
_LEAST = 4  # characters; shorter secrets are words that occur anyway
_OF_A_SECRET = re.compile(r"(?:key|key_id|token|secret|passw(?:or)?d|credentials?)$", re.IGNORECASE)


def names_a_secret(name: str) -> bool:
    """Return whether a variable of this name holds a secret: whether it ends with key, key_id, token, secret, password,
    passwd, credential or credentials, as API_KEY does.
    """
    return _OF_A_SECRET.search(name) is not None


def credentials_in(environ: Mapping[str, str], secrets: Collection[str]) -> tuple[str, ...]:
    """Return the values in `environ` of the variables that are named in `secrets`, and of every variable whose name
    ends in a word for a secret, as API_KEY does (`names_a_secret`). Names that are not set are passed over.
    """
    return tuple(value for name, value in environ.items() if name in secrets or names_a_secret(name))


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Return the text with `(secret)` in place of each of the values in `secrets`; the longest is replaced first, as
    one may be part of another.

    Values of fewer than 4 characters are left as they are.
    """
    for one in sorted((secret for secret in secrets if len(secret) >= _LEAST), key=len, reverse=True):
        text = text.replace(one, "(secret)")
    return text


def unset_secrets(spec: JobSpec, project: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the spec's secrets that have no value on this machine. For a secret with a file that is if
    the file, relative to `project`, cannot be read; for any other, if `environ` has no variable of its name.
    """
    return [one.name for one in spec.secrets if not is_set(one, project, environ)]


def is_set(secret: Secret, folder: Path, environ: Mapping[str, str]) -> bool:
    """Return whether the secret has a value: whether its file, relative to `folder`, can be read or, if it has no file,
    whether `environ` has its variable.
    """
    return secret.name in environ if secret.file is None else os.access(_path(secret.file, folder), os.R_OK)


def read_secret_values(spec: JobSpec, project: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return {name: value} of all secrets of the spec, to be written to the one file for them (mode 0600).

    Values come from `environ` or from files, whose paths are relative to `project`. Raise BadInput if one cannot be
    read.
    """
    return {secret.name: read_secret(secret, project, environ, "secrets") for secret in spec.secrets}


def read_secret(secret: Secret, folder: Path, environ: Mapping[str, str], about: str) -> str:
    """Return the value of a secret from its file, whose path is relative to `folder`, or if it names no file from the
    variable of its name, which the caller has made sure is set.

    Raise BadInput, which begins with `about`, if it cannot be read.
    """
    if secret.file is None:
        return _text(secret, environ[secret.name], about)
    path = _path(secret.file, folder)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        # Without the error's own text, which would show some of a value that is not UTF-8.
        raise BadInput(f"{about}: {secret.name}: cannot read {path}") from (
            error if isinstance(error, OSError) else None
        )
    if len(data) > _MAX_BYTES or "\0" in text:
        raise BadInput(f"{about}: {secret.name}: {path} is no secret: over 64 KiB, or with a NUL byte")
    return text


def _text(secret: Secret, value: str, about: str) -> str:
    """Return `value` if it is valid Unicode; raise BadInput, which begins with `about`, if it comes from bytes that are
    no text.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{about}: {secret.name}: expected text, got bytes that are none") from None
    return value


def _path(name: str, project: Path) -> Path:
    """Return the absolute path of a secret's file; `name` is relative to the project, and may begin with `~`."""
    return project / os.path.expanduser(name)
