"""Tests that run in a pytest of their own, with other packages first on the path."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_WORDS = ("-P", "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--nightly", "--scale", "1")


def run_tests(*words: str, path: Sequence[Path], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with these words, nightly tests too, and return what it said. `path` comes before all packages."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**own, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    command = [sys.executable, *_WORDS, *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
