"""The hosts of a pool as a user's command prints them: one a line, or a JSON list in the form of `hosts:` in the
clusters file. A Sequence here is a list as the YAML reader returns it, with the position of each item.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from typing import IO

from msgspec import Struct

from launcher.errors import BadInput, Unreachable
from launcher.run.processes import ends_in_time
from launcher.spec.cluster_fields import SSH
from launcher.spec.kinds.groups import WORD, ListOf
from launcher.spec.kinds.sections import Field, Section
from launcher.spec.problems import Wrong, lines_of, printable
from launcher.spec.tree import Mark, Scalar, Sequence
from launcher.spec.yaml_reader import read_tree

LIMIT_S = 60.0  # a cloud's own CLI may log in first
_FRESH_S = 10.0  # one `launch` asks several times, as for each spec of a submit
_MOST_BYTES = 1 << 20
_MOST_HOSTS = 1000  # the clusters file may have 10 000 values, and a host with all that may be said of it has 20
_LINES_SHOWN, _LONGEST_LINE = 3, 200  # of its stderr

_answers: dict["HostsCommand", tuple[float, Sequence]] = {}


class HostsCommand(Struct, frozen=True):
    """A command that prints the hosts of a pool, and the folder in which it runs ("": the current one)."""

    command: tuple[str, ...]
    folder: str = ""


HOSTS_COMMAND = Section(
    HostsCommand,
    (
        Field("command", ListOf(WORD, minimum=1), "A command that names the hosts: one a line, or a JSON list",
              example="[./hosts.py]"),
    ),
    required=True,
)  # fmt: skip


def ask(pool: str, asked: HostsCommand, limit_s: float = LIMIT_S) -> Sequence:
    """Run the command for the pool named `pool` and return the hosts that it prints, in the form of the clusters file.
    The result is used again for 10 s.

    Raise Unreachable if the command fails or takes longer than `limit_s`, and BadInput if it cannot be started or its
    output is no list of hosts.
    """
    if asked in _answers and time.monotonic() < _answers[asked][0] + _FRESH_S:
        return _answers[asked][1]
    about = f"{pool}: {printable(asked.command[0])}, which names its hosts"
    hosts = read_hosts(_run(asked, about, limit_s), about)
    _answers[asked] = time.monotonic(), hosts
    return hosts


def read_hosts(output: bytes, about: str) -> Sequence:
    """Return the hosts in a command's output; raise BadInput with a line for every problem. Each line begins with
    `about`, which names the command.
    """
    try:
        text = output.decode()
        listed = _hosts_in_json(text) if text.lstrip().startswith("[") else _hosts_in_lines(text)
        SSH.by_key["hosts"].kind.parse(listed)
    except UnicodeDecodeError:
        raise BadInput(f"{about}: expected text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{about}: expected one host a line, or a JSON list: {error}") from None
    except Wrong as error:
        raise BadInput(*lines_of(error.problems, about, lambda _: "")) from None
    if not 1 <= len(listed.items) <= _MOST_HOSTS:
        raise BadInput(f"{about}: expected 1 to {_MOST_HOSTS} hosts, got {len(listed.items) or 'none'}")
    return listed


def _hosts_in_json(text: str) -> Sequence:
    """Return the hosts of a JSON list; raise JSONDecodeError if the text is no JSON, or Wrong if the YAML reader
    refuses it.
    """
    json.loads(text)
    read = read_tree(text.replace("\t", " "))  # JSON is YAML, but for tabs, which no string of JSON has as they are
    if read.problems or not isinstance(read.root, Sequence):
        raise Wrong(*read.problems)
    return read.root


def _hosts_in_lines(text: str) -> Sequence:
    """Return the hosts in a text with one host a line, each with its line number; empty lines are left out."""
    words = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return Sequence([Scalar(word, False, Mark(number, 1)) for number, word in words if word], Mark(1, 1))


def _run(asked: HostsCommand, about: str, limit_s: float) -> bytes:
    """Return the command's output. It runs in a session of its own, so that all its processes can be ended after
    `limit_s`.

    Raise Unreachable if it fails or runs too long, and BadInput if it cannot be started or prints more than 1 MiB;
    messages begin with `about`.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                asked.command, cwd=asked.folder or None, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise BadInput(f"{about}: {reason[:1].lower()}{reason[1:]}", "hint: chmod +x it, if it is there") from None
        ended = ends_in_time(child, limit_s, lambda: _is_too_much(out, err))
        if _is_too_much(out, err):
            raise BadInput(f"{about}: printed more than {_MOST_BYTES:,} bytes")
        if not ended:
            raise Unreachable(f"{about}: still running after {limit_s:g} s", *_last_lines(err))
        if child.returncode:
            code = child.returncode
            how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
            raise Unreachable(f"{about}: {how}", *_last_lines(err))
        out.seek(0)
        return out.read()


def _is_too_much(*files: IO[bytes]) -> bool:
    """Return whether the command has written more than 1 MiB to one of the files."""
    return any(os.fstat(file.fileno()).st_size > _MOST_BYTES for file in files)


def _last_lines(err: IO[bytes]) -> list[str]:
    """Return the last lines of the command's error output."""
    err.seek(0)
    said = err.read().decode(errors="replace").strip().splitlines()
    return [printable(line[:_LONGEST_LINE]) for line in said[-_LINES_SHOWN:]]
