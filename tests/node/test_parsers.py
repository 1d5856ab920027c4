"""Every parser of an agent that meets strangers: any bytes are a message or a named error."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lying import lines

from launcher.copies.protocol import FromServer, ToServer
from launcher.node.ranks.zygote_link import ForkRefused, ZygoteLink, _PendingFork
from launcher.wire.frames import WireError, parsed
from launcher.wire.progress import Progress

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
BYTES = st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode())
REPORT = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("step", "total_steps", "checkpoint", "fingerprint", "done", "exception", "x"), JSON)
)


@given(lines(ToServer) | lines(FromServer) | BYTES)
def test_lines_of_replica_servers(line):
    for kind in (ToServer, FromServer):
        try:
            assert isinstance(parsed(line, msgspec.json.Decoder(kind)), kind)
        except WireError as error:
            assert len(str(error)) <= 500


@given(st.lists(BYTES | REPORT.map(lambda value: json.dumps(value).encode()), max_size=5))
def test_lines_of_ranks(said):
    progress = Progress()
    for line in said:
        progress.take(line)
    assert all(step is None or 0 <= step <= 1 << 53 for step in (progress.step, progress.checkpoint))
    assert len(progress.metrics) <= 64
    msgspec.json.encode((progress.metrics, progress.fingerprint, progress.exception))


class Reaper:
    def __init__(self):
        self.told = []

    def watch(self, pid, tell):
        self.told.append(pid)

    def born(self):
        pass


WORD = st.fixed_dictionaries(
    {"op": st.sampled_from(["ready", "forked", "refused", "error", "x"])},
    optional={name: JSON | st.integers(-1, 9) for name in ("id", "pid", "reason", "loaded")},
)


@given(st.lists(BYTES | WORD.map(lambda value: json.dumps(value).encode()), min_size=1, max_size=5))
def test_lines_of_a_zygote(said):
    """Whoever waits for a fork is answered, or told that there is no zygote any more."""

    async def scene():
        reaper = Reaper()
        link, reader = ZygoteLink(reaper), asyncio.StreamReader()
        answer = asyncio.get_running_loop().create_future()
        link._pending[1] = _PendingFork(answer, lambda _: None)
        reader.feed_data(b"".join(line.replace(b"\n", b"") + b"\n" for line in said))
        reader.feed_eof()
        await link._read(reader)
        assert link.gone.is_set()
        assert all(pid > 0 for pid in reaper.told)
        if answer.exception() is not None:
            with pytest.raises(ForkRefused):
                answer.result()

    asyncio.run(scene())
