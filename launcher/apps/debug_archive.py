"""Collect a run's records for a bug report in one small archive, without secrets, user names or host names."""

import getpass
import io
import json
import os
import platform
import re
import socket
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from launcher import api
from launcher.apps.redacted import secrets_of
from launcher.errors import LaunchError, Refused, said_by_the_system
from launcher.health.last import last_check_up
from launcher.plan.secret_values import names_a_secret, without_secrets
from launcher.run.attempts import attempts, read_plan
from launcher.run.durable import read_record, readable, write_bytes
from launcher.run.layout import RunDir, parse_log_folder
from launcher.run.records import Intent
from launcher.states import LOCAL, VERSION
from launcher.status.derive import RunStatus
from launcher.status.rank_log import open_log

_MOST_BYTES = 20_000_000  # of all members together
_MOST_OF_A_RECORD, _MOST_OF_A_LOG = 4_000_000, 64_000  # bytes of one file: the last ones
_MOST_RANK_LOGS, _MOST_FILES = 64, 2000
_RECORDS = ("plan.json", "state.json", "events.jsonl", "FENCE", "avoided.json", "gone.json", "origin.json",
            "metrics/environment*.jsonl")  # fmt: skip
_OF_ATTEMPTS = ("*.json", "*.jsonl", "*.log", "job.sh", "started", "node-*/*.json", "node-*/*.jsonl", "node-*/*.log",
                "hang-*/report.json")  # fmt: skip
