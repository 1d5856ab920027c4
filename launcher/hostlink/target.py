"""Where a host of a pool is and how to log in there, by the rules of OpenSSH's own configuration. Connects to nothing.

The first value that is said wins. `Match` knows host, originalhost, user, localuser and all: a block that asks for
something else (exec, final, ...) is passed over, as if it did not match.
"""

import getpass
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import BadInput
from launcher.hostlink.config_file import options_for
from launcher.spec.model import SshHost

DEFAULT_PORT = 22
CONNECT_TIMEOUT_S = 10.0
_MOST_JUMPS = 8
_DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_USERS_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_EVERYBODYS_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@/]+)@)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^][@:/-][^][@:/]*))(?::(?P<port>\d{1,5}))?/?"
)
_TIME = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Target:
    """One host, and all that is needed to log in there."""

    name: str  # as the user calls it
    hostname: str
    port: int
    user: str
    keys: tuple[Path, ...]  # private keys that exist, in the order in which they are shown
    agent: bool  # the ssh-agent is asked: only where that was asked for
    jumps: tuple["Target", ...]  # hosts to pass, the nearest first
    known_as: str  # what the host is called in the files of known hosts
    known_hosts: tuple[Path, ...]  # the first is the one that a newly trusted key is added to
    connect_timeout_s: float
    agent_socket: str = ""  # empty: where $SSH_AUTH_SOCK says
    only_these_keys: bool = False  # of the agent's keys, none but those named here


def target_of(host: SshHost, *, agent: bool = False) -> Target:
    """How to reach a host of the clusters file or of a spec from here, by its name. Raises BadInput."""
    said = {"user": host.user, "port": None if host.port is None else str(host.port)}
    own = () if host.key is None else (Path(host.key).expanduser(),)
    for key in own:
        if not key.is_file():
            raise BadInput(f"{host.name}: there is no key {key}", "hint: `key:` of this host names a private key here")
    return _target(host.name, {name: value for name, value in said.items() if value}, own, agent=agent, passed=())


def _target(
    name: str, said: Mapping[str, str], keys: tuple[Path, ...], *, agent: bool, passed: tuple[str, ...]
) -> Target:
    """`passed`: the hosts that it is a jump for."""
    if name in passed or len(passed) > _MOST_JUMPS:
        raise BadInput(
            f"{passed[0]}: ProxyJump leads in a circle: {' -> '.join((*passed, name))}",
            f"hint: `ProxyJump none` for {name} in the SSH configuration",
        )
    found = options_for(name, said)
    first = {keyword: words[0] for keyword, words in found.items()}
    _no_proxy_command(name, first)
    user = first.get("user") or getpass.getuser()
    hostname = _filled(first.get("hostname", name), {"h": name}, name, "HostName").lower()
    port = _port(first.get("port", str(DEFAULT_PORT)), name)
    tokens = {
        "d": str(Path.home()),
        "h": hostname,
        "i": str(os.getuid()),
        "k": first.get("hostkeyalias", name),
        "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0],
        "n": name,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
    }
    socket_said = first.get("identityagent", "")
    return Target(
        name=name,
        hostname=hostname,
        port=port,
        user=user,
        keys=_keys(keys, found.get("identityfile", ()), tokens, name),
        agent=agent or socket_said.lower() not in {"", "none"},
        jumps=_jumps(first.get("proxyjump", "none"), tokens, (*passed, name), agent=agent),
        known_as=first.get("hostkeyalias") or known_name(hostname, port),
        known_hosts=(
            *_files(found.get("userknownhostsfile", _USERS_KNOWN_HOSTS), tokens, name),
            *_files(found.get("globalknownhostsfile", _EVERYBODYS_KNOWN_HOSTS), tokens, name),
        ),
        connect_timeout_s=_seconds(first.get("connecttimeout", "none"), name),
        agent_socket=_agent_socket(socket_said, tokens, name),
        only_these_keys=first.get("identitiesonly", "no").lower() in {"yes", "true"},
    )


