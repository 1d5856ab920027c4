"""Find the files shipped with the launcher: beside the package in a checkout, inside it once installed."""

import difflib
from pathlib import Path
from typing import Literal

from launcher.errors import BadInput

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(kind: Literal["templates", "jobs"]) -> Path:
    """Return the folder with the shipped templates of specs, or with the shipped jobs."""
    installed = _PACKAGE / "shipped_files" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def pages() -> dict[str, Path]:
    """Return {name: file} of the documentation pages for users."""
    return {path.stem: path for path in sorted((_PACKAGE / "docs").glob("*.md"))}


def title(page: Path) -> str:
    """Return the page's title, from its first line."""
    with page.open(encoding="utf-8") as file:
        return file.readline().lstrip("#").strip()


def starters() -> dict[str, str]:
    """Return {name: one line on its purpose} of the spec templates that `launch spec init` can write."""
    return {file.stem: _purpose(file) for file in sorted(shipped("templates").glob("*.yaml"))}


def starter(name: str) -> str:
    """Return the text of a spec template, in which `{{schema}}` stands for the path of the JSON Schema.

    Raise BadInput for an unknown name.
    """
    names = list(starters())
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(names)}"
        raise BadInput(f"no template {name!r}", f"hint: {hint}")
    return (shipped("templates") / f"{name}.yaml").read_text(encoding="utf-8")


def _purpose(file: Path) -> str:
    """Return the purpose of a template from its second line. The first line names the schema for editors."""
    return file.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ")
