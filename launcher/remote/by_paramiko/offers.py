"""The keys that are offered to a host, and why others are not."""

import base64
import os
from pathlib import Path

from launcher.remote.failures import NoAccess, why
from launcher.remote.paramiko_library import BROKEN, Agent, Key, read_key
from launcher.remote.running import ClosedAtTheEnd
from launcher.remote.target import Target, who


class Offers(ClosedAtTheEnd):
    """Keys to offer: those of files first, then the agent's if it was asked for. The agent signs until this is
    closed.
    """

    def __init__(self, target: Target) -> None:
        self.keys: list[Key] = []
        self._target = target
        self._agent: Agent | None = None
        self._shown: list[str] = []
        self._notes: list[str] = []
        for path in target.keys:
            try:
                self.keys.append(read_key(path))
                self._shown.append(str(path))
            except ValueError as error:
                self._notes.append(f"  {path} {error}")
        if target.agent:
            self._ask_agent()

    def close(self) -> None:
        """Close the connection to the ssh-agent."""
        if self._agent is not None:
            self._agent.close()

    def refused(self, what: str) -> NoAccess:
        """Return the error that no key gave access, with the keys that were offered."""
        target = self._target
        agent = "" if target.agent else ", or `agent: true` of the pool has your ssh-agent asked"
        return NoAccess(
            f"{who(target)}: no access as {target.user}{f': {what}' if what else ''}",
            f"  keys shown: {', '.join(self._shown)}" if self._shown else "  there was no key to show",
            *self._notes,
            f"hint: `key:` of the host, or IdentityFile in the SSH configuration, names one{agent}",
        )

    def _ask_agent(self) -> None:
        """Add the agent's keys, or note why it does not answer."""
        try:
            self._agent = Agent(self._target.agent_socket or os.environ.get("SSH_AUTH_SOCK", ""))
        except (*BROKEN, ValueError) as error:
            self._notes.append(f"  the ssh-agent does not answer: {why(error)}")
            return
        shown = {key.asbytes() for key in self.keys}
        named = {blob for path in self._target.keys if (blob := _public(path))}
        for key in self._agent.get_keys():
            if key.asbytes() not in shown and (not self._target.only_these_keys or key.asbytes() in named):
                self.keys.append(key)
                self._shown.append(f"{key.comment or key.get_name()} of the ssh-agent")


def _public(path: Path) -> bytes | None:
    """Return the public key beside a private one or in the file itself, or None."""
    for candidate in (path.with_name(f"{path.name}.pub"), path):
        try:
            return base64.b64decode(candidate.read_text(errors="replace").split()[1], validate=True)
        except (OSError, IndexError, ValueError):
            continue
    return None
