"""The linters are tests like any other, so that one command runs everything."""

import re
from pathlib import Path

from tests.docs import reference

ROOT = Path(__file__).parents[2]


def test_ruff_has_nothing_to_say(tool):
    code, said = tool("ruff", "check", "--no-cache", "--output-format", "concise")
    assert code == 0, said


def test_the_code_is_formatted(tool):
    code, said = tool("ruff", "format", "--no-cache", "--check")
    assert code == 0, f"{said}\nhint: uv run ruff format"


def test_mypy_has_nothing_to_say(tool, tmp_path):
    code, said = tool("mypy", "--cache-dir", str(tmp_path))
    assert code == 0, said


def test_every_fuzz_target_has_its_long_mode():
    """Who names no number of examples has the profile's, which has a share in it too."""
    short = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for found in re.finditer(r"max_examples=[^,)\n]*", path.read_text())
        if "SHARE" not in found.group() and path != Path(__file__)
    ]
    assert not short, "\n".join(short)


def test_every_suppression_gives_its_reason():
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for package in ("launcher", "trainer")
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"#.*\b(noqa|nosec)\b", line) and not re.search(r"\b(noqa|nosec)\b[:\w ,]* - \w", line)
    ]
    assert not bare, "\n".join(["write `# noqa: CODE - why`:", *bare])


def test_the_pages_that_are_made_from_the_code_are_current():
    stale = [name for name, text in reference.pages().items() if (reference.DOCS / name).read_text() != text]
    assert not stale, f"{', '.join(stale)}: run python -m tests.docs.reference"
