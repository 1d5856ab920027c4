import pytest
from lab import Lab


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    yield lab
    left = lab.tidy()
    assert not left, f"processes of a run outlived it: {left}"
