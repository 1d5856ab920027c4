"""The files of OpenSSH's client configuration: which values hold for one host. What the values mean is in config.py."""

import getpass
import glob
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import BadInput

_DEEPEST_INCLUDE = 16
_SYSTEM = Path("/etc/ssh/ssh_config")
_LINE = re.compile(r"(?P<keyword>[A-Za-z][A-Za-z0-9]*)(?:\s*=\s*|\s+|\Z)(?P<rest>.*)\Z", re.DOTALL)
_WORD = re.compile(r"""\s*(?P<comment>\#.*)?(?P<word>(?:"[^"]*"|'[^']*'|[^\s"'])+)?""")
_GATHERED = "identityfile"  # the one option of which every value counts, not only the first


@dataclass(slots=True)
class _Reading:
    """What is known so far of one host."""

    host: str  # as the user calls it
    found: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def hostname(self) -> str:
        (name,) = self.found.get("hostname", (self.host,))[:1]
        return name.replace("%h", self.host).replace("%%", "%")

    @property
    def user(self) -> str:
        return self.found["user"][0] if self.found.get("user") else getpass.getuser()

    def take(self, keyword: str, words: tuple[str, ...]) -> None:
        if keyword == _GATHERED:
            before = self.found.get(keyword, ())
            self.found[keyword] = before + tuple(word for word in words[:1] if word not in before)
        elif keyword in {"proxyjump", "proxycommand"}:  # two ways to say one thing: the first of either holds
            if not {"proxyjump", "proxycommand"} & set(self.found):
                self.found[keyword] = words
        else:
            self.found.setdefault(keyword, words)


def options_for(host: str, said: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Keywords in small letters and their words; what was `said` otherwise comes before every file."""
    reading = _Reading(host, {keyword: (value,) for keyword, value in said.items()})
    for path in _files():
        _read(path, reading, 0)
    return reading.found


def fits(name: str, patterns: str) -> bool:
    """True where a list of patterns with commas has one that fits, and none with a `!` that does."""
    answer = False
    for pattern in patterns.split(","):
        if pattern.startswith("!"):
            if _like(name, pattern[1:]):
                return False
        elif _like(name, pattern):
            answer = True
    return answer


def _like(name: str, pattern: str) -> bool:
    """`*` and `?`, and nothing else."""
    form = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.fullmatch(form, name, re.DOTALL) is not None


def _files() -> Iterator[Path]:
    named = os.environ.get("LAUNCH_SSH_CONFIG")
    if named is None or named == "":
        yield from (path for path in (Path.home() / ".ssh" / "config", _SYSTEM) if path.exists())
    elif named != "none":
        yield Path(named)


def _read(path: Path, reading: _Reading, depth: int) -> None:
    if depth > _DEEPEST_INCLUDE:
        raise BadInput(
            f"{path}: Include goes deeper than {_DEEPEST_INCLUDE} files", "hint: does a file include itself?"
        )
    try:
        text = path.read_text(errors="surrogateescape")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    active = True
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        keyword, words = _words(line, where)
        if keyword == "host":
            active = fits(reading.host, ",".join(words))
        elif keyword == "match":
            active = _matches(words, reading, where)
        elif active and keyword == "include":
            for name in words:
                for included in _included(name, path):
                    _read(included, reading, depth + 1)
        elif active and keyword:
            if not words:
                raise BadInput(f"{where}: {keyword}: expected a value")
            reading.take(keyword, words)


def _words(line: str, where: str) -> tuple[str, tuple[str, ...]]:
    """The keyword in small letters and what follows it; ("", ()) of a line that says nothing."""
    line = line.strip()
    if not line or line.startswith("#"):
        return "", ()
    found = _LINE.match(line)
    if found is None:
        raise BadInput(f"{where}: expected a keyword and a value, got {line[:60]!r}")
    rest, at, words = found["rest"], 0, list[str]()
    while at < len(rest):
        piece = _WORD.match(rest, at)
        if piece is None or piece.end() == at:
            raise BadInput(f"{where}: a quote is not closed")
        if piece["comment"] is not None:
            break
        if piece["word"] is not None:
            words.append(re.sub(r"""["']""", "", piece["word"]))
        at = piece.end()
    return found["keyword"].lower(), tuple(words)


def _matches(words: tuple[str, ...], reading: _Reading, where: str) -> bool:
    """Whether a Match line holds; one that asks for what is not known here does not."""
    rest = list(words)
    if not rest:
        raise BadInput(f"{where}: Match: expected what to match")
    while rest:
        criterion, is_, value = rest.pop(0).partition("=")
        wanted = not criterion.startswith("!")
        criterion = criterion.lstrip("!").lower()
        if criterion == "all":
            if not wanted:
                return False
            continue
        about = {
            "host": reading.hostname.lower(),
            "originalhost": reading.host.lower(),
            "user": reading.user,
            "localuser": getpass.getuser(),
        }
        if criterion not in about:
            return False
        if not is_:
            if not rest:
                raise BadInput(f"{where}: Match {criterion}: expected a pattern")
            value = rest.pop(0)
        patterns = value.lower() if "host" in criterion else value
        if fits(about[criterion], patterns) is not wanted:
            return False
    return True


def _included(name: str, of: Path) -> list[Path]:
    base = of.parent if of == _SYSTEM or _SYSTEM.parent in of.parents else Path.home() / ".ssh"
    return [Path(found) for found in sorted(glob.glob(str(base / Path(name).expanduser())))]
