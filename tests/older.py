"""The code of released versions of `launch`, for runs that they began and this version goes on with.

    uv run python tests/older.py     packs this version's, on the day that it is released

`tests/recorded` has of each version what its command line and its hosts need, and the options that its pages showed.
"""

import re
import tarfile
from pathlib import Path

from launcher.states import VERSION

_ROOT = Path(__file__).parents[1]
RECORDED = _ROOT / "tests" / "recorded"
OLDER = sorted(file.name.removeprefix("launch-").removesuffix(".tar.xz") for file in RECORDED.glob("*.tar.xz"))
_NEEDED = ("launcher/**/*.py", "trainer/*.py", "trainer/checkpoint_files/**/*.py", "trainer/serving/*.py")


def unpack(version: str, folder: Path, recorded: Path = RECORDED) -> dict[str, str]:
    """Lay the code of `version` into `folder`; returns the environment in which `-m launcher.cli.main` is that one."""
    with tarfile.open(recorded / f"launch-{version}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return {"PYTHONPATH": str(folder)}


def record(folder: Path = RECORDED) -> None:
    """Write the code of this version, and each option of a spec with the value that the reference shows."""
    files = sorted({file for pattern in _NEEDED for file in _ROOT.glob(pattern)})
    with tarfile.open(folder / f"launch-{VERSION}.tar.xz", "w:xz") as packed:
        for file in files:
            packed.add(file, file.relative_to(_ROOT).as_posix())
    page = (_ROOT / "launcher" / "docs" / "spec.md").read_text()
    options = re.findall(r"^\| `([\w.]+)` \| `((?:[^`\\]|\\.)*)` \|", page, re.MULTILINE)
    lines = [f"{key}={value.replace(chr(92) + '|', '|')}\n" for key, value in options if key != "steps"]
    (folder / f"spec-{VERSION}.txt").write_text("".join(lines))


if __name__ == "__main__":
    record()
