import pytest
from lab import Lab


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    yield lab
    try:
        lab.until("the end of every process of its runs", lambda: not lab.processes(), timeout_s=15)
    finally:
        lab.tidy()
