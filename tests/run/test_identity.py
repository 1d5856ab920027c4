import os
import shutil
import signal
import subprocess
import sys

import msgspec
import pytest

from launcher.run.identity import alive, boot_id, host, process_id, this_process


@pytest.fixture
def sleeper(tmp_path):
    """Starts a program under a name of our choice."""
    started = []

    def start(name: str) -> subprocess.Popen[bytes]:
        program = tmp_path / name
        shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
        started.append(subprocess.Popen([program, "60"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_this_process_lives():
    me = this_process()
    assert (me.pid, me.host, me.boot_id) == (os.getpid(), host(), boot_id())
    assert alive(me) is True


def test_a_child_knows_itself_and_not_its_parent():
    code = "from launcher.run.identity import this_process; print(this_process().pid)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(child.stdout) != os.getpid()


@pytest.mark.parametrize("name", ["plain", "with space", "a) S 1 (b", "))) Z 0", "new\nline"])
def test_the_name_of_a_program_does_not_disturb(sleeper, name):
    process = sleeper(name)
    found = process_id(process.pid)
    assert found is not None and alive(found) is True
    process.kill()
    process.wait()
    assert alive(found) is False
    assert process_id(process.pid) is None


def test_a_zombie_is_dead(sleeper):
    process = sleeper("zombie")
    found = process_id(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert found is not None and alive(found) is False


def test_a_stranger_with_the_same_pid_is_not_the_process():
    me = this_process()
    assert alive(msgspec.structs.replace(me, start_ticks=me.start_ticks - 1)) is False


def test_nothing_survives_a_reboot():
    assert alive(msgspec.structs.replace(this_process(), boot_id="another")) is False


def test_of_another_machine_nothing_is_known():
    assert alive(msgspec.structs.replace(this_process(), host="elsewhere", boot_id="another")) is None


@pytest.mark.parametrize("pid", [0, -1, 2**30])
def test_nobody_has_an_impossible_pid(pid):
    assert process_id(pid) is None
