"""`launch help PAGE`, and how Markdown is shown."""

import re
import sys
from pathlib import Path

import pytest

from launcher.cli.markdown import for_terminal
from launcher.cli.shipped import pages, title
from launcher.wire.progress import Report

ROOT = Path(__file__).parents[2]


def shown(text, width=40, name_of=lambda link: "", *, colour=False):
    return for_terminal(text, width, name_of, colour=colour)


def test_headings_paragraphs_and_code():
    page = "# Title\n\nOne line\nand the next.\n```console\n$ a   b\n\n\n> c\n```\n## Part\nText\n### Detail\nText\n"
    assert shown(page) == [
        "Title", "═════", "", "One line and the next.", "", "    $ a   b", "", "", "    > c", "", "Part", "────", "",
        "Text", "", "Detail", "", "Text",
    ]  # fmt: skip


def test_lists_are_wrapped_behind_their_marks():
    assert shown("- one two three\n  four\n- five\n\n1. six seven eight\n", 13) == [
        " • one two", "   three four", " • five", "", " 1 six seven", "   eight",
    ]  # fmt: skip


def test_a_table_is_columns_and_its_last_one_is_wrapped():
    page = "| a | what |\n|---|---|\n| `x` | one two three four five six seven |\n| long | `p\\|q` |\n"
    assert shown(page) == [
        "a     what", "x     one two three four five six seven", "long  p|q",
    ]  # fmt: skip
    assert shown(page, 30) == ["a     what", "x     one two three four five", "      six seven", "long  p|q"]


def test_a_table_too_wide_for_columns_has_its_cells_below_each_other():
    page = "| name | example | text |\n|---|---|---|\n| resources.nodes | 2..4 | how many |\n| env | | |\n"
    assert shown(page, 30) == ["resources.nodes", "    2..4", "    how many", "env"]


def test_links_say_how_to_get_there():
    names = {"a.md": "launch help a", "https://x.org": "https://x.org"}
    page = "See [the `a` page](a.md), [there](https://x.org), <https://x.org> and [b](b.py)."
    assert shown(page, 80, name_of=lambda link: names.get(link, "")) == [
        "See the a page (launch help a), there (https://x.org), https://x.org and b."
    ]


def test_colours_take_no_room():
    line = "one `two three` **four** five"
    bare, painted = shown(line, 13), shown(line, 13, colour=True)
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == bare == ["one two three", "four five"]
    assert painted[0] == "one \x1b[36mtwo three\x1b[0m"


def test_code_is_never_cut():
    line = "word " * 40 + "end"
    assert shown(f"```console\n{line}\n```\n") == [f"    {line}"]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_nothing_but_code_is_wider_than_the_terminal_where_words_allow_it(width):
    page = "# T\n\n" + "word " * 50 + "\n\n- " + "item " * 30 + "\n\n| a | b |\n|---|---|\n| c | " + "d " * 60 + "|\n"
    assert max(map(len, shown(page, width))) <= width


def test_what_is_no_text_for_readers_is_left_out():
    assert shown("# T\n\n<!-- made by hand -->\n\ntext") == ["T", "═", "", "text"]


def test_pages_are_listed_with_their_titles_and_shown(desk):
    listed = desk.launch("help").stdout.partition("pages:\n")[2].partition("\n\n")[0]
    assert "  install " in listed
    for name, path in pages().items():
        assert f"  {name:<20}{title(path)}" in listed.splitlines()
        assert desk.launch("help", name).stdout.startswith(f"{title(path)}\n═")


@pytest.mark.parametrize(
    ("words", "title"),
    [("node", "The node"), ("places/", ""), ("launcher/health", ""), ("trainer", "The trainer"), ("zygote", "")],
)
def test_pages_beside_the_code_are_shown_by_their_folders(desk, words, title):
    assert desk.launch("help", words).stdout.startswith(title)


def test_a_command_comes_before_a_page(desk):
    assert desk.launch("help", "doctor").stdout == desk.launch("doctor", "--help").stdout
    assert desk.launch("help", "stop").stdout == desk.launch("stop", "--help").stdout


def test_a_link_to_a_page_that_a_command_has_the_name_of_leads_to_the_page(desk):
    """`launch help status` is the command's usage, so a link to the page beside the code names it in full."""
    shown = desk.launch("help", "notifications").stdout + desk.launch("help", "how-it-works").stdout
    assert "(launch help launcher/supervisor/notify)" in " ".join(shown.split())
    assert "launch help status)" not in shown
    assert desk.launch("help", "launcher/supervisor/notify").stdout.startswith(
        title(ROOT / "launcher/supervisor/notify/README.md")
    )


def test_the_page_of_the_spec_begins_with_its_use(desk):
    lines = desk.launch("help", "spec").stdout.splitlines()
    assert [line for line in lines[:8] if "launch spec validate job.yaml" in line]
    assert next(index for index, line in enumerate(lines) if line.startswith("All options")) < 30


def test_the_page_of_reporting_is_what_the_agent_takes():
    page = pages()["reporting"].read_text()
    assert len(page.split()) < 700
    words = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)))
    assert {*words} - {"loss"} <= {*Report.__struct_fields__}
    assert {"step", "total_steps", "checkpoint", "asked_to_stop", "done", "fingerprint", "address"} <= {*words}


def test_a_page_that_is_not_there(desk):
    done = desk.launch("help", "instal", check=2)
    assert done.stdout == ""
    assert done.stderr.startswith("launch: no such command or page: 'instal'\nhint: did you mean `launch help install`")
    assert "hint: `launch help` lists all" in desk.launch("help", "zzzz", check=2).stderr


def test_a_long_page_goes_to_the_pager_and_a_piped_one_does_not(desk):
    pager = desk.root / "pager"
    pager.write_text(f"#!{sys.executable}\nimport sys\nprint('PAGED', len(sys.stdin.read().splitlines()))\n")
    pager.chmod(0o755)
    code, said = desk.on_terminal("help", "commands", env={"PAGER": str(pager)})
    assert code == 0
    assert int(re.search(r"PAGED (\d+)", said)[1]) > 100
    assert "PAGED" not in desk.launch("help", "commands", env={"PAGER": str(pager)}).stdout
    assert "PAGED" not in desk.on_terminal("help", "commands", env={"PAGER": str(pager), "TERM": "dumb"})[1]


def test_where_there_is_no_pager_the_page_is_printed(desk):
    code, said = desk.on_terminal("help", "commands", env={"PAGER": "/nowhere/at-all"})
    assert code == 0
    assert "launch completion" in said
