import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.status.text import coloured, plain

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
