"""Code that no run needs goes; whoever submits meanwhile keeps theirs."""

import json

import pytest

from launcher.run import drafts
from launcher.run.removal import remove_unused_code

USED, UNUSED = "d" * 64, "e" * 64


@pytest.fixture
def root(tmp_path):
    """A folder of one run, whose store also has code that nobody needs."""
    submit(tmp_path, "old-aaaa", USED)
    for digest in (USED, UNUSED):
        (tmp_path / ".code" / digest).mkdir(parents=True)
        (tmp_path / ".code" / digest / "train.py").write_text(digest)
    return tmp_path


def submit(root, run, digest):
    (root / run).mkdir()
    (root / run / "plan.json").write_text(json.dumps({"code": {"digest": digest}}))


def kept(root):
    return {path.name: (path / "train.py").read_text() for path in (root / ".code").iterdir()}


def test_what_no_run_needs_goes(root):
    remove_unused_code([root])
    assert kept(root) == {USED: USED}


def test_who_submits_while_it_is_asked_about_keeps_the_code(root, monkeypatch):
    """The plans had been read before: the run's code went with its submitter just gone."""

    def just_done(folder):
        if not (folder / "new-bbbb").exists():
            submit(folder, "new-bbbb", UNUSED)
        return False

    monkeypatch.setattr(drafts, "in_work", just_done)
    remove_unused_code([root])
    assert kept(root) == {USED: USED, UNUSED: UNUSED}


def test_who_begins_to_submit_meanwhile_keeps_the_code(root, monkeypatch):
    answers = iter([False, True])
    monkeypatch.setattr(drafts, "in_work", lambda _folder: next(answers))
    remove_unused_code([root])
    assert kept(root) == {USED: USED, UNUSED: UNUSED}


def test_what_is_stored_anew_meanwhile_is_left_as_it_is(root, monkeypatch):
    def stored_anew(folder):
        if not (tree := folder / ".code" / UNUSED).exists():
            tree.mkdir()
            (tree / "train.py").write_text("anew")
            return True
        return False

    monkeypatch.setattr(drafts, "in_work", stored_anew)
    remove_unused_code([root])
    assert kept(root) == {USED: USED, UNUSED: "anew"}


@pytest.mark.parametrize("text", ["", "{}", '{"code": {"dig'])
def test_nothing_is_unused_while_a_plan_cannot_be_read(root, text):
    """It may be put back, and the run resumed."""
    submit(root, "new-bbbb", UNUSED)
    (root / "new-bbbb" / "plan.json").write_text(text)
    remove_unused_code([root])
    assert kept(root) == {USED: USED, UNUSED: UNUSED}


def test_a_plan_that_is_damaged_while_code_goes_brings_it_back(root, monkeypatch):
    def damaged(folder):
        (folder / "old-aaaa" / "plan.json").write_text("{")
        return False

    monkeypatch.setattr(drafts, "in_work", damaged)
    remove_unused_code([root])
    assert kept(root) == {USED: USED, UNUSED: UNUSED}
