"""Records are decoded by several threads at once, as hosts answer to a thread each."""

import subprocess
import sys

import pytest

FIRST_TIMES = """
import sys, threading, msgspec
from launcher.decoding import decoder_of

class Inner(msgspec.Struct):
    x: int = 0

def fresh():
    class One(msgspec.Struct):
        a: dict[str, Inner] = {}
        b: Inner | None = None
        c: tuple[Inner, ...] = ()
    globals()["One"] = One
    class Other(msgspec.Struct):
        a: list[One] = []
        b: One | None = None
        c: dict[str, One] = {}
        d: tuple[One, ...] = ()
    return Other

DATA = b'{"a": [{"a": {"k": {"x": 1}}}], "b": {"c": [{"x": 1}]}, "c": {"z": {}}}'
sys.setswitchinterval(1e-6)
for _ in range(1000):
    kind, together = fresh(), threading.Barrier(4)
    def first():
        together.wait()
        assert %s.b.c[0].x == 1
    threads = [threading.Thread(target=first) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


@pytest.mark.parametrize(
    "decoded",
    [
        "decoder_of(kind).decode(DATA)",
        "(decoder_of(kind), msgspec.json.decode(DATA, type=kind))[1]",
        "(decoder_of(kind), msgspec.convert(msgspec.json.decode(DATA), kind))[1]",
    ],
)
def test_threads_that_decode_a_kind_for_the_first_time_do_not_end_the_process(decoded):
    done = subprocess.run([sys.executable, "-c", FIRST_TIMES % decoded], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
