"""What stands between the fences of a page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "launcher" / "docs"


def blocks(page: Path, kind: str) -> list[str]:
    """All of that kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def block(page: Path, kind: str, word: str) -> str:
    """The one of that kind which has this in it."""
    [found] = [text for text in blocks(page, kind) if word in text]
    return found
