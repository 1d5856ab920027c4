"""Check a host's key against OpenSSH's known-hosts files, and add keys to them.

paramiko's own reader is not used: it takes `@revoked` for a host's name and drops all but a line's first key of a kind.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from launcher.errors import Refused, Unreachable
from launcher.remote.target import Target, known_name, who
from launcher.run.durable import write_all, write_bytes

_REVOKED, _AUTHORITY = "@revoked", "@cert-authority"
_NOT_OURS = Path("/etc")
_OTHER_THAN_NAMES = re.compile(r"[*?!|]")
_reading = threading.Lock()


@dataclass(frozen=True, slots=True)
class HostKey:
    """The public key that a host presented: the host's name in known-hosts files, the algorithm, and the key's
    bytes.
    """

    name: str  # the host's name in known-hosts files
    kind: str  # such as ssh-ed25519
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint as `ssh-keygen -l` shows it."""
        return fingerprint(self.blob)

    @property
    def line(self) -> str:
        """Return the key as a line of a known-hosts file."""
        return f"{self.name} {self.kind} {base64.b64encode(self.blob).decode()}"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A line of a known-hosts file: the file, and the line's `number` in it.

    `marker` is `@revoked`, `@cert-authority` or "", `names` the list of host names or patterns, `kind` the algorithm,
    `blob` the key's bytes.
    """

    file: Path
    number: int
    marker: str
    names: str
    kind: str
    blob: bytes


class BadKey(Unreachable):
    """Raised when the key that a host presents is not known, not the expected one, or revoked; nothing that proves the
    user's identity was sent. `key` is the presented key, and `file` the known-hosts file that contradicts it, or to
    which it could be added.
    """

    def __init__(self, key: HostKey, file: Path, *lines: str) -> None:
        super().__init__(*lines)
        self.key = key
        self.file = file  # where the key is expected, or may be added


class UnknownKey(BadKey):
    """Raised when no key of the host is known."""


class ChangedKey(BadKey):
    """Raised when the host presents another key than the known one."""


class RevokedKey(BadKey):
    """Raised when the host's key is marked as revoked."""


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint of the public key `blob` as `ssh-keygen -l` shows it."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def known_keys(target: Target, name: str | None = None) -> list[KnownKey]:
    """Return every line about the host in all its known-hosts files, including lines that revoke a key or name a
    certificate authority. With `name`, return the lines about this name instead. Raise Unreachable if a file cannot be
    read.
    """
    name = name or target.known_as
    return [known for file in target.known_hosts for known in _lines(file).about(name)]


def expected_kinds(target: Target) -> tuple[str, ...]:
    """Return the algorithms of the host's known keys, which the server is asked to use first. Raise Unreachable if a
    known-hosts file cannot be read.
    """
    lines = [*known_keys(target), *_without_port(target)]
    return tuple(dict.fromkeys(known.kind for known in lines if not known.marker))


def check(target: Target, key: HostKey) -> None:
    """Raise RevokedKey, ChangedKey or UnknownKey unless the key is known as the host's, and another Unreachable if a
    known-hosts file cannot be read. Call this before anything is sent that proves the user's identity.
    """
    lines = known_keys(target)
    more = _without_port(target)
    for known in (*lines, *more):
        if known.marker == _REVOKED and known.blob == key.blob:
            raise RevokedKey(
                key,
                known.file,
                f"{who(target)}: its host key was revoked: {key.kind} {key.fingerprint}",
                f"  {known.file}:{known.number} says so",
                "hint: the host needs a new key; someone else may have this one",
            )
    plain = [known for known in lines if not known.marker]
    if any(known.blob == key.blob for known in (*plain, *more) if not known.marker):
        return
    if plain:
        raise _changed(target, key, plain)
    raise _unknown(target, key, by_authority=any(known.marker == _AUTHORITY for known in lines))


def add(target: Target, key: HostKey) -> Path:
    """Write the key to the user's known-hosts file in place of earlier keys of the host, and return that file. Raise
    Refused if an earlier key is in another file, or on a line that is not about this host alone. Raise Unreachable if a
    known-hosts file cannot be read.
    """
    file = _users_file(target)
    old = [known for known in known_keys(target) if not known.marker and known.blob != key.blob]
    for known in old:
        if known.file != file or not _named(known.names, key.name):
            raise Refused(
                f"{who(target)}: {known.file}:{known.number} expects another key of it",
                "hint: that line is not only about this host, or not yours: change it by hand",
            )
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = any(known.blob == key.blob and known.file == file and not known.marker for known in known_keys(target))
    line = "" if there else f"{key.line}\n"
    if old:
        _rewrite(file, {known.number for known in old}, key.name, line)
    elif line:
        _append(file, line)
    return file


