"""Check a checkout before it is published, and print the notes of its release.

python -m tests.packaging.release TAG REPOSITORY_URL     prints the notes, or what is not ready and exits with 1
"""

import re
import sys
import tomllib
from pathlib import Path

from launcher.states import VERSION

ROOT = Path(__file__).parents[2]


def not_ready(tag: str, repository: str, *, version: str = VERSION, root: Path = ROOT) -> list[str]:
    """Return one line for each thing that keeps `root` from being released as `tag` from `repository`."""
    found = []
    if tag != f"v{version}":
        found.append(f"launcher/states.py: expected the version of the tag {tag}, got {version}")
    heading = _section(version, root)[0]
    if not re.search(r"\d{4}-\d{2}-\d{2}$", heading):
        found.append(f"launcher/docs/changelog.md: expected `## {version} - YYYY-MM-DD`, got {heading or 'nothing'!r}")
    urls = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    if urls["Source"].rstrip("/") != repository.rstrip("/"):
        found.append(f"pyproject.toml: project.urls.Source: expected {repository}, got {urls['Source']}")
    found += [
        f"pyproject.toml: project.urls.{name}: is an example"
        for name, url in urls.items()
        if re.search(r"\bexample\b", url)
    ]
    recorded = (f"tests/local/recorded/{version}", f"tests/recorded/launch-{version}.tar.xz")
    found += [f"{name}: missing: later versions are tested with it" for name in recorded if not (root / name).exists()]
    return found


def notes(version: str = VERSION, root: Path = ROOT) -> str:
    """Return what the changelog says of this version, without its heading."""
    return _section(version, root)[1]


def _section(version: str, root: Path) -> tuple[str, str]:
    """Return heading and text of this version in the changelog, or two empty strings."""
    text = (root / "launcher" / "docs" / "changelog.md").read_text(encoding="utf-8")
    found = re.search(rf"^(## {re.escape(version)}(?!\S)[^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return (found[1], f"{found[2].strip()}\n") if found else ("", "")


if __name__ == "__main__":
    if lines := not_ready(*sys.argv[1:3]):
        sys.exit("\n".join(["not ready to be released (launcher/docs/releasing.md):", *lines]))
    print(notes(), end="")
