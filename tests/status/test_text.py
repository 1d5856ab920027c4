import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.status.text import coloured, escaped, plain

ATTACKS = [
    "\x1b[2J\x1b[H",
    "\x1b[1;1H",
    "\x1b[?1049h",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x1b]8;;http://x\x1b\\",
    "\x1bP+q\x1b\\",
    "\x1b_apc\x1b\\",
    "\x1bc",
    "\x1b(0",
    "\x9b2J",
    "\x9d0;t\x9c",
    "\x08\x08\x08",
    "\x07",
    "\x0e",
    "\x7f",
    "\x1b",
    "\x1b[",
    "\x1b]0;never ends",
    "\x1b\x1b[2J",
    "\x1b[\x1b[2J2J",
    "\u202e",
    "\u200b",
    "\u200e",
    "\u2066",
    "\ufeff",
    "\U000e0041",
    "\x85",
    "\x00",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_steers_the_terminal_is_left(attack):
    for shown in (coloured(f"a{attack}b"), plain(f"a{attack}b")):
        assert shown.startswith("a")
        assert shown.isprintable()


def test_colours_stay_where_they_are_wanted():
    assert coloured("\x1b[1;31mred\x1b[0m\ttab") == "\x1b[1;31mred\x1b[0m\ttab"
    assert plain("\x1b[1;31mred\x1b[0m\ttab") == "red\ttab"


@given(st.text(alphabet=st.sampled_from("\x1b[]0;2Jm?hP\\\x07\x9b\x9c a")))
def test_no_control_but_colours_survives_whatever_the_order(text):
    shown = coloured(text)
    assert plain(shown).isprintable()
    assert coloured(shown) == shown


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_is_left_alone(text):
    assert plain(text) == text


@pytest.mark.parametrize(
    "begin", ["\x90", "\x9d", "\x98x", "\x1b]", "\x1bP ", "\x9b", "\x1b[", "\x1b[0", "\x1b ", "\x9b0;"]
)
@pytest.mark.parametrize("end", ["", "\x07"])
def test_beginnings_without_an_end_take_no_longer_the_more_there_are(begin, end):
    """64 KiB of them took 5.6 s, and four times as many ninety: it takes a hundredth of a second now."""
    line = begin * (1 << 18)
    started = time.thread_time()
    assert plain(f"{line}{end}").isprintable()
    assert time.thread_time() - started < 10


@given(st.dictionaries(st.text(max_size=5), st.text() | st.sampled_from(ATTACKS)))
def test_json_shows_everything_and_steers_nothing(value):
    shown = escaped(msgspec.json.encode(value))
    assert shown.isprintable() or not "".join([*value, *value.values()]).isprintable()
    assert not any(char in shown for char in "\x1b\x7f\x9b\u200b\u202e\ufeff\U000e0041")
    assert json.loads(shown) == value
