"""Find out from OpenSSH's configuration where a host is and how to log in there, without connecting.

`ssh -G` interprets the configuration. Without ssh, paramiko's reader does, which does not support Include.
"""

import getpass
import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import BadInput, Unreachable
from launcher.remote.failures import Dropped
from launcher.spec.model import SshHost

TRY = "hint: is it up? a firewall in between, or a wrong port, looks the same"
DEFAULT_PORT = 22
CONNECT_TIMEOUT_S = 10.0
AUTHENTICATION_S = 15.0  # LDAP and PAM may take their time; a command has 30 s, and more may be silent after this
_MOST_JUMPS = 8
_DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_NOT_FOR_US = ("~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519_sk", "~/.ssh/id_xmss", "~/.ssh/id_dsa")
_USERS_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_EVERYBODYS_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_LISTS = ("userknownhostsfile", "globalknownhostsfile")
_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@/]+)@)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^][@:/-][^][@:/]*))(?::(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A host, and everything that is needed to log in to it.

    `agent` allows the ssh-agent's keys, `only_these_keys` no others of them than `keys`; `jumps` are the jump hosts,
    nearest first; `known_as` is the host's name in the `known_hosts` files. After `asked_after_s` of silence a
    keepalive is sent, after `silence_limit_s` the connection is given up. `said` has the options that the user gave the
    launcher, such as (port, 2222); with the transport openssh, ssh itself looks up all others.
    """

    name: str  # the user's name for the host
    hostname: str  # by which it is found in DNS, or its address
    port: int
    user: str
    keys: tuple[Path, ...]  # private keys that exist, in the order in which they are offered
    agent: bool  # the ssh-agent's keys are offered as well
    jumps: tuple["Target", ...]  # jump hosts, the nearest first
    known_as: str  # the host's name in known-hosts files
    known_hosts: tuple[Path, ...]  # the first is the one to which newly trusted keys are added
    connect_timeout_s: float
    asked_after_s: float = 3.0  # silence after which a keepalive is sent
    silence_limit_s: float = 10.0  # total silence after which the connection is given up
    agent_socket: str = ""  # "": $SSH_AUTH_SOCK
    only_these_keys: bool = False  # of the agent's keys, only those among `keys`
    proxy_command: str = ""  # the command that connects to the host
    transport: str = "paramiko"  # or openssh, which itself looks up all but the options in `said`
    said: tuple[tuple[str, str], ...] = ()  # options that the user gave the launcher: user and port


def target_of(host: SshHost, *, agent: bool = False) -> Target:
    """Return how to reach a host of the clusters file or of a spec; raise BadInput if its options are wrong.

    `agent` allows the keys of the user's ssh-agent.
    """
    said = {"user": host.user, "port": None if host.port is None else str(host.port)}
    own = () if host.key is None else (Path(host.key).expanduser(),)
    for key in own:
        if not key.is_file():
            raise BadInput(f"{host.name}: there is no key {key}", "hint: `key:` of this host names a private key here")
    found = {name: value for name, value in said.items() if value}
    if host.transport == "openssh":
        # With nothing looked up: ssh does that itself.
        port = host.port or DEFAULT_PORT
        known_as = known_name(host.name, port)
        said_so = tuple(found.items())
        ours = Target(host.name, host.name, port, host.user or "", own, agent, (), known_as, (), CONNECT_TIMEOUT_S)
        return replace(ours, transport="openssh", said=said_so)
    return _target(host.name, found, own, agent=agent, passed=())


def resolved(target: Target) -> Target:
    """Return `target` with the options that ssh would look up for itself in its configuration, such as user, port and
    keys; raise BadInput if one is wrong. The target is of the transport openssh, and so is the result.
    """
    return replace(
        _target(target.name, dict(target.said), target.keys, agent=target.agent, passed=()), transport="openssh"
    )


def configured() -> list[str]:
    """Return the options with which ssh is to be called so that it uses the same configuration file as the launcher:
    `-F` and the file, or an empty list if that is the one that ssh uses by itself.
    """
    named = os.environ.get("LAUNCH_SSH_CONFIG")
    if not named:
        own = Path.home() / ".ssh" / "config"
        return ["-F", str(own)] if own.exists() and Path.home() != Path(pwd.getpwuid(os.getuid()).pw_dir) else []
    return ["-F", named]


def _target(
    name: str, said: Mapping[str, str], keys: tuple[Path, ...], *, agent: bool, passed: tuple[str, ...]
) -> Target:
    """Return how to reach the host `name` with the user's own `keys`. Raise BadInput if an option is wrong, or if jump
    hosts lead in a circle.

    `said` has options (user, port) that override those of the SSH configuration. `agent` allows the keys of the user's
    ssh-agent; `passed` are the hosts for which this one is a jump host.
    """
    if name in passed or len(passed) > _MOST_JUMPS:
        raise BadInput(
            f"{passed[0]}: ProxyJump leads in a circle: {' -> '.join((*passed, name))}",
            f"hint: `ProxyJump none` for {name} in the SSH configuration",
        )
    found = _options(name, said)
    first = {keyword: words[0] for keyword, words in found.items() if words}
    user = first.get("user") or getpass.getuser()
    hostname = first.get("hostname", name).lower()
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
        proxy_command="" if first.get("proxycommand", "none").lower() == "none" else first["proxycommand"],
        said=tuple(said.items()),
    )


def _options(name: str, said: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return OpenSSH's configuration of this host, by keyword in lower case, each with its words. Options in `said`,
    such as a port that the clusters file gives, override it.

    Raise BadInput if the configuration cannot be read.
    """
    files = _configuration_files()
    if shutil.which("ssh") is None:
        from launcher.remote.paramiko_library import configuration  # late: only where there is no ssh

        return configuration(files, name, said)
    words = [word for keyword, value in said.items() for word in ("-o", f"{keyword}={value}")]
    argv = ["ssh", *configured(), *words, "-G", "--", name]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said_so = [line for line in done.stderr.decode(errors="replace").splitlines() if not line.startswith("Pseudo-")]
        raise BadInput(*(f"{name}: SSH configuration: {line.strip()}" for line in said_so[:1] or ["cannot be read"]))
    return parse_options(os.fsdecode(done.stdout))


def parse_options(text: str) -> dict[str, tuple[str, ...]]:
    """Return the options in the output of `ssh -G`: the values of each keyword, which is in lower case.

    An option has one value for each of its lines; a line of an option that is a list has a value for each word.
    """
    found: dict[str, tuple[str, ...]] = {}
    for line in text.split("\n"):
        keyword, _, value = line.partition(" ")
        words = value.split() if keyword in _LISTS else [value]
        found[keyword] = (*found.get(keyword, ()), *words)
    return found


def _configuration_files() -> list[Path]:
    """Return the files of OpenSSH's configuration that exist, or the one in LAUNCH_SSH_CONFIG if that is set (none for
    the value `none`). Raise BadInput if that one cannot be read.
    """
    named = os.environ.get("LAUNCH_SSH_CONFIG")
    if not named:
        return [path for path in (Path.home() / ".ssh" / "config", Path("/etc/ssh/ssh_config")) if path.exists()]
    if named == "none":
        return []
    try:
        Path(named).read_bytes()
    except OSError as error:
        raise BadInput(f"{named}: cannot be read: {error.strerror}") from None
    return [Path(named)]


def known_name(hostname: str, port: int) -> str:
    """Return the name under which known-hosts files list a host: `[name]:port` for other ports than 22."""
    return hostname if port == DEFAULT_PORT else f"[{hostname}]:{port}"


def silent(target: Target) -> Unreachable:
    """Return the error for a host that does not answer."""
    return Unreachable(f"{who(target)} does not answer", TRY)


def dropped(target: Target, *words: str) -> Dropped:
    """Return the error for a host that closed the connection at once; `words` are what it printed."""
    hint = "hint: its sshd may have too many logins at the moment; a larger `MaxStartups` there lets more in"
    return Dropped(f"{who(target)} hung up at once", *words, hint)


def earlier(limit_s: float, deadline: float | None) -> float:
    """Return the earlier of `deadline` (None for none) and the time `limit_s` from now, by `time.monotonic`."""
    own = time.monotonic() + limit_s
    return own if deadline is None else min(own, deadline)


def who(target: Target) -> str:
    """Return the host as text for messages: the user's name for it and, if different, its address."""
    where = target.hostname if target.port == 22 else f"{target.hostname} port {target.port}"
    return target.name if where == target.name else f"{target.name} ({where})"


def _keys(own: tuple[Path, ...], named: Sequence[str], tokens: Mapping[str, str], name: str) -> tuple[Path, ...]:
    """Return the key files with which to log in: the host's `own` from the clusters file, then those of `named` that
    exist.

    `named` are the IdentityFile words of ssh's configuration. If there are none, or only the usual ones (such as
    ~/.ssh/id_ed25519), `own` alone is returned or, without `own`, the usual ones that exist. `tokens` has the values of
    tokens such as %h, and `name` is the host's name for messages.
    """
    if own and (not named or set(_DEFAULT_KEYS) <= set(named)):
        return own
    said = [word for word in named or _DEFAULT_KEYS if word not in _NOT_FOR_US]
    listed = [*own, *_files(said, tokens, name)]
    return tuple(dict.fromkeys(path for path in listed if path.is_file()))


def _jumps(said: str, tokens: Mapping[str, str], passed: tuple[str, ...], *, agent: bool) -> tuple[Target, ...]:
    """Return the jump hosts that `said`, the option ProxyJump, names, in the order in which they are connected to;
    `agent` offers them the keys of the user's ssh-agent as well.

    `tokens` has the values of tokens such as %h, and `passed` the hosts whose jump hosts are being looked up, to find
    circles. Raise BadInput if the option is malformed, or if jump hosts lead in a circle.
    """
    if said.lower() == "none":
        return ()
    jumps: list[Target] = []
    for word in _filled(said, tokens, passed[-1], "ProxyJump").split(","):
        found = _JUMP.fullmatch(word.strip())
        if found is None:
            raise BadInput(f"{passed[-1]}: ProxyJump: expected user@host:port, got {word!r}")
        values = {keyword: found[keyword] for keyword in ("user", "port") if found[keyword]}
        jump = _target(found["host"] or found["six"], values, (), agent=agent, passed=passed)
        # The nearest one is reached by the configuration, the others through the one before.
        jumps += [*(jump.jumps if not jumps else ()), replace(jump, jumps=())]
    return tuple(jumps)


def _files(words: Sequence[str], tokens: Mapping[str, str], name: str) -> list[Path]:
    """Return the paths that `words`, the values of an SSH option, stand for; the word `none` stands for no file.

    Variables and tokens such as %h, whose values are in `tokens`, are filled in. `name` is the host's name for
    messages. Raise BadInput for an unknown token or a variable that is not set.
    """
    return [Path(_path(word, tokens, name)) for word in words if word.lower() != "none"]


def _path(text: str, tokens: Mapping[str, str], name: str) -> str:
    """Return the path in an SSH option with `~`, ${NAME}, and tokens such as %h, which are in `tokens`, filled in;
    `name` is the host's name for messages. Raise BadInput for an unknown token or a variable that is not set.
    """

    def variable(found: re.Match[str]) -> str:
        """Return the value of an environment variable; raise BadInput if it is not set."""
        if found[1] not in os.environ:
            raise BadInput(f"{name}: the SSH configuration uses ${{{found[1]}}}, which is not set")
        return os.environ[found[1]]

    filled = _filled(os.path.expanduser(text), tokens, name, text)
    return re.sub(r"\$\{([^}]*)\}", variable, filled)


def _agent_socket(said: str, tokens: Mapping[str, str], name: str) -> str:
    """Return the path of the agent's socket that `said`, the option IdentityAgent, gives, or "" if it is empty, `none`
    or SSH_AUTH_SOCK.

    `tokens` has the values of tokens such as %h, and `name` is the host's name for messages. Raise BadInput for an
    unknown token or a variable that is not set.
    """
    if said.lower() in {"", "none"} or said == "SSH_AUTH_SOCK":
        return ""
    if said.startswith("$") and not said.startswith("${"):
        return os.environ.get(said[1:], "")
    return _path(said, tokens, name)


def _filled(text: str, tokens: Mapping[str, str], name: str, what: str) -> str:
    """Return the text with tokens such as %h, which are in `tokens`, filled in; raise BadInput for an unknown token in
    the option `what` of the host `name`.
    """

    def token(found: re.Match[str]) -> str:
        """Return the text for which a token stands."""
        letter = found[1]
        if letter == "%":
            return "%"
        if letter not in tokens:
            raise BadInput(f"{name}: {what} of the SSH configuration: %{letter} is not supported here")
        return tokens[letter]

    return re.sub(r"%(.?)", token, text)


def _port(text: str, name: str) -> int:
    """Return the port number in the text; raise BadInput about the host `name` if the text is no port."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise BadInput(f"{name}: Port of the SSH configuration: expected 1 to 65535, got {text!r}")
    return int(text)


def _seconds(text: str, name: str) -> float:
    """Return the number of seconds in the option ConnectTimeout of the host `name`, or the default for `none` or 0;
    raise BadInput for other text.
    """
    if text.lower() == "none":
        return CONNECT_TIMEOUT_S
    if not text.isascii() or not text.isdigit():
        raise BadInput(f"{name}: ConnectTimeout of the SSH configuration: expected seconds, got {text!r}")
    return float(text) or CONNECT_TIMEOUT_S
