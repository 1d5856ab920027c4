import contextlib
import pickle
import pickletools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import SCALE
from trainer.plain_pickle import NotPlain
from trainer.tasks.image_files import PickledArray, read_pickled_bytes

pytestmark = pytest.mark.nightly

BATCH = {b"batch_label": b"x", b"labels": [3, 7], b"data": np.arange(2 * 6, dtype=np.uint8).reshape(2, 6), b"n": None}


@pytest.mark.daily
@pytest.mark.parametrize("protocol", range(5))
def test_what_numpy_writes_is_read(protocol):
    read = read_pickled_bytes(pickle.dumps(BATCH, protocol))
    assert isinstance(read, dict) and read[b"labels"] == [3, 7] and read[b"n"] is None
    assert isinstance(array := read[b"data"], PickledArray)
    assert (array.shape, array.data) == ((2, 6), bytes(range(12)))


@pytest.mark.daily
def test_python_2s_own_files_are_read():
    text = b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eU\x04dataq\x04cnumpy.core.multiarray\n_reconstruct\nq\x05"
    text += b"cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\x09Rq\x0a(K\x01K\x02K\x03\x86q\x0bcnumpy\ndtype\nq"
    text += b"\x0cU\x02u1q\x0dK\x00K\x01\x87q\x0eRq\x0f(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U"
    text += b"\x06abcdeftbu."
    read = read_pickled_bytes(text)
    assert isinstance(read, dict) and read[b"labels"] == [6, 9] and read[b"data"].data == b"abcdef"


class Says:
    """Something that pickles as this call, and then this state."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


RECONSTRUCT, TYPE = np.empty(0).__reduce__()[0], np.dtype
POINTERS = bytes(range(64))
SIZES = (1, (8,), Says(TYPE, ("O8", False, True), (3, "|", None, None, None, -1, -1, 63)), False, POINTERS)
LONG_STATE = (3, "<", ("a", "b"), {"a": (TYPE("u1"), 1 << 40)}, None, 1 << 40, 1, 16)
EVIL = {
    "objects, which are pointers": Says(RECONSTRUCT, (np.ndarray, (0,), b"b"), SIZES),
    "fields far away": Says(TYPE, ("V8", False, True), LONG_STATE),
    "fewer bytes than it says": Says(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1 << 40,), TYPE("u1"), False, b"x")),
    "a size below zero": Says(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (-1, -1), TYPE("u1"), False, b"x")),
    "columns": np.asfortranarray(np.zeros((3, 3), np.uint8)),
    "a call": Says(exec, ("1/0",)),
    "a call of what may be called": Says(np.ndarray, ((1 << 40,),)),
    "an object": Says,
}


@pytest.mark.daily
@pytest.mark.parametrize("what", EVIL)
def test_nothing_but_numbers_is_made(what):
    """The first two ended the process of whoever read them with numpy's own reader."""
    read = None
    try:
        read = read_pickled_bytes(pickle.dumps({b"data": EVIL[what]}, 4))
    except NotPlain:
        return
    assert not isinstance(read, dict) or not isinstance(read[b"data"], PickledArray)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02r\xff\xff\xff\xff.",  # a memo of 34 GB
        b"(" * 50_000 + b"t" * 50_000 + b".",
        b"]" * 50_000 + b"(t" * 50_000 + b".",
        b"\x80\x04" + b")" + b"\x85" * 50_000 + b"}\x94h\x00s.",
        b"I" + b"9" * 100_000 + b"\n.",
        b"\x8e" + b"\xff" * 8,
        b"\x80\x02}" + b"(U\x01a}u" * 50_000 + b".",
    ],
    ids=["memo", "marks", "tuples", "deep key", "digits", "long", "many"],
)
def test_no_file_costs_more_than_its_size(data):
    tracemalloc.start()
    try:
        with contextlib.suppress(NotPlain):
            read_pickled_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 500 * len(data) + 1_000_000
    finally:
        tracemalloc.stop()


CODES = [code.code.encode("latin-1") for code in pickletools.opcodes]
WHOLE = pickle.dumps(BATCH, 2)


@pytest.mark.daily
@settings(max_examples=200 * SCALE, deadline=None)
@given(
    st.one_of(
        st.lists(st.one_of(st.sampled_from(CODES), st.binary(max_size=4)), max_size=60).map(b"".join),
        st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=6)).map(
            lambda cut: WHOLE[: cut[0]] + cut[1] + WHOLE[cut[0] + len(cut[1]) :]
        ),
    )
)
def test_any_bytes_are_data_or_refused(data):
    try:
        read_pickled_bytes(data)
    except NotPlain as error:
        assert len(str(error)) < 10_000
