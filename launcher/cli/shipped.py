"""Find the files shipped with the launcher: beside the package in a checkout, inside it once installed."""

import difflib
from pathlib import Path
from typing import Literal

from launcher.errors import BadInput

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(kind: Literal["templates", "jobs"]) -> Path:
    """Return the folder with the shipped files of this kind."""
    installed = _PACKAGE / "shipped_files" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def pages() -> dict[str, Path]:
    """Return the pages for users by their names."""
    return {path.stem: path for path in sorted((_PACKAGE / "docs").glob("*.md"))}


def title(page: Path) -> str:
    """Return the page's title, from its first line."""
    with page.open(encoding="utf-8") as file:
        return file.readline().lstrip("#").strip()


def starters() -> dict[str, str]:
    """Return the specs that `launch spec init` can write by name, each with a line about its purpose."""
    return {file.stem: _purpose(file) for file in sorted(shipped("templates").glob("*.yaml"))}


def starter(name: str) -> str:
    """Return a template's text, with `{{schema}}` for the path of the JSON Schema; raise BadInput for an unknown
    name.
    """
    names = list(starters())
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(names)}"
        raise BadInput(f"no template {name!r}", f"hint: {hint}")
    return (shipped("templates") / f"{name}.yaml").read_text(encoding="utf-8")


def _purpose(file: Path) -> str:
    """Return a template's purpose, from its second line; the first names the schema for editors."""
    return file.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ")
