"""Test the differences between two trees of code, by file and by line."""

import os

import pytest

from launcher.run.code.diffing import changes, shown
from launcher.run.code.listing import list_frozen


@pytest.fixture
def trees(tmp_path):
    def write(**files):
        """Write two trees, with (before, now) as each file's content or None; return the changes between them."""
        for at, side in enumerate(("before", "now")):
            (tmp_path / side).mkdir()
            for name, contents in files.items():
                if contents[at] is not None:
                    content = contents[at]
                    (tmp_path / side / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return changes(list_frozen(tmp_path / "before"), list_frozen(tmp_path / "now"))

    return write


def test_each_file_that_is_other_is_told_by_line(trees):
    found = trees(
        same=("x\n", "x\n"), changed=("one\ntwo\nthree\n", "one\n2\nthree\n"), gone=("a\n", None), new=(None, "b\nc\n")
    )
    assert [str(one) for one in found] == ["changed: changed +1 -1", "gone: gone +0 -1", "new: new +2 -0"]
    assert shown(found) == [
        "--- a/changed", "+++ b/changed", "@@ -1,3 +1,3 @@", " one", "-two", "+2", " three",
        "--- a/gone", "+++ /dev/null", "@@ -1 +0,0 @@", "-a",
        "--- /dev/null", "+++ b/new", "@@ -0,0 +1,2 @@", "+b", "+c",
    ]  # fmt: skip


def test_trees_that_are_equal_do_not_differ(trees):
    assert trees(same=("x\n", "x\n"), link=(b"\xff\0", b"\xff\0")) == []


def test_a_long_diff_is_cut_with_a_word_about_the_rest(trees):
    found = trees(file=("", "".join(f"{number}\n" for number in range(100))))
    assert shown(found, 5) == ["--- a/file", "+++ b/file", "@@ -0,0 +1,100 @@", "+0", "+1", "... and 98 lines more"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"text\0text", b"x" * (1 << 20) + b"y"])
def test_what_is_no_text_or_too_long_is_only_named(trees, content):
    (one,) = trees(data=("text\n", content))
    assert shown([one]) == ["data: changed, no text, or too long to be compared by line"]


def test_a_newline_that_is_missing_at_the_end_is_seen(trees):
    (one,) = trees(file=("a\nb", "a\nb\n"))
    assert one.diff[-1] == "\\ no newline at the end of the file"
    assert (one.added, one.removed) == (0, 0)


def test_modes_and_links_are_told(tmp_path):
    for side in ("before", "now"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "tool").write_text("x\n")
    (tmp_path / "now" / "tool").chmod(0o755)
    (tmp_path / "before" / "data").symlink_to("/there")
    (tmp_path / "now" / "data").write_text("x\n")
    found = changes(list_frozen(tmp_path / "before"), list_frozen(tmp_path / "now"))
    assert [str(one) for one in found] == ["data: changed +1 -1, no link any more", "tool: changed, executable now"]


def test_a_name_that_is_no_text_can_be_told(tmp_path):
    for side, content in (("before", "x\n"), ("now", "y\n")):
        (tmp_path / side).mkdir()
        with open(os.path.join(os.fsencode(tmp_path / side), b"f\xff.py"), "w") as file:
            file.write(content)
    (one,) = changes(list_frozen(tmp_path / "before"), list_frozen(tmp_path / "now"))
    assert str(one) == "f\N{REPLACEMENT CHARACTER}.py: changed +1 -1"
