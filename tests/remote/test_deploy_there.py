"""Putting the launcher on a host: of several that come at once, one does it."""

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from launcher.remote.shipping import bundle, deploy_there
from launcher.remote.shipping.deploy_there import alone


@contextmanager
def held(lock):
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_who_comes_second_finds_what_the_first_one_has_made(tmp_path):
    """Eight submits at once to four new hosts made 32 environments there, seconds of a core each."""
    text, asked = Path(deploy_there.__file__).read_text(), {"workdir": str(tmp_path), "digest": "d1", "theirs": False}
    words = [sys.executable, "-I", "-c", text, json.dumps(asked)]
    with held(tmp_path / "lib" / ".lock"):
        second = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        (tmp_path / "lib" / "d1").mkdir()
    said, errors = second.communicate(timeout=60)
    assert (second.returncode, said) == (0, b"launch-there\n"), errors
    assert sorted(os.listdir(tmp_path / "lib")) == [".lock", "d1"]


def test_who_holds_the_lock_for_too_long_is_not_waited_for(tmp_path):
    lock = tmp_path / "lib" / ".lock"
    with held(lock):
        assert alone(str(lock), patience_s=0.1) is None
    mine = alone(str(lock), patience_s=0.1)
    assert mine is not None
    os.close(mine)


def test_what_is_sent_to_many_new_hosts_is_compressed_once():
    """For each of a hundred hosts that took a quarter of a second of this machine's core."""
    with ThreadPoolExecutor(4) as threads:
        made = [*threads.map(bundle.archive, [bundle.own_tag()] * 4)]
    assert len({id(one) for one in made}) == 1
