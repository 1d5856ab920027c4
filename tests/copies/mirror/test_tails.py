"""Copying what grows: exactly the new bytes, and nothing outside the folders that were asked for."""

import os

import pytest

from launcher.copies.mirror import tails
from launcher.copies.mirror.tails import Limits, Tail
from launcher.errors import LaunchError


def synced(there, here, folders=("logs",), limits=tails.LIMITS):
    """Copy until both sides are equal, and return how many answers that took."""
    more, answers = True, 0
    while more:
        parts, more = tails.grown(there, folders, tails.sizes(here, folders), limits)
        answers += 1
        for part in parts:
            tails.put(here, folders, part)
    return answers


def test_what_grew_is_copied_and_nothing_else(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "logs" / "a").mkdir(parents=True)
    here.mkdir()
    log = there / "logs" / "a" / "rank-00000.log"
    log.write_bytes(b"one\n")
    (there / "logs" / "empty.log").touch()
    (there / "secrets.json").write_text("tweet")
    synced(there, here)
    with log.open("ab") as file:
        file.write(b"two\n")
    assert tails.grown(there, ["logs"], tails.sizes(here, ["logs"])) == (
        [("logs/a/rank-00000.log", 4, b"two\n")],
        False,
    )
    synced(there, here)
    assert (here / "logs" / "a" / "rank-00000.log").read_bytes() == b"one\ntwo\n"
    assert not (here / "secrets.json").exists()


def test_more_than_one_answer_holds_comes_in_several(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "logs").mkdir(parents=True)
    here.mkdir()
    for number in range(5):
        (there / "logs" / f"{number}.log").write_bytes(os.urandom(700))
    assert synced(there, here, limits=Limits(answer_bytes=1000)) == 4
    for number in range(5):
        assert (here / "logs" / f"{number}.log").read_bytes() == (there / "logs" / f"{number}.log").read_bytes()


@pytest.mark.parametrize("name", ["../x", "logs/../../x", "/etc/x", "secrets.json", "logs//x", "logs/./x", ""])
def test_no_name_leads_out(tmp_path, name):
    with pytest.raises(LaunchError):
        tails.put(tmp_path, ("logs",), Tail(name, 0, b"x"))
    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed(tmp_path):
    (tmp_path / "there" / "logs").mkdir(parents=True)
    (tmp_path / "secret").write_text("tweet")
    (tmp_path / "there" / "logs" / "x.log").symlink_to(tmp_path / "secret")
    assert tails.grown(tmp_path / "there", ["logs"], {}) == ([], False)
    with pytest.raises(LaunchError):
        tails.grown(tmp_path / "there", [".."], {})


def test_only_so_many_files_that_are_new_come_at_once(tmp_path):
    """Each takes a file of this disk, however small it is there."""
    limits = Limits(new_files=3, answer_files=2)
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "logs").mkdir(parents=True)
    here.mkdir()

    def bring():
        known = tails.sizes(here, ["logs"])
        tails.bring(here, ["logs"], known, lambda mine: tails.grown(there, ["logs"], mine, limits), "hpc", limits)

    for wave in ("ab", "cde"):
        for name in wave:
            (there / "logs" / f"{name}.log").write_text(wave)
        bring()
    for name in "fghi":
        (there / "logs" / f"{name}.log").touch()
    with pytest.raises(LaunchError, match="hpc: has more than 3 files that are not here"):
        bring()
    assert len([*here.rglob("*.log")]) == 8
