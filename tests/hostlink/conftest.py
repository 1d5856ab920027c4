import os

import pytest
from doors import MISSING, Door


@pytest.fixture
def opened(tmp_path):
    """Start sshds; each ends with the test, and all that it serves."""
    if MISSING and not os.environ.get("CI"):
        pytest.skip(MISSING)
    assert not MISSING, MISSING
    doors = []

    def start(name="door", **more):
        door = Door(tmp_path / name, name, **more)
        doors.append(door)
        return door.up()

    yield start
    for door in doors:
        door.down()


@pytest.fixture
def door(opened):
    return opened()
