"""The programs that are run on machines which need not have us: `python -c TEXT`, or from here as modules."""

from pathlib import Path


def text_of(name: str) -> str:
    """Of `NAME_there.py` in this folder or below; one that imports torch is never imported here."""
    return next(Path(__file__).parent.rglob(f"{name}_there.py")).read_text(encoding="utf-8")
