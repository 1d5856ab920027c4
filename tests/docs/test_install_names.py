"""No page and no message has anybody install what others publish, or could publish, under one of our names."""

import itertools
import re

import pytest

from tests.docs.blocks import ROOT

TOOLS = {"pip", "pip3", "uv", "uvx", "pipx", "conda"}
VERBS = {"install", "add", "download"}
OURS = re.compile(r"(?:launch|launcher|launch-anywhere)(?:\[[\w,]*\])?(?:[=<>~].*)?")


def names_in(line):
    """Our names that a command in this line asks a package index for."""
    found = []
    for part in re.split(r"`|\||;|&&|#", line):
        words = [word.rstrip(".,:") for word in re.findall(r"[^\s'\"()]+", part)]
        first = next((index for index, word in enumerate(words) if word in TOOLS), None)
        if first is None:
            continue
        asked = next((index for index, word in enumerate(words) if index > first and word in VERBS), None)
        start = first + 1 if words[first] == "uvx" else asked
        if start is not None:
            behind = [*words[start:], ""]
            found += [word for word, after in itertools.pairwise(behind) if OURS.fullmatch(word) and after != "@"]
    return found


def test_nobody_is_told_to_install_one_of_our_names_from_the_package_index():
    """There `launcher` and `launch` are other people's, and `launch-anywhere` is nobody's yet."""
    folders = ("launcher", "trainer", "jobs", "templates", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    shown = [path for path in files if path.suffix in (".md", ".py", ".yaml", ".yml")]
    lines = [(path, line) for path in [ROOT / "README.md", *shown] for line in path.read_text().splitlines()]
    assert len(shown) > 500
    assert [f"{path.relative_to(ROOT)}: {line}" for path, line in lines if names_in(line)] == []


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("pip install -c constraints.txt launcher", ["launcher"]),
        ("hint: python -m pip install 'launch-anywhere[board]', or not", ["launch-anywhere[board]"]),
        ("`uv tool install launch`", ["launch"]),
        ("uvx launcher --help", ["launcher"]),
        ("uv add launch-anywhere==0.2.0", ["launch-anywhere==0.2.0"]),
        ("pip install 'launch-anywhere[board] @ git+URL'", []),
        ("uv tool install './launch[board]'", []),
        ("pip install --upgrade git+URL", []),
        ("uv run launch submit job.yaml", []),
        ("after `uv sync` the command is `launch`", []),
    ],
)
def test_such_a_line_is_noticed(line, names):
    assert names_in(line) == names
