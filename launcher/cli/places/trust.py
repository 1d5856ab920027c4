"""Store the SSH keys of hosts, for `launch nodes trust`: show each key, and ask the user whether it is right."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

from launcher.cli.terminal import safe
from launcher.errors import Exit, LaunchError, Refused
from launcher.remote.connect import host_key
from launcher.remote.known_hosts import ChangedKey, HostKey, UnknownKey, add, check, fingerprint, known_keys
from launcher.remote.target import Target, who


def trust_hosts(targets: Sequence[Target], fingerprints: Collection[str] = ()) -> int:
    """Store the keys of the hosts, and of the jump hosts before them; return the exit code of the first failure, else
    OK. If a jump host's key is not stored, the host behind it is left out; the other hosts follow all the same.

    The user confirms each key on the terminal, unless its fingerprint is in `fingerprints`.
    """
    seen: set[str] = set()
    failures: list[LaunchError] = []
    for target in targets:
        for hop in _with_jump_hosts(target):
            if hop.known_as in seen:
                continue
            seen.add(hop.known_as)
            error = _trust_one(hop, fingerprints)
            if error is not None:
                failures.append(error)
                break
    return failures[0].exit_code if failures else Exit.OK


def _with_jump_hosts(target: Target) -> list[Target]:
    """Return the jump hosts through which a host is reached, in order, and then the host itself."""
    hops = [replace(hop, jumps=target.jumps[:number]) for number, hop in enumerate(target.jumps)]
    return [*hops, target]


def _trust_one(target: Target, fingerprints: Collection[str]) -> LaunchError | None:
    """Store the key of a host, once the user has confirmed it or if its fingerprint is in `fingerprints`.

    Print and return the error if that fails, so that the caller can continue with other hosts; else return None.
    """
    try:
        print(safe(_trusted(target, fingerprints)))
    except LaunchError as error:
        print("\n".join(map(safe, error.lines)), file=sys.stderr)
        return error
    return None


def _trusted(target: Target, fingerprints: Collection[str]) -> str:
    """Store a host's key once it is confirmed: by `fingerprints`, which has the key's fingerprint, or by the user on
    the terminal. Return a line about it; raise LaunchError if it is not confirmed.
    """
    key = host_key(target)
    shown = f"{key.kind} {key.fingerprint}"
    try:
        check(target, key)
    except UnknownKey as error:
        _confirm_key(target, key, fingerprints, error)
    except ChangedKey as error:
        _confirm_key(target, key, fingerprints, error)
    else:
        return f"{target.name}: known already: {shown}"
    return f"{target.name}: {shown} is known from now on, by {add(target, key)}"


def _confirm_key(target: Target, key: HostKey, fingerprints: Collection[str], error: UnknownKey | ChangedKey) -> None:
    """Raise Refused unless the key's fingerprint is in `fingerprints`, or the user confirms it. `error` says that no
    key of the host is known, or another one.

    For a changed key the user has to type the fingerprint, because `yes` is typed too easily.
    """
    if key.fingerprint in fingerprints:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            error.lines[0],
            "  there is no terminal here to ask on",
            f"hint: `launch nodes trust {target.name} --yes FINGERPRINT`, with the fingerprint as the host's console "
            f"shows it: {_listing(key)}",
        )
    changed = isinstance(error, ChangedKey)
    said = _ask(target, key, changed=changed)
    if said != key.fingerprint and (changed or said.lower() != "yes"):
        raise Refused(f"{who(target)}: not trusted", "hint: nothing was changed; the same command asks again")


def _ask(target: Target, key: HostKey, *, changed: bool) -> str:
    """Ask the user on the terminal whether a key is right, and return the typed answer: `yes`, a fingerprint, or
    something else.

    With `changed`, the host had another key before.
    """
    lines = [f"{who(target)} shows {'another key than the known one' if changed else 'a key that is not known'}:"]
    lines.append(f"  {key.kind} {key.fingerprint}")
    if changed:
        old = [known for known in known_keys(target) if not known.marker]
        lines += [f"  expected: {one.kind} {fingerprint(one.blob)} ({one.file}:{one.number})" for one in old]
        lines.append("  somebody may be in between, unless the host was set up anew")
    lines.append(f"  the host's console shows the right one: {_listing(key)}")
    print("\n".join(map(safe, lines)), file=sys.stderr)
    wanted = "its fingerprint" if changed else "yes, or its fingerprint"
    print(f"is it the right one? type {wanted}: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _listing(key: HostKey) -> str:
    """Return the command that shows this key on the host itself."""
    name = {"ssh-rsa": "rsa", "ssh-ed25519": "ed25519"}.get(key.kind, "ecdsa")
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{name}_key.pub"
