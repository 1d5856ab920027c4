import pytest
from listeners import Mail, Web, open_listener


@pytest.fixture
def web():
    with open_listener(Web) as listener:
        yield listener


@pytest.fixture
def mail():
    with open_listener(Mail) as listener:
        yield listener
