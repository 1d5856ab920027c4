"""The linters are tests like any other, so that one command runs everything."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs import reference
from tests.docs.site import page_files

ROOT = Path(__file__).parents[2]
MAIN = "__name__ == '__main__'"


def test_ruff_has_nothing_to_say(tool):
    code, said = tool("ruff", "check", "--no-cache", "--output-format", "concise")
    assert code == 0, said


def test_the_code_is_formatted(tool):
    code, said = tool("ruff", "format", "--no-cache", "--check")
    assert code == 0, f"{said}\nhint: uv run ruff format"


@pytest.mark.timeout(900)  # from nothing, and beside four other tests on two cores
def test_mypy_has_nothing_to_say(tool, tmp_path):
    code, said = tool("mypy", "--cache-dir", str(tmp_path))
    assert code == 0, said


def test_every_fuzz_target_has_its_long_mode():
    """Who names no number of examples has the profile's, which has a share in it too."""
    short = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for found in re.finditer(r"max_examples=[^,)\n]*", path.read_text())
        if "SCALE" not in found.group() and path != Path(__file__)
    ]
    assert not short, "\n".join(short)


def test_nothing_is_defined_after_a_module_has_run_itself():
    """Run as a program, it would not know it; imported by a test, it would."""
    late = list[str]()
    for path in [*(ROOT / "launcher").rglob("*.py"), *(ROOT / "trainer").rglob("*.py"), *(ROOT / "jobs").rglob("*.py")]:
        body = ast.parse(path.read_text()).body
        runs = [index for index, node in enumerate(body) if isinstance(node, ast.If) and ast.unparse(node.test) == MAIN]
        late += [str(path) for index in runs if index < len(body) - 1]
    assert late == []


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


def test_every_link_leads_to_a_file():
    """The site's build looks at those between pages, and at their anchors; here it is all."""
    lost = []
    for page in page_files():
        text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
        lost += [f"{page.relative_to(ROOT)}: {link}" for link in links if not (page.parent / link).exists()]
    assert lost == []


def test_every_variable_of_ours_in_the_code_is_explained():
    explained = {
        name for names in (reference.OF_THE_USER, reference.OF_A_RANK, reference.OF_A_LISTENER) for name in names
    }
    ours = {name for name in explained if name.startswith("LAUNCH_")}
    assert ours == reference.variables_in_the_code(), "tests/docs/reference.py has the words"


def test_a_message_that_is_explained_is_one_of_ours():
    """What stands in a table's first column is in the code, word by word."""
    texts = [path.read_text() for path in (ROOT / "launcher").rglob("*.py")]
    said = [node.value for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    ours = "\n".join(one for one in said if isinstance(one, str))
    pages = [
        reference.DOCS / f"{name}.md" for name in ("not-started", "troubleshooting", "failed-runs", "host-problems")
    ]
    rows = [line for page in pages for line in page.read_text().splitlines() if line.startswith("| `")]
    rows = [row for row in rows if not row.startswith("| `launch ")]
    assert len(rows) > 30
    wanted = [part for row in rows for part in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert [part for part in wanted if part not in ours] == []
