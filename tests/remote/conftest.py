import pytest
from doors import MISSING, Door

from launcher.remote.target import target_of
from launcher.spec.model import SshHost
from tests.lab.requirements import skip_or_fail


@pytest.fixture
def opened(tmp_path):
    """Start sshds; each ends with the test, and all that it serves."""
    if MISSING:
        skip_or_fail(MISSING)
    doors = []

    def start(name="door", **more):
        door = Door(tmp_path / name, name, **more)
        doors.append(door)
        return door.up()

    yield start
    for door in doors:
        door.close()


@pytest.fixture
def door(opened):
    return opened()


@pytest.fixture(params=["paramiko", "openssh"])
def to(request, tmp_path, monkeypatch):
    """Return a function that makes the target of a test's ssh server, once for each transport."""

    def target(door, **changes):
        there = door.target(**changes)
        if request.param == "paramiko":
            return there
        keys = "".join(f" IdentityFile {key}\n" for key in there.keys) or " IdentityFile none\n"
        files = " ".join(map(str, there.known_hosts)) or "/dev/null"
        (tmp_path / "config").write_text(
            f"Host {there.name}\n HostName {there.hostname}\n Port {there.port}\n User {there.user}\n{keys}"
            f" IdentitiesOnly yes\n UserKnownHostsFile {files}\n GlobalKnownHostsFile /dev/null\n"
        )
        monkeypatch.setenv("LAUNCH_SSH_CONFIG", str(tmp_path / "config"))
        return target_of(SshHost(there.name, transport="openssh"))

    return target
