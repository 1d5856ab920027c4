"""The website of all pages: python -m tests.docs.site FOLDER"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CONFIG = ROOT / "launcher" / "docs" / "zensical.toml"


def page_files() -> list[Path]:
    """Every page, users' and contributors', where it lies in the repository: so links between them hold."""
    folders = ("launcher", "trainer")
    inner = [path for folder in folders for path in (ROOT / folder).rglob("*.md")]
    of_github = [path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").glob("[A-Z]*.md")]
    others = ["README.md", *of_github]
    tests = (ROOT / "tests").rglob("[A-Z]*.md")
    return sorted([*inner, *(ROOT / name for name in others), *tests])


def build(folder: Path, files: Sequence[Path] | None = None, root: Path = ROOT) -> str:
    """Make the site in `folder/site` of these pages below `root`, else of all; return what the generator says.

    Raises CalledProcessError.
    """
    pages = folder / "pages"
    for path in page_files() if files is None else files:
        copy = pages / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copy(_CONFIG, folder)
    program = Path(sys.executable).parent / "zensical"
    done = subprocess.run(
        [program, "build", "--strict", "--clean"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, "zensical build --strict", done.stdout)
    return done.stdout


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]))
    except subprocess.CalledProcessError as error:
        sys.exit(error.output)
    print(Path(sys.argv[1]) / "site" / "index.html")
