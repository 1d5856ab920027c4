import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tool():
    """Runs a development tool of this environment on the project, or on a copy of it."""

    def run(name, *words, cwd=ROOT):
        # Not resolved: a virtual environment's python is a link, and the tools lie beside the link.
        program = Path(sys.executable).parent / name
        done = subprocess.run([program, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    return run
