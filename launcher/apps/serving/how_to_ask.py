"""Show a user how to call a model's server from a shell: a file with the token, and a command to paste."""

import os
import shlex
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from launcher.errors import BadInput
from launcher.run.durable import make_dir

_SCHEME = "Authorization: Bearer "
_SHORTEST_TOKEN = 16
_LONGEST_IN_LINE = 200


def write_header(folder: Path, name: str, token: str) -> Path:
    """Write the token as a header to the file `name`.header in `folder`, for curl (`-H @FILE`), and return the file's
    path.

    Only its user can read the file, whereas other users could read a token on a command line.
    """
    return _written(folder, f"{name}.header", f"{_SCHEME}{token}\n".encode())


def read_token(path: Path) -> str:
    """Return the token in the first line of a file, which may be a header as write_header() writes it.

    Raise BadInput if it is missing or too short.
    """
    try:
        token = path.read_text().partition("\n")[0].removeprefix(_SCHEME).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--token-file: {error}") from error
    if len(token) < _SHORTEST_TOKEN:
        raise BadInput(f"--token-file: expected at least {_SHORTEST_TOKEN} characters in its first line")
    return token


def curl_line(server: str, header: Path | None, example: Any, folder: Path, certificate: Path | None = None) -> str:
    """Return a curl command that sends `example` as an input to the server with the URL `server`, or that queries the
    server's health if `example` is None.

    `header` is the file with the token (None: the server needs none), `certificate` that of the server's CA (None: one
    that curl trusts, or plain HTTP). A long example is written into `folder`, from which curl reads it.
    """
    words = ["curl", *(["--cacert", str(certificate)] if certificate is not None else [])]
    if example is None:
        return shlex.join([*words, f"{server}/health"])
    body = msgspec.json.encode(example)
    if len(body) > _LONGEST_IN_LINE:
        body = b"@" + os.fsencode(_written(folder, "example.json", body))
    known = ["-H", f"@{header}"] if header is not None else []
    return shlex.join(
        [*words, f"{server}/predict", *known, "-H", "Content-Type: application/json", "-d", body.decode()]
    )


def _written(folder: Path, name: str, data: bytes) -> Path:
    """Write a file that only its user can read, in place of an earlier one, and return its path."""
    make_dir(folder)
    fd, draft = tempfile.mkstemp(dir=folder)  # 0600
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    path = folder / name
    os.replace(draft, path)
    return path
