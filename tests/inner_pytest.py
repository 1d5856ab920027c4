"""Tests that run in a pytest of their own, with other packages first on the path."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import launcher

ROOT = Path(__file__).parents[1]
_WORDS = ("-P", "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--nightly", "--scale", "1")


def run_tests(*words: str, path: Sequence[Path], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with these words, nightly tests too, and return what it said. `path` comes before all packages."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**own, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    command = [sys.executable, *_WORDS, *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)


def assert_noticed(sabotage: tuple[str, str, str, str, str], folder: Path, timeout_s: int = 60) -> None:
    """Break a copy of the launcher, in `folder`, and have tests of that copy fail.

    A sabotage is a file of the launcher, a text in it and what replaces that, a file of tests, and `-k` of the tests.
    """
    file, sound, broken, tests, which = sabotage
    copy = folder / "launcher"
    shutil.copytree(Path(launcher.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert_can_be_made(sabotage, copy)
    (copy / file).write_text((copy / file).read_text().replace(sound, broken))
    for kind in ("templates", "jobs"):
        (folder / kind).symlink_to(ROOT / kind)
    words = ("-x", "--timeout", str(timeout_s), str(ROOT / "tests" / tests), "-k", which)
    done = run_tests(*words, path=[folder], LAUNCH_TEST_BOUND_S="15")
    assert done.returncode == 1, done.stdout
    assert " failed" in done.stdout, done.stdout


def assert_can_be_made(sabotage: tuple[str, str, str, str, str], package: Path) -> None:
    """Check that the text to break stands once in this launcher, and that tests of these names are there."""
    file, sound, _, tests, which = sabotage
    assert (package / file).read_text().count(sound) == 1, f"{file} has changed: {sound!r}"
    text = (ROOT / "tests" / tests).read_text()
    missing = [word for word in re.split(" and | or ", which) if word not in text]
    assert not missing, f"{tests} has no tests that are called so: {missing}"
