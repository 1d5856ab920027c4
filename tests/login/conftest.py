import pytest
from login_node import MISSING, Laptop, LoginNode

from tests.lab.requirements import skip_or_fail


@pytest.fixture
def login_node(tmp_path):
    """A login node that is up; nothing of its runs is left at the end."""
    if MISSING:
        skip_or_fail(MISSING)
    node = LoginNode(tmp_path / "far").up()
    yield node
    node.tidy()


@pytest.fixture
def laptop(tmp_path, login_node):
    return Laptop(tmp_path / "near", login_node)
