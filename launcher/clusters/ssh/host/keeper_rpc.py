"""How the keepers of a run ask each other: each listens on its host's address, and proves the run's token.

One short connection a question. All of it is in a thread of its own.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from launcher.agent.wire import WireError, challenge, dial, read_line
from launcher.clusters.ssh.host.keeper_messages import Declined, KeeperQuestion, KeeperReply
from launcher.clusters.ssh.messages import Peer
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from concurrent.futures import Future

ASK_S = 3.0
_LIMIT = 16 << 20
_ASKS, _ANSWERS = "asking keeper", "answering keeper"
_SERVE_S = 30.0

_questions: msgspec.json.Decoder[KeeperQuestion] = msgspec.json.Decoder(KeeperQuestion)
_replies: msgspec.json.Decoder[KeeperReply] = msgspec.json.Decoder(KeeperReply)


class KeeperRpc:
    """`answer` is called in a thread of ours for every question of a proved keeper."""

    def __init__(self, address: str, token: str, answer: Callable[[KeeperQuestion], KeeperReply]) -> None:
        self._address, self._token, self._answer = address, token, answer
        self._loop = asyncio.new_event_loop()
        self._peers: Mapping[int, Peer] = {}
        self._me = -1
        started: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(started,), name="keeper rpc", daemon=True)
        self._thread.start()
        first = started.get()
        if isinstance(first, BaseException):
            raise first
        self.port = first

    def join(self, peers: Sequence[Peer], me: int) -> None:
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

    def ask(
        self, question: KeeperQuestion, whom: Collection[int] | None = None, limit_s: float = ASK_S
    ) -> dict[int, KeeperReply]:
        """Ask these, or all others, at the same time; who does not answer in time is not among the answers."""
        chosen = [number for number in (self._peers if whom is None else whom) if number in self._peers]
        asking = self._ask_all(question, chosen, limit_s)
        future: Future[dict[int, KeeperReply]] = asyncio.run_coroutine_threadsafe(asking, self._loop)
        return future.result()

    def ask_one(self, question: KeeperQuestion, whom: int, limit_s: float = ASK_S) -> KeeperReply | None:
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

    def _answered(self, question: KeeperQuestion) -> KeeperReply:
        try:
            return self._answer(question)
        except LaunchError as error:
            return Declined(str(error))

    async def _ask_all(self, question: KeeperQuestion, whom: Sequence[int], limit_s: float) -> dict[int, KeeperReply]:
        replies = await asyncio.gather(*(self._ask(question, self._peers[number], limit_s) for number in whom))
        return {number: reply for number, reply in zip(whom, replies, strict=True) if reply is not None}

    async def _ask(self, question: KeeperQuestion, peer: Peer, limit_s: float) -> KeeperReply | None:
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
