from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from launcher.status.lines import MAX_LINE_BYTES, LineSplitter


def split(*pieces):
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return [*lines, *splitter.rest()]


def test_offsets_are_behind_each_line():
    assert split(b"ab\nc", b"d\n\nlast") == [(3, "ab"), (6, "cd"), (7, ""), (11, "last")]


def test_a_progress_bar_shows_its_last_state():
    assert split(b" 0%\r50%\r100%\n") == [(13, "100%")]
    assert split(b" 0%\r50%", b"\r100%\r\n") == [(14, "100%")]
    assert split(b"dos\r\n") == [(5, "dos")]


def test_what_is_not_utf8_is_replaced():
    assert split(b"a\xff\xfeb\n") == [(5, "a��b")]


def test_a_long_line_is_cut_with_a_word_and_without_keeping_it():
    splitter = LineSplitter()
    for _ in range(100):
        assert list(splitter.feed(b"x" * MAX_LINE_BYTES)) == []
        assert len(splitter._held) <= MAX_LINE_BYTES
    [(offset, text)] = splitter.feed(b"\nnext")
    assert offset == 100 * MAX_LINE_BYTES + 1
    assert text == "x" * MAX_LINE_BYTES + f" … (and {99 * MAX_LINE_BYTES} bytes more)"
    assert [text for _, text in splitter.rest()] == ["next"]


def test_an_endless_progress_bar_is_not_kept():
    splitter = LineSplitter()
    for step in range(20_000):
        assert list(splitter.feed(f"\rstep {step}".encode())) == []
        assert len(splitter._held) <= MAX_LINE_BYTES
    assert [text for _, text in splitter.rest()] == ["step 19999"]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_how_the_bytes_arrive_changes_nothing(data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    assert split(*pieces) == split(data)
    assert [offset for offset, _ in split(data)][-1:] in ([], [len(data)])


def test_a_bar_is_there_while_it_moves():
    splitter = LineSplitter()
    seen = []
    for piece in (
        b"step 1\nnot yet a bar",
        b"\n",
        b"\r 10%|x",
        b"\r 20%|xx",
        b"\r" + b"y" * MAX_LINE_BYTES,
        b"\r 30%",
        b"\n",
    ):
        list(splitter.feed(piece))
        seen.append(splitter.moving[:5])
    assert seen == ["", "", " 10%|", " 20%|", "yyyyy", " 30%", ""]
