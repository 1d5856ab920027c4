"""Let the supervisors of a run ask each other: each listens on its host's address, and both sides prove that they know
the run's secret.

Each question is one short connection; all of it runs in a thread of its own.
"""

import asyncio
import functools
import queue
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING

import msgspec

from launcher.clock import boottime
from launcher.errors import LaunchError
from launcher.places.ssh.host.supervisor_messages import (
    Ask,
    Declined,
    Replica,
    SupervisorQuestion,
    SupervisorReply,
)
from launcher.places.ssh.messages import Peer
from launcher.wire.frames import Wire, WireError, WireServer, dial

if TYPE_CHECKING:
    from concurrent.futures import Future

WIRE = "keepers"
ASK_S = 3.0
HEAR_S = 1.0  # for a host whose silence means something: it may be the one that is gone
_SILENT_S = 0.25  # for a host that did not answer before, so that a lost host does not delay those that answer
_LINE_BYTES = 4 << 20
_MOST_ASKERS = 1024  # all others may ask at once, and each is answered only when it is its turn
_SERVE_S = 30.0

_questions: msgspec.json.Decoder[SupervisorQuestion] = msgspec.json.Decoder(SupervisorQuestion)
_replies: msgspec.json.Decoder[SupervisorReply] = msgspec.json.Decoder(SupervisorReply)


