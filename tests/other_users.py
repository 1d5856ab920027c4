"""Other users of this machine: real ones, with a uid each, that only root can play."""

import grp  # noqa: F401, what is imported here need not lie where another user can read it
import os
import pwd  # noqa: F401
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

ALICE, MALLORY = 61001, 61002


def as_user(uid: int, act: Callable[[], Any]) -> Any:
    """Return the call's result as this user, in a separate process; an error as its type's name and text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.environ["HOME"] = "/nonexistent"
            try:
                said = act()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writer, msgspec.json.encode(said))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        said = told.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(said)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users reach and only root can write to."""
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def folder_of(uid: int, path: Path, mode: int = 0o700) -> Path:
    path.mkdir(parents=True)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path