def _append(file: Path, line: str) -> None:
    """Append a line in a single write, because an ssh program may append a line at the same time."""
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        write_all(descriptor, f"{'' if whole else chr(10)}{line}".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rewrite(file: Path, numbers: set[int], name: str, more: str) -> None:
    """Replace the file in one step: the host `name` is removed from the lines with these numbers, and the text `more`,
    whole lines, is added at the end.
    """
    real = file.resolve()
    lines = real.read_text(errors="surrogateescape").split("\n")
    kept = [_without_name(line, name) if number in numbers else line for number, line in enumerate(lines, 1)]
    text = "\n".join(line for line in kept if line is not None)
    text = f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{more}"
    write_bytes(real, text.encode(errors="surrogateescape"))


def _without_name(line: str, name: str) -> str | None:
    """Return a line of a known-hosts file without `name` in its list of hosts, or None if the list is then empty."""
    names, blank, rest = line.strip().partition(" ")
    left = [one for one in names.split(",") if not _is_name(one, name)]
    return f"{','.join(left)}{blank}{rest}" if left else None


def _users_file(target: Target) -> Path:
    """Return the user's own known-hosts file, which may not exist yet; raise Refused if the SSH configuration names
    none outside of /etc that is a file.
    """
    file = target.known_hosts[0] if target.known_hosts else Path(os.devnull)
    if _NOT_OURS in file.parents or (file.exists() and not file.is_file()):
        raise Refused(
            f"{who(target)}: there is no file of yours that a key could be added to",
            "hint: UserKnownHostsFile in the SSH configuration names one",
        )
    return file


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a known-hosts file: by host those that only list names, and the others, whose patterns and hashed
    names are compared one by one.
    """

    listed: Mapping[str, Sequence[KnownKey]]
    others: Sequence[KnownKey]

    def about(self, name: str) -> list[KnownKey]:
        """Return the lines about the host, in the file's order."""
        found = [*self.listed.get(name.lower(), ()), *(known for known in self.others if _about(known.names, name))]
        return sorted(found, key=lambda known: known.number)


def _lines(file: Path) -> _Lines:
    """Return the lines of a known-hosts file, sorted for the search by host; there are none if the file is missing. The
    file is read again only if it has changed. Raise Unreachable if it cannot be read.
    """
    try:
        seen = file.stat()
        with _reading:  # once for all hosts
            return _read(file, (seen.st_ino, seen.st_size, seen.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return _Lines({}, ())
    except OSError as error:
        raise Unreachable(f"{file}: known hosts cannot be read: {error.strerror}") from None


@lru_cache(maxsize=16)
def _read(file: Path, _state: tuple[int, int, int]) -> _Lines:
    """Return the lines of a known-hosts file. `_state` (inode, size, time of change) only makes the cache read a
    changed file again.
    """
    listed: dict[str, list[KnownKey]] = {}
    others = []
    for number, line in enumerate(file.read_text(errors="surrogateescape").split("\n"), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        known = KnownKey(file, number, marker, words[0], words[1], blob)
        if _OTHER_THAN_NAMES.search(known.names):
            others.append(known)
        else:
            for name in dict.fromkeys(known.names.lower().split(",")):
                listed.setdefault(name, []).append(known)
    return _Lines(listed, others)


def _without_port(target: Target) -> list[KnownKey]:
    """Return the lines about the host's plain name if its port is not 22: OpenSSH then looks for the name with the
    port, but accepts these lines, too.

    Return none for port 22, or if the host is looked for under an alias. Raise Unreachable if a file cannot be read.
    """
    if target.known_as != known_name(target.hostname, target.port) or target.known_as == target.hostname:
        return []
    return known_keys(target, target.hostname)


def _about(names: str, name: str) -> bool:
    """Return whether the list `names` contains the host's name, or a pattern that matches it and no matching pattern
    that begins with `!`.
    """
    patterns = names.lower().split(",")
    fits = any(_like(name, one) for one in patterns) and not any(
        _like(name, one[1:]) for one in patterns if one[:1] == "!"
    )
    return fits or _named(names, name)


def _like(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern with `*` and `?`; the time is short however many of these the pattern
    has.
    """
    return fnmatchcase(name.lower(), pattern.replace("[", "[[]"))


def _named(names: str, name: str) -> bool:
    """Return whether the list `names` contains the name, in plain text or hashed."""
    return any(_is_name(one, name) for one in names.split(","))


def _is_name(one: str, name: str) -> bool:
    """Return whether the entry `one`, in plain text or hashed, stands for the name."""
    if not one.startswith("|1|"):
        return one.lower() == name.lower()
    try:
        salt, digest = (base64.b64decode(piece, validate=True) for piece in one.split("|")[2:4])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.lower().encode(), hashlib.sha1).digest(), digest)


def _unknown(target: Target, key: HostKey, *, by_authority: bool) -> UnknownKey:
    """Return the error for a host without a known key; `by_authority` is True if only a certificate authority is known
    for it.
    """
    file = target.known_hosts[0] if target.known_hosts else Path(os.devnull)
    words = (
        ["  a certificate authority is known for it: certificates of hosts are not supported"] if by_authority else []
    )
    return UnknownKey(
        key,
        file,
        f"{who(target)}: its host key is not known: {key.kind} {key.fingerprint}",
        *words,
        f"hint: `launch nodes trust {target.name}` shows it and asks; the line for {file} would be",
        f"  {key.line}",
    )


def _changed(target: Target, key: HostKey, expected: list[KnownKey]) -> ChangedKey:
    """Return the error for a host whose key differs from the expected ones."""
    first = next((known for known in expected if known.kind == key.kind), expected[0])
    return ChangedKey(
        key,
        first.file,
        f"{who(target)}: its host key has changed: {key.kind} {key.fingerprint}",
        f"  {first.file}:{first.number} expects {first.kind} {fingerprint(first.blob)}",
        "hint: the connection may be intercepted; if the host was really reinstalled, "
        f"`launch nodes trust {target.name}` shows both keys and asks; the line would be",
        f"  {key.line}",
    )