_PACKAGES = ("msgspec", "numpy", "paramiko", "pyyaml", "rich", "safetensors", "submitit", "torch", "xxhash")
_KEYS_OF_HOSTS = frozenset({"host", "hosts", "address", "node"})
_TELL_NOTHING = frozenset({"localhost", "127.0.0.1", "0.0.0.0", LOCAL})  # noqa: S104 # nosec B104 - compared only
_LEAST_OF_ENVIRONMENT, _LEAST_OF_USER = 8, 3  # characters; shorter ones are words that occur anyway
_START = r"(?:(?<![a-zA-Z0-9])|(?<=\\[nrt]))"  # of a word; in a text that was quoted a line end is two letters
_LOOKS_SECRET = re.compile(
    r"(?<=://)[^/\s:@\"']+:[^/\s@\"']+(?=@)"  # user:password@ of an address
    rf"|{_START}(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abps]-|AKIA|ASIA)[\w-]{{12,}}"
    r"|(?<=Bearer )[\w.~+/=-]{8,}"
    r"|(?i:(?:passw(?:or)?d|secret|api[_-]?key|access[_-]?key|auth[_-]?token)[\"']?\s?[=:]\s?[\"']?)[^\s\"',;]{4,}"
)
_EMAIL = re.compile(rf"{_START}[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_IP_ADDRESS = re.compile(
    rf"{_START}(?:\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\d.])|(?:[0-9a-f]{{1,4}}:){{7}}[0-9a-f]{{1,4}}(?![\w:])"
    r"|[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6}::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,5})?(?![\w:]))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive; `cut` if only its last part is in the archive."""

    name: str  # its path in the archive
    data: bytes
    cut: bool = False  # only the last part of the file is in the archive


@dataclass(frozen=True, slots=True)
class DebugArchive:
    """The files of a run's debug archive, and a line of text for each item that was left out."""

    members: tuple[Member, ...]
    left_out: tuple[str, ...]

    def write(self, file: Path) -> None:
        """Write the archive to a file that only its user can read; raise Refused if that is impossible."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for one in self.members:
                header = tarfile.TarInfo(f"debug-archive/{one.name}")
                header.size, header.mtime, header.mode = len(one.data), int(time.time()), 0o600
                archive.addfile(header, io.BytesIO(one.data))
        try:
            write_bytes(file, packed.getvalue())
        except OSError as error:
            raise Refused(f"cannot write {file}: {said_by_the_system(error)}", "hint: -o names another file") from error


@dataclass(slots=True)
class _Redaction:
    """A filter for texts: it removes secrets, email and network addresses, and replaces each host by `host-1`, `host-2`
    and so on, and each user by `(user)`. First call `learn` with all records, which collects the hosts and users, then
    once `settle`, which chooses the replacements.
    """

    secrets: tuple[str, ...]
    users: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    _names: dict[str, str] = field(default_factory=dict)  # the replacement of each host and user
    _known: re.Pattern[str] | None = None

    def learn(self, value: Any, key: str = "") -> None:
        """Collect the names of hosts and users in a record; `key` is the key under which `value` stands."""
        match value:
            case str() if key in _KEYS_OF_HOSTS:
                self.hosts |= _hosts_in(value)
            case str() if key == "user":
                self.users.add(value)
            case dict():
                for name, inner in value.items():
                    self.learn(inner, "host" if name == "name" and key in _KEYS_OF_HOSTS else str(name))
            case list() | tuple():
                for inner in value:
                    self.learn(inner, key)

    def settle(self) -> None:
        """Choose the replacement of each host and user. It must be called once all records have been scanned."""
        self._names = {host.lower(): f"host-{number}" for number, host in enumerate(sorted(self.hosts), 1)}
        self._names |= {user.lower(): "(user)" for user in self.users if len(user) >= _LEAST_OF_USER and user != "root"}
        words = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))  # the longest first
        self._known = re.compile(rf"{_START}(?:{words})(?![a-z0-9])", re.IGNORECASE) if words else None

    def text(self, text: str) -> str:
        """Return the text with `(secret)`, `(email)` and `(address)` in place of secrets and addresses, with hosts
        numbered, and with `(user)` in place of users.
        """
        text = _LOOKS_SECRET.sub("(secret)", without_secrets(text, self.secrets))
        text = _EMAIL.sub("(email)", text)
        if self._known is not None:
            text = self._known.sub(lambda found: self._names[found.group().lower()], text)
        return _IP_ADDRESS.sub(lambda found: found.group() if found.group() in _TELL_NOTHING else "(address)", text)

    def value(self, value: Any) -> Any:
        """Return a record with all its texts redacted.

        The value of a key that names a token, key or password is replaced as a whole.
        """
        match value:
            case str():
                return self.text(value)
            case dict():
                return {
                    self.text(str(name)): "(secret)"
                    if isinstance(inner, str) and inner and names_a_secret(str(name))
                    else self.value(inner)
                    for name, inner in value.items()
                }
            case list() | tuple():
                return [self.value(inner) for inner in value]
            case _:
                return value


@dataclass(frozen=True, slots=True)
class _Part:
    """A file of the archive, with the secrets and names that `member` removes. `content` is a text, a value to be
    written as JSON or, with `lines`, a list of texts and JSON values to be written line by line. `cut`: only the last
    part of the file is in it.
    """

    name: str
    content: Any
    lines: bool = False
    cut: bool = False

    def member(self, redaction: _Redaction) -> Member:
        """Return the file for the archive, redacted."""
        content = redaction.value(self.content)
        if self.lines:
            text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in content)
        else:
            text = content if isinstance(content, str) else f"{json.dumps(content, indent=2)}\n"
        return Member(self.name, text.encode(errors="replace"), self.cut)


def collect(one: api.Run) -> DebugArchive:
    """Collect the contents of a run's archive, after fetching logs from the run's machines; what could not be fetched
    or has no room is listed in `left-out.txt`.

    Raise Refused if a secret's value is not on this machine, so that it cannot be redacted, and Damaged if a record
    with secrets cannot be read.
    """
    left_out = list[str]()
    try:
        status = one.renew()
    except LaunchError as error:
        left_out.append(f"what is on other machines: {error}")
        status = one.status(api.WATCH_S)
    run = RunDir(one.path)
    _refuse_unknown_secrets(run)
    parts = [*_facts(status), *_files(run, status, left_out)]
    redaction = _Redaction(tuple(_secrets(run, status.attempt)), {getpass.getuser()}, _hosts_in(socket.gethostname()))
    for part in parts:
        redaction.learn(part.content)
    redaction.settle()
    members, size = list[Member](), 0
    for part in parts:
        member = part.member(redaction)
        if size + len(member.data) > _MOST_BYTES:
            left_out.append(f"{part.name}: there is no room for it in {_MOST_BYTES // 1_000_000} MB")
        else:
            members.append(member)
            size += len(member.data)
    lines = tuple(map(redaction.text, left_out))
    return DebugArchive((*members, Member("left-out.txt", "".join(f"{line}\n" for line in lines).encode())), lines)


def _secrets(run: RunDir, attempt: int) -> Iterator[str]:
    """Yield every secret to be redacted: the secrets of the run's attempts up to `attempt`, long values in this
    process's environment whose variable is named like a secret, and the submit tokens of all attempts.
    """
    yield from secrets_of(run, attempt)
    for name, value in os.environ.items():
        if names_a_secret(name) and len(value) >= _LEAST_OF_ENVIRONMENT:
            yield value
    for one in attempts(run):
        if (intent := readable(one.intent, Intent)) is not None:
            yield intent.token


def _refuse_unknown_secrets(run: RunDir) -> None:
    """Raise Refused if the value of a secret is only on another machine, so that it could not be redacted."""
    known = read_record(run.secrets, dict[str, str]) or {}
    named = {name for one in attempts(run) for name in read_plan(run, one.number).secrets}
    if missing := sorted(named - set(known)):
        raise Refused(
            f"{run.id}: the value of {', '.join(missing)} is not on this machine, so it cannot be redacted",
            "hint: write the archive where the run was submitted",
        )


def _facts(status: RunStatus) -> Iterator[_Part]:
    """Yield facts that no file of the run has: versions, the present status, and the last findings of `launch
    doctor`.
    """
    versions = {"launch": VERSION, "python": platform.python_version(), "system": platform.platform()}
    yield _Part("versions.json", {**versions, "packages": dict(_packages())})
    yield _Part("status.json", msgspec.to_builtins(status))
    for cluster in dict.fromkeys((status.cluster, LOCAL)):
        if (found := last_check_up(cluster)) is not None:
            name = "this-machine" if cluster == LOCAL else "cluster"
            yield _Part(f"doctor-{name}.json", msgspec.to_builtins(found))


def _packages() -> Iterator[tuple[str, str]]:
    """Yield (name, version) of each package in _PACKAGES; the version is "not installed" for a missing one."""
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"


def _files(run: RunDir, status: RunStatus, left_out: list[str]) -> Iterator[_Part]:
    """Yield the run's records, and the ends (64 KB) of launch's own logs and of the ranks' logs, with the failed rank's
    before those of other ranks.

    For each file that is left out, as it cannot be read or there are too many, a line is added to `left_out`.
    """
    logs = _rank_logs(run, status)
    own = [path for pattern in _RECORDS for path in sorted(run.path.glob(pattern))]
    own += [
        path
        for one in reversed(attempts(run))
        for path in dict.fromkeys(path for pattern in _OF_ATTEMPTS for path in sorted(one.path.glob(pattern)))
    ]
    for path in own[_MOST_FILES:] + logs[_MOST_RANK_LOGS:]:
        left_out.append(f"{path.relative_to(run.path)}: there are too many files")
    for path in own[:_MOST_FILES] + logs[:_MOST_RANK_LOGS]:
        most = _MOST_OF_A_LOG if path.suffix == ".log" else _MOST_OF_A_RECORD
        try:
            text, cut = _last_part(path, most)
        except OSError as error:
            left_out.append(f"{path.relative_to(run.path)}: {said_by_the_system(error)}")
            continue
        yield _part_of(str(path.relative_to(run.path)), text, cut)


def _rank_logs(run: RunDir, status: RunStatus) -> list[Path]:
    """Return the logs of ranks: that of the failed rank first, then by generation, the newest first."""
    log = Path(status.failure.log or "") if status.failure is not None else Path()
    outside = log.is_absolute() or ".." in log.parts  # other machines write the record
    failed = [run.path / log] if log.suffix == ".log" and not outside else []
    folders = [path for path in run.logs.glob("*") if parse_log_folder(path.name) is not None]
    newest = sorted(folders, key=lambda path: parse_log_folder(path.name) or (0, 0), reverse=True)
    return list(dict.fromkeys([*failed, *(path for folder in newest for path in sorted(folder.glob("*.log")))]))


def _last_part(path: Path, most: int) -> tuple[str, bool]:
    """Return (the last whole lines of a file, at most `most` bytes of them, whether others precede them).

    A cut line is dropped: part of a secret in it would not be recognised.
    """
    with open_log(path) as fd:
        if fd is None:
            return "", False
        size = os.fstat(fd).st_size
        data = os.pread(fd, most, max(0, size - most))
    return (data.partition(b"\n")[2] if size > most else data).decode(errors="replace"), size > most


def _part_of(name: str, text: str, cut: bool) -> _Part:
    """Return the text of a file as the part `name` of the archive, decoded if its name ends in .json, or line by line
    if it ends in .jsonl. `cut` says that the text is only the end of the file.
    """
    if name.endswith(".jsonl"):
        return _Part(name, [_record_or_text(line) for line in text.splitlines()], lines=True, cut=cut)
    return _Part(name, _record_or_text(text) if name.endswith(".json") else text, cut=cut)


def _record_or_text(text: str) -> Any:
    """Return the value if the text is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _hosts_in(address: str) -> set[str]:
    """Return the host name in `user@name:port` or in a web address, and its first label; empty for an IP address."""
    name = re.sub(r"^\w+://|/.*$", "", address).rpartition("@")[2].partition(":")[0]
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]+", name) or name in _TELL_NOTHING or re.fullmatch(r"[\d.]+", name):
        return set()
    return {name, *(label for label in [name.partition(".")[0]] if len(label) > 1 and not label.isdigit())}
