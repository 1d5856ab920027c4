"""Write parts of a spec as people would write them."""

import json
import re
from collections.abc import Sequence

_PLAIN = re.compile(r"[A-Za-z0-9_./+-][A-Za-z0-9_./+=@%-]*")
_NOT_TEXT = frozenset(("null", "~", "true", "false", "yes", "no", "on", "off", "-", "---", "..."))


def scalar(text: str) -> str:
    """Return a YAML value that is read back as exactly this text."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)


def flow(texts: Sequence[str]) -> str:
    """Return a YAML list on one line."""
    return f"[{', '.join(map(scalar, texts))}]"


def job_name(file: str) -> str:
    """Return a job name for this file, module or program."""
    stem = file.rstrip("/").rpartition("/")[2].removesuffix(".py")
    return re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")[:63] or "job"