def known_name(hostname: str, port: int) -> str:
    """What files of known hosts call it."""
    return hostname if port == DEFAULT_PORT else f"[{hostname}]:{port}"


def _no_proxy_command(name: str, first: Mapping[str, str]) -> None:
    if first.get("proxycommand", "none").lower() != "none":
        raise BadInput(
            f"{name}: ProxyCommand of the SSH configuration is not supported here",
            "hint: `ProxyJump` does the same where the command is an ssh",
        )


def _keys(own: tuple[Path, ...], named: Sequence[str], tokens: Mapping[str, str], name: str) -> tuple[Path, ...]:
    """Those that exist: the host's own, then the configuration's, else the ones that ssh takes by itself."""
    if own and not named:
        return own
    said = [word for word in named if word.lower() != "none"] if named else _DEFAULT_KEYS
    listed = [*own, *_files(said, tokens, name)]
    return tuple(dict.fromkeys(path for path in listed if path.is_file()))


def _jumps(said: str, tokens: Mapping[str, str], passed: tuple[str, ...], *, agent: bool) -> tuple[Target, ...]:
    if said.lower() == "none":
        return ()
    jumps: list[Target] = []
    for word in _filled(said, tokens, passed[-1], "ProxyJump").split(","):
        found = _JUMP.fullmatch(word.strip())
        if found is None:
            raise BadInput(f"{passed[-1]}: ProxyJump: expected user@host:port, got {word!r}")
        values = {keyword: found[keyword] for keyword in ("user", "port") if found[keyword]}
        jump = _target(found["host"] or found["six"], values, (), agent=agent, passed=passed)
        # The nearest one is reached as the configuration says; the others through the one before.
        jumps += [*(jump.jumps if not jumps else ()), replace(jump, jumps=())]
    return tuple(jumps)


def _files(words: Sequence[str], tokens: Mapping[str, str], name: str) -> list[Path]:
    return [Path(_path(word, tokens, name)) for word in words if word.lower() != "none"]


def _path(word: str, tokens: Mapping[str, str], name: str) -> str:
    """With ~, %x and ${NAME} filled in."""

    def variable(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise BadInput(f"{name}: the SSH configuration uses ${{{found[1]}}}, which is not set")
        return os.environ[found[1]]

    filled = _filled(os.path.expanduser(word), tokens, name, word)
    return re.sub(r"\$\{([^}]*)\}", variable, filled)


def _agent_socket(said: str, tokens: Mapping[str, str], name: str) -> str:
    if said.lower() in {"", "none"} or said == "SSH_AUTH_SOCK":
        return ""
    if said.startswith("$") and not said.startswith("${"):
        return os.environ.get(said[1:], "")
    return _path(said, tokens, name)


def _filled(text: str, tokens: Mapping[str, str], name: str, what: str) -> str:
    def token(found: re.Match[str]) -> str:
        letter = found[1]
        if letter == "%":
            return "%"
        if letter not in tokens:
            raise BadInput(f"{name}: {what} of the SSH configuration: %{letter} is not supported here")
        return tokens[letter]

    return re.sub(r"%(.?)", token, text)


def _port(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise BadInput(f"{name}: Port of the SSH configuration: expected 1 to 65535, got {text!r}")
    return int(text)


def _seconds(text: str, name: str) -> float:
    """As OpenSSH writes times: 10, 90s, 1m30s; none or 0 is ours to choose."""
    if text.lower() == "none":
        return CONNECT_TIMEOUT_S
    pieces = _TIME.findall(text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        raise BadInput(f"{name}: ConnectTimeout of the SSH configuration: expected a time, got {text!r}")
    return float(sum(int(number) * _UNITS[unit.lower()] for number, unit in pieces)) or CONNECT_TIMEOUT_S
