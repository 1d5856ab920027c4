"""Read the fenced blocks of a page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "launcher" / "docs"


def blocks(page: Path, kind: str) -> list[str]:
    """Return all blocks of this kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def block(page: Path, kind: str, word: str) -> str:
    """The one of that kind which has this in it."""
    [found] = [text for text in blocks(page, kind) if word in text]
    return found
