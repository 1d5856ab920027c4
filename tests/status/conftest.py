import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "job-abcd")
