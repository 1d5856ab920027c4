"""Test that specs written for released versions are read by this one."""

from pathlib import Path

import pytest

from launcher.errors import BadInput
from launcher.spec.kinds.sections import UNKNOWN
from launcher.spec.read import parse_spec

RECORDED = Path(__file__).parents[1] / "recorded"
OPTIONS = [
    (file.stem, line) for file in sorted(RECORDED.glob("spec-*.txt")) for line in file.read_text().splitlines() if line
]


@pytest.mark.parametrize(("version", "option"), OPTIONS)
def test_every_option_of_an_older_version_is_known_and_takes_what_its_page_showed(version, option):
    """By itself an option may want another one beside it; it may not be unknown, nor its value be refused."""
    try:
        parse_spec("name: x\nrun: {script: a.py}\n", "job.yaml", [option])
    except BadInput as error:
        assert not [line for line in error.lines if UNKNOWN in line or ": expected " in line], error.lines


def test_an_option_that_nobody_knows_would_be_noticed():
    with pytest.raises(BadInput, match=UNKNOWN):
        parse_spec("name: x\nrun: {script: a.py}\n", "job.yaml", ["recovery.pardon=1"])
    with pytest.raises(BadInput, match=": expected "):
        parse_spec("name: x\nrun: {script: a.py}\n", "job.yaml", ["checkpoint.keep=many"])
