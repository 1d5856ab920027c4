"""How the keepers of a run speak with each other: each listens on its host's address, and proves the run's token.

    Ask ─► KeeperStatus                what the other one is doing
    Replica ─► Done                a record of the leader's, for hosts that do not share its disk
    Begin ─► Done, Refused         who has what it needs keeps it, until all have said so or one has not
    Begun ─► Done, Refused         all have: it begins; or not all: whoever is in an older run's way may let go
    Members ─► Done, Refused       who counts, once the leader has lost a host or has it back
    Promise ─► Done, Refused       nobody of an older attempt writes here any more: the vote of a take-over
    Propose ─► Done, Refused       the next attempt

One short connection a question. All of it is in a thread; what arrives is put into `inbox` and the bell rings.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from launcher.agent.wire import WireError, challenge, dial, read_line
from launcher.clusters.ssh.messages import Peer
from launcher.errors import LaunchError
from launcher.plan.model import Plan
from launcher.rundir.records import Intent

if TYPE_CHECKING:
    from concurrent.futures import Future

ASK_S = 3.0
_LIMIT = 16 << 20
_ASKS, _ANSWERS = "asking keeper", "answering keeper"
_SERVE_S = 30.0


class KeeperStatus(msgspec.Struct, frozen=True, tag="standing", tag_field="t"):
    """What a keeper is doing."""

    node: int  # of the plan that the keepers were started with
    attempt: int  # the one it carries out, or waits to
    has_slots: bool
    told: bool  # to go on, by the submitter
    began: bool
    leads: bool
    leaderless: bool  # it has not heard the leader for a whole lease
    waits_for: str = ""
    pledged: bool = False  # it keeps what it has; the leader: it asks whether all do
    promised: int = 0  # the newest attempt that had its vote
    led_by: str = ""  # the host that leads its attempt


class Ask(msgspec.Struct, frozen=True, tag="ask", tag_field="t"):
    pass


class Replica(msgspec.Struct, frozen=True, tag="replica", tag_field="t"):
    node: int  # of the sender
    attempt: int
    name: str  # see replicas.py
    at: int  # where in the file the data belongs; -1: it is the whole file
    data: str


class Begin(msgspec.Struct, frozen=True, tag="begin", tag_field="t"):
    attempt: int


class Begun(msgspec.Struct, frozen=True, tag="begun", tag_field="t"):
    attempt: int
    by_all: bool


class Members(msgspec.Struct, frozen=True, tag="members", tag_field="t"):
    """Who counts from now on: a host that was lost for good does not hold up those that are left.

    Of several rolls all count, each for itself: the last one is to replace the others once all in it have agreed.
    """

    attempt: int
    version: int  # of the leader's words to this in the attempt
    rolls: tuple[tuple[int, ...], ...]


class Promise(msgspec.Struct, frozen=True, tag="promise", tag_field="t"):
    attempt: int
    node: int  # of the candidate


class Propose(msgspec.Struct, frozen=True, tag="propose", tag_field="t"):
    intent: Intent
    plan: Plan


class Agreed(msgspec.Struct, frozen=True, tag="agreed", tag_field="t"):
    pass


class Declined(msgspec.Struct, frozen=True, tag="declined", tag_field="t"):
    why: str


Question = Ask | Replica | Begin | Begun | Members | Promise | Propose
Reply = KeeperStatus | Agreed | Declined

_questions: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


class KeeperRpc:
    """`answer` is called in the council's thread for every question of a proved keeper."""

    def __init__(self, address: str, token: str, answer: Callable[[Question], Reply]) -> None:
        self._address, self._token, self._answer = address, token, answer
        self._loop = asyncio.new_event_loop()
        self._peers: Mapping[int, Peer] = {}
        self._me = -1
        started: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(started,), name="council", daemon=True)
        self._thread.start()
        first = started.get()
        if isinstance(first, BaseException):
            raise first
        self.port = first

    def sit(self, peers: Sequence[Peer], me: int) -> None:
        """Who the others are, by their numbers."""
        self._peers = {number: peer for number, peer in enumerate(peers) if number != me}
        self._me = me

    @property
    def me(self) -> int:
        return self._me

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(self._peers)

    def peer(self, number: int) -> Peer:
        return self._peers[number]

    def ask(self, question: Question, whom: Collection[int] | None = None, limit_s: float = ASK_S) -> dict[int, Reply]:
        """Ask these, or all others, at the same time; who does not answer in time is not among the answers."""
        chosen = [number for number in (self._peers if whom is None else whom) if number in self._peers]
        asking = self._ask_all(question, chosen, limit_s)
        future: Future[dict[int, Reply]] = asyncio.run_coroutine_threadsafe(asking, self._loop)
        return future.result()

    def ask_one(self, question: Question, whom: int, limit_s: float = ASK_S) -> Reply | None:
        return self.ask(question, [whom], limit_s).get(whom)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # -- in the thread

    def _work(self, started: "queue.SimpleQueue[int | BaseException]") -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(asyncio.start_server(self._serve, self._address, 0, limit=_LIMIT))
        except OSError as error:
            started.put(error)
            self._loop.close()
            return
        started.put(server.sockets[0].getsockname()[1])
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(_end_all(asyncio.all_tasks(self._loop)))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question. Whoever cannot prove the token, or talks nonsense, is dropped."""
        try:
            await challenge(reader, writer, self._token, _ASKS, _ANSWERS)
            async with asyncio.timeout(_SERVE_S):
                line = await _line(reader)
                reply = await asyncio.to_thread(self._answered, _questions.decode(line))
                writer.write(msgspec.json.encode(reply) + b"\n")
                await writer.drain()
        except (WireError, OSError, TimeoutError, msgspec.MsgspecError, EOFError):
            writer.transport.abort()
        finally:
            writer.close()

    def _answered(self, question: Question) -> Reply:
        try:
            return self._answer(question)
        except LaunchError as error:
            return Declined(str(error))

    async def _ask_all(self, question: Question, whom: Sequence[int], limit_s: float) -> dict[int, Reply]:
        replies = await asyncio.gather(*(self._ask(question, self._peers[number], limit_s) for number in whom))
        return {number: reply for number, reply in zip(whom, replies, strict=True) if reply is not None}

    async def _ask(self, question: Question, peer: Peer, limit_s: float) -> Reply | None:
        try:
            async with asyncio.timeout(limit_s):
                reader, writer = await dial(
                    peer.address, peer.port, self._address, self._token, _ASKS, _ANSWERS, _LIMIT
                )
                try:
                    writer.write(msgspec.json.encode(question) + b"\n")
                    return _replies.decode(await _line(reader))
                finally:
                    writer.close()
        except (WireError, OSError, TimeoutError, msgspec.MsgspecError, EOFError):
            return None


async def _end_all(tasks: "set[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # what was closed is let go of in the loop's next turn


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await read_line(reader)
    if line is None:
        raise EOFError
    return line


def statuses(replies: Mapping[int, Any]) -> dict[int, KeeperStatus]:
    """What those that answered are doing."""
    return {number: reply for number, reply in replies.items() if isinstance(reply, KeeperStatus)}


def granted(replies: Mapping[int, Any]) -> list[int]:
    """Who has agreed."""
    return [number for number, reply in replies.items() if isinstance(reply, Agreed)]