class SupervisorRpc:
    """The connections of a supervisor to the others. `answer` is called with every authenticated question and the
    address of its sender, and returns the reply. It is called in other threads, possibly in several at a time.

    `port` is the port on which this supervisor listened in an earlier start, which the others know, or 0 for any free
    one. `ask_s` limits how long answers are waited for, unless a question sets another limit.
    """

    def __init__(
        self, address: str, key: bytes, answer: Callable[[SupervisorQuestion, str], SupervisorReply], port: int = 0,
        ask_s: float = ASK_S,
    ) -> None:  # fmt: skip
        self._ask_s = ask_s
        self._address, self._key, self._answer = address, key, answer
        self._peers: Mapping[int, Peer] = {}
        self._me = -1
        self._telling = ThreadPoolExecutor(
            1, "supervisor status"
        )  # others wait for a disk: an Ask does not wait for them
        self._gone_since: dict[Peer, float] = {}  # since when their hosts refuse connections; inf: they are silent
        self._late: set[asyncio.Task[SupervisorReply | None]] = set()  # of silent hosts, for whose answers nobody waits
        started: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()
        work = self._work(started, port)
        self._thread = threading.Thread(target=asyncio.run, args=(work,), name="supervisor rpc", daemon=True)
        self._thread.start()
        first = started.get()
        if isinstance(first, OSError):
            raise first
        self.port = first

    def join(self, peers: Sequence[Peer], me: int) -> None:
        """Set the addresses of all supervisors, in the order of their numbers, of which `me` is this one's."""
        self._peers = {number: peer for number, peer in enumerate(peers) if number != me}
        self._me = me

    @property
    def me(self) -> int:
        """Return this supervisor's number among the run's supervisors."""
        return self._me

    @property
    def others(self) -> tuple[int, ...]:
        """Return the numbers of the other supervisors: their positions in the list of the run's supervisors."""
        return tuple(self._peers)

    def peer(self, number: int) -> Peer:
        """Return the address of another supervisor of the run by its number; `join` has set it."""
        return self._peers[number]

    def ask(
        self, question: SupervisorQuestion, whom: Collection[int] | None = None, limit_s: float | None = None
    ) -> dict[int, SupervisorReply]:
        """Ask the hosts `whom`, or with None all others, at the same time; return the answers that came in time, by
        host number.

        The time is `limit_s`, or with None the `ask_s` of this object.
        """
        chosen = [number for number in (self._peers if whom is None else whom) if number in self._peers]
        asking = self._ask_all(question, chosen, self._ask_s if limit_s is None else limit_s)
        future: Future[dict[int, SupervisorReply]] = asyncio.run_coroutine_threadsafe(asking, self._loop)
        return future.result()

    def ask_one(self, question: SupervisorQuestion, whom: int, limit_s: float | None = None) -> SupervisorReply | None:
        """Ask host number `whom` and return its answer, or None if none came within `limit_s` seconds (None: the
        `ask_s` of this object).
        """
        return self.ask(question, [whom], limit_s).get(whom)

    def suspect(self, host: str) -> None:
        """Treat the supervisor on this host as silent until it answers, because the agent here has lost it: no question
        waits long for its answer. Do nothing if `host` is this host.
        """
        for peer in self._peers.values():
            if peer.host == host:
                self._gone_since.setdefault(peer, inf)

    def gone(self, for_s: float) -> set[int]:
        """Return the numbers of the hosts that have refused connections for more than `for_s` seconds, and so have no
        supervisor; a silent host may have one.
        """
        before = boottime() - for_s
        return {number for number, peer in self._peers.items() if self._gone_since.get(peer, inf) < before}

    def all_gone(self, for_s: float) -> bool:
        """Return whether all other hosts have refused connections for more than `for_s` seconds, so that none has a
        supervisor.
        """
        return len(self.gone(for_s)) == len(self._peers)

    def close(self) -> None:
        """Stop listening and wait for the end of the thread that does so."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._telling.shutdown(wait=False)

    # -- in the thread

    async def _work(self, started: "queue.SimpleQueue[int | OSError]", port: int) -> None:
        """Listen on `port` until closed; put the port in use, or the error, into `started`."""
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        listener = WireServer(self._key, _questions, self._serve, _MOST_ASKERS, _LINE_BYTES)
        try:
            started.put(await listener.start(self._address, port))
        except OSError as error:
            started.put(error)
            return
        await self._over.wait()
        await listener.close()

    async def _serve(self, wire: Wire[SupervisorQuestion, SupervisorReply]) -> None:
        """Receive the one question of a connection and send the answer; raise TimeoutError if both take too long
        (`_SERVE_S`).
        """
        async with asyncio.timeout(_SERVE_S):
            question = await wire.receive()
            if question is not None:
                pool = self._telling if isinstance(question, Ask) else None
                answering = self._loop.run_in_executor(pool, self._answered, question, wire.address)
                await wire.deliver(await answering)

    def _answered(self, question: SupervisorQuestion, asker: str) -> SupervisorReply:
        """Return what `answer` returns for a question that came from the address `asker`, or Declined with the reason
        if it raises LaunchError.
        """
        try:
            return self._answer(question, asker)
        except LaunchError as error:
            return Declined(str(error)[:1000])

    async def _ask_all(
        self, question: SupervisorQuestion, whom: Sequence[int], limit_s: float
    ) -> dict[int, SupervisorReply]:
        """Ask the hosts at the same time and return the answers that came within `limit_s` seconds, by host number.

        A host that did not answer before is waited for only briefly (`_SILENT_S`) if the question is an Ask (for the
        host's state) or a Replica (a piece of a record). The Ask goes on in the background, as an answer, however late,
        shows that the host is back. The Replica is given up, because a newer one may have overtaken it.
        """
        asking: dict[int, asyncio.Task[SupervisorReply | None]] = {}
        silent = {number for number in whom if self._gone_since.get(self._peers[number]) == inf}
        for number in whom:
            is_short = number in silent and isinstance(question, Replica)
            work = self._ask(question, self._peers[number], min(limit_s, _SILENT_S) if is_short else limit_s)
            asking[number] = asyncio.create_task(work)
        brief = silent if isinstance(question, Ask) else set[int]()
        awaited = [asking[number] for number in whom if number not in brief]
        if awaited:
            await asyncio.wait(awaited)
        if late := [task for task in asking.values() if not task.done()]:
            _, pending = await asyncio.wait(late, timeout=_SILENT_S)
            self._late |= pending
            for task in pending:
                task.add_done_callback(self._late.discard)
        replies = {number: task.result() for number, task in asking.items() if task.done()}
        return {number: reply for number, reply in replies.items() if reply is not None}

    async def _ask(self, question: SupervisorQuestion, peer: Peer, limit_s: float) -> SupervisorReply | None:
        """Ask one host over a new connection, and return its answer; return None if the connection fails or no answer
        comes within `limit_s` seconds.
        """
        try:
            async with asyncio.timeout(limit_s):
                wire = await dial(peer.address, peer.port, self._address, self._key, _replies, _LINE_BYTES)
                try:
                    self._gone_since.pop(peer, None)
                    await wire.deliver(question)
                    return await wire.receive()
                finally:
                    wire.close()
        except (WireError, TimeoutError) as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            since = min(boottime(), self._gone_since.get(peer, inf))
            self._gone_since[peer] = since if refused else inf
            return None


@functools.cache
def addresses_of(host: str) -> frozenset[str]:
    """Return the addresses that a host's name resolves to, from which its connections come. Raise OSError if the name
    cannot be resolved; the first result is kept.
    """
    return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
