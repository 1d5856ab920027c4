"""The wire: whatever comes, it is read as what it is or refused, and nobody waits past a deadline."""

import contextlib
import os
import random
import time

import msgspec
import pytest

from launcher.ids import parse_run_id
from launcher.places.login.messages import (
    KnownRun,
    LookAtRuns,
    OpenAttempt,
    OpenRuns,
    RemoteSpec,
    Request,
    RunWanted,
    VoidTokens,
)
from launcher.remote.failures import Silent
from launcher.remote.rpc import wire
from launcher.remote.rpc.wire import Garbled, Have, Incoming, Reply, Tree, decoded, encoded, greeting, reading
from launcher.remote.shipping.tree import FileEntry
from tests.sizes import SEED

SET, DEFAULTS = ("a=b\nc", "x='$(y)'"), (("slurm.partition", "gpu"),)
SPEC = RemoteSpec("job.yaml", b"\xff\x00 any bytes", SET, DEFAULTS, ("job.yaml", "/p"))
RUN = parse_run_id("job-aaaa")
WANTED = RunWanted(RUN, 0, None, 3, {parse_run_id("actors"): 2}, b"\xfe")
REQUESTS = [
    Have("~/launch", "0" * 64),
    Tree("~/l \n'", "0" * 64, (FileEntry("\xff\n", 3, True), FileEntry("l", 0, False, "a"))),
    OpenRuns("~/launch", "slurm", "ab" * 8, "0" * 64, (SPEC,), (WANTED,), {"TOKEN": "s€cret\n"}),
    OpenAttempt("~/launch", "ab" * 8, RUN, 1, ("--set=a b'\"\n$(c)",)),
    VoidTokens("~/launch", ("ab" * 8,)),
    LookAtRuns((KnownRun(RUN, 1, 7, "0" * 64),)),
]
REQUEST = msgspec.json.Decoder(Request | Have | Tree)


def read_request(line):
    return decoded(line, REQUEST)


@pytest.fixture
def pipe():
    """Return one end to write into, and the reader of the other."""
    out, into = os.pipe()
    yield into, Incoming(reading(out))
    os.close(out)
    with contextlib.suppress(OSError):  # the test has closed it
        os.close(into)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_request_is_one_line_and_comes_as_it_was(request_):
    line = encoded(request_)
    assert line.count(b"\n") == 1
    assert read_request(line) == request_


def test_secrets_are_in_no_words_of_ours():
    assert "s€cret" not in repr(REQUESTS[2])


def test_text_that_is_none_is_refused_before_it_is_sent():
    with pytest.raises(UnicodeEncodeError):
        encoded(VoidTokens("\udcff", ()))


def test_the_greeting_is_found_behind_what_a_shell_says(pipe):
    into, incoming = pipe
    os.write(into, b"Welcome!\n\nlaunch-fa\n" + greeting() + b"next\n")
    assert incoming.greeting().wire == wire.WIRE
    assert incoming.line() == b"next"


def test_a_shell_that_never_stops_is_no_greeting():
    class Endless(Incoming):
        def _read(self, deadline):
            return b"x" * 1000 + b"\n"

    with pytest.raises(Garbled, match="no greeting"):
        Endless(0).greeting()


def test_a_line_is_no_longer_than_anybody_waits_for():
    told = [b"\n", *[b"x" * (1 << 20)] * 40]
    with pytest.raises(Garbled, match="a line of more than 2 MiB"):
        Incoming(lambda _deadline, _most: told.pop()).line(None, 2 << 20)
    assert len(told) > 30, "the rest was never read"


def test_an_older_server_is_no_talk_of_a_shell(pipe):
    """It was waited for until the deadline, for a greeting that never came."""
    into, incoming = pipe
    os.write(into, b"Welcome!\nlaunch-there\n")
    with pytest.raises(Garbled, match="another version of launch is there"):
        incoming.greeting(time.monotonic() + 60)


def test_lines_and_bytes_in_any_pieces():
    seed = SEED
    print("seed", seed)
    draw = random.Random(seed)
    bodies = [draw.randbytes(draw.randrange(200)) for _ in range(20)]
    stream = b"".join(b"line %d\n" % len(body) + body for body in bodies)
    feed = iter(range(0, len(stream), 7))

    class Slow(Incoming):
        def _read(self, deadline):
            start = next(feed, None)
            if start is None:
                raise EOFError
            return stream[start : start + 7]

    slow = Slow(0)
    for body in bodies:
        assert slow.line() == b"line %d" % len(body)
        got = b""
        while len(got) < len(body):
            got += slow.some(len(body) - len(got))
        assert got == body
    for ask in (slow.line, lambda: slow.some(1)):
        with pytest.raises(EOFError):
            ask()


def test_nobody_waits_past_the_deadline(pipe):
    into, incoming = pipe
    os.write(into, b"half a line")
    started = time.monotonic()
    with pytest.raises(Silent):
        incoming.line(time.monotonic() + 0.05)
    with pytest.raises(Silent):
        incoming.line(time.monotonic() - 1)
    assert time.monotonic() - started < 60
    os.write(into, b"\n")
    assert incoming.line(time.monotonic() + 60) == b"half a line"


def test_half_a_line_at_the_end_is_none(pipe):
    into, incoming = pipe
    os.write(into, encoded(Reply())[:-1])
    os.close(into)
    with pytest.raises(EOFError):
        incoming.line()


def test_garbage_is_refused_and_never_a_traceback():
    seed = SEED
    print("seed", seed)
    draw = random.Random(seed)
    for request in REQUESTS:
        line = encoded(request)
        for _ in range(200):
            spoiled = bytearray(line)
            for _ in range(draw.randrange(1, 4)):
                spoiled[draw.randrange(len(spoiled))] = draw.randrange(256)
            with contextlib.suppress(Garbled):
                read_request(bytes(spoiled))
    for line in (b"", b"null", b"[" * 100_000, b'{"type":"open"}', b'{"type":"have"}', b"\xff", b'{"type":1}'):
        with pytest.raises(Garbled):
            read_request(line)


def test_an_older_reader_passes_over_what_it_does_not_know():
    assert wire.decoded(b'{"value": 1, "more": 2}', Reply).value == msgspec.Raw(b"1")
