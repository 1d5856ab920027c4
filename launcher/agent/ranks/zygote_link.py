"""The agent's end of the zygote: starting it, asking it for forks, hearing of deaths. The other end is zygote.py."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.agent.ranks.reaper import Death, Reaper
from launcher.errors import LaunchError

ZYGOTE = Path(__file__).parents[1] / "zygote.py"
_LINE_BYTES = 1 << 20

Order = dict[str, Any]
TellDeath = Callable[[Death], None]


class ForkRefused(LaunchError):
    """The zygote will not or cannot fork; the rank has to be started the ordinary way."""


class ZygoteGone(ForkRefused):
    """There is no zygote to ask any more."""


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path, pass_fds: Sequence[int] = ()
) -> int:
    """Start a child in a session of its own with its output in a file; only the reaper waits for it."""
    out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            argv,
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    finally:
        os.close(out)
    child.returncode = 0  # else subprocess itself would wait for it one day, and take the death from the reaper
    return child.pid


@dataclass(frozen=True, slots=True)
class _PendingFork:
    answer: "asyncio.Future[int]"
    tell: TellDeath


class ZygoteLink:
    """One zygote process. `ready` is set once its imports are through; `gone` once it has ended."""

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._wishes: dict[int, _PendingFork] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.pid = 0
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.report: dict[str, Any] = {}

    async def start(
        self, python: str, environment: Mapping[str, str], cwd: Path, preload: Sequence[str], log: Path
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [python, str(ZYGOTE), "serve", str(theirs.fileno()), str(os.getpid())]
            self.pid = spawn(argv, environment, cwd, log, pass_fds=[theirs.fileno()])
        self._reaper.watch(self.pid, self._died)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        self._reading = asyncio.create_task(self._read(reader))
        self._say({"op": "preload", "modules": list(preload)})

    async def fork(self, order: Order, tell: TellDeath) -> int:
        """Have a rank forked; gives its pid. Raises ForkRefused or ZygoteGone."""
        if self.gone.is_set():
            raise ZygoteGone("the zygote is gone")
        self._number += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._wishes[self._number] = _PendingFork(answer, tell)
        self._say({"op": "fork", "id": self._number, "order": order})
        # Shielded: who asked may change its mind, the fork comes all the same, and `settle` has to know of it.
        return await asyncio.shield(answer)

    async def settle(self) -> None:
        """Return once every fork that was asked for has been answered: no more will come of themselves."""
        while self._wishes:
            await asyncio.wait([wish.answer for wish in self._wishes.values()])

    async def close(self) -> None:
        """Let go: at the end of the stream the zygote ends what it forked, and itself."""
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def _say(self, words: Order) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(words).encode() + b"\n")

    def _died(self, death: Death) -> None:
        self.report.setdefault("death", f"ended with wait status {death.status}")
        self._lose()

    def _lose(self) -> None:
        self.gone.set()
        for wish in self._wishes.values():
            if not wish.answer.done():
                wish.answer.set_exception(ZygoteGone("the zygote is gone"))
        self._wishes.clear()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._hear(json.loads(line))
        except (OSError, ValueError) as error:
            self.report["death"] = f"its wire broke: {error}"
        self._lose()

    def _hear(self, words: Order) -> None:
        match words.get("op"):
            case "ready":
                self.report.update(words)
                self.ready.set()
            case "forked":
                wish = self._wishes.pop(words["id"])
                # Before anybody awaits the answer: the very next line may already tell of its death.
                self._reaper.watch(words["pid"], wish.tell)
                if not wish.answer.done():
                    wish.answer.set_result(words["pid"])
            case "refused":
                wish = self._wishes.pop(words["id"])
                if not wish.answer.done():
                    wish.answer.set_exception(ForkRefused(words["reason"]))
            case "exited":
                self._reaper.tell(words["pid"], Death(words["status"], words["maxrss_kb"] * 1024))
            case other:
                self.report["last_word"] = f"{other}: {words.get('reason', '')}"
