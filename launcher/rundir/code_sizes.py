"""Which files and folders make code larger than the spec allows, and saying so."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from launcher.errors import BadInput

_SHOWN = 5
_MOST_OF_IT = 0.9


def largest(files: Mapping[str, int], most: int = _SHOWN) -> list[tuple[str, int]]:
    """The files and folders (these end with a slash) that hold most of it; none lies within another."""
    sizes: Counter[str] = Counter()
    inside: dict[str, set[str]] = {}
    for path, size in files.items():
        parts = path.split("/")
        steps = ["", *("/".join(parts[:end]) + "/" for end in range(1, len(parts))), path]
        for folder, step in pairwise(steps):
            sizes[step] += size
            inside.setdefault(folder, set()).add(step)
    top = sorted(inside.get("", ()), key=lambda name: (-sizes[name], name))[:most]
    return [(name, sizes[name]) for name in (_narrowed(name, sizes, inside) for name in top)]


def too_large(project: Path, files: Mapping[str, int], limit: int) -> BadInput:
    total = sum(files.values())
    return BadInput(
        f"code.max_size: expected at most {_megabytes(limit)} of code in {project}, got {_megabytes(total)}; largest:",
        *(f"  {_megabytes(size):>12}  {_shown(name)}" for name, size in largest(files)),
        "hint: leave data and outputs out with .gitignore or code.exclude, or raise code.max_size",
    )


def _narrowed(name: str, sizes: Counter[str], inside: dict[str, set[str]]) -> str:
    """Down to the one file or folder that makes this folder large, where it is one."""
    while name in inside:
        biggest = max(inside[name], key=lambda child: (sizes[child], child))
        if sizes[biggest] < _MOST_OF_IT * sizes[name]:
            break
        name = biggest
    return name


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} bytes"


def _shown(name: str) -> str:
    """A name may hold newlines, and bytes that no terminal can show."""
    return name if name.isprintable() else ascii(name)
