"""Ending exactly what is ours."""

import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from launcher.run.identity import alive, process_id
from launcher.run.processes import TAG, descendants, end_all, orphans, signal_process, tagged


def end(child):
    child.kill()
    child.wait()
    child.stdout.close()


SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def sleeper():
    child = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    child.stdout.readline()
    yield child
    end(child)


def test_a_number_that_is_a_thread_s_by_now_is_no_process(sleeper):
    """After a boot a record may have one: the kernel says that there is no such file."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        stale = msgspec.structs.replace(process_id(sleeper.pid), pid=thread.native_id, boot_id="before")
        assert not signal_process(stale, signal.SIGKILL)
    finally:
        over.set()
        thread.join()


def test_a_process_is_signalled_by_its_whole_identity(sleeper):
    identity = process_id(sleeper.pid)
    for other in (
        msgspec.structs.replace(identity, start_ticks=identity.start_ticks + 1),
        msgspec.structs.replace(identity, boot_id="another boot"),
        msgspec.structs.replace(identity, host="another host"),
    ):
        assert not signal_process(other, signal.SIGKILL)
    assert sleeper.poll() is None
    assert signal_process(identity, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not signal_process(identity, signal.SIGKILL)


def test_a_zombie_is_dead():
    child = subprocess.Popen(["true"])
    identity = None
    while identity is None:
        identity = process_id(child.pid)
    deadline = time.monotonic() + 60
    while alive(identity):
        assert time.monotonic() < deadline
    assert not signal_process(identity, signal.SIGKILL)
    child.wait()


def test_descendants_reach_down_and_orphans_stop_at_live_trees():
    code = "import subprocess, time; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    grandchild = int(child.stdout.readline())
    assert {child.pid, grandchild} <= set(descendants(os.getpid()))
    assert grandchild in descendants(os.getpid(), keep={child.pid})
    assert child.pid not in descendants(os.getpid(), keep={child.pid})
    assert not {child.pid, grandchild} & set(orphans(os.getpid(), {child.pid}))
    _, stubborn = end_all(lambda: [pid for pid in (child.pid, grandchild) if pid in descendants(os.getpid())])
    assert stubborn == []
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()


def test_a_tag_is_the_whole_folder_and_nothing_less():
    tags = {"ours": {TAG: "/runs/a-1"}, "longer": {TAG: "/runs/a-12"}, "mention": {"X": f"{TAG}=/runs/a-1"}}
    children = {
        name: subprocess.Popen(SLEEP, env={**os.environ, **env}, stdout=subprocess.PIPE) for name, env in tags.items()
    }
    for child in children.values():
        child.stdout.readline()
    try:
        assert tagged("/runs/a-1", os.getuid()) == [children["ours"].pid]
        assert tagged("/runs/a-1", os.getuid() + 1) == []
    finally:
        for child in children.values():
            end(child)


def test_a_process_is_found_by_its_tag_while_it_runs_one_program_after_another(tmp_path):
    script = tmp_path / "again.sh"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o700)
    child = subprocess.Popen([script], env={**os.environ, TAG: f"/runs/execs-{os.getpid()}"})
    try:
        missed = [look for look in range(1000) if tagged(f"/runs/execs-{os.getpid()}", os.getuid()) != [child.pid]]
    finally:
        child.kill()
        child.wait()
    assert missed == []


def test_a_process_that_forks_while_it_is_being_ended_is_ended_whole():
    code = """
import os, time
for number in range(300):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    if number == 5:
        print('up', flush=True)
    time.sleep(0.001)
time.sleep(600)
"""
    tag = {**os.environ, TAG: f"/runs/forks-{os.getpid()}"}
    child = subprocess.Popen([sys.executable, "-c", code], env=tag, stdout=subprocess.PIPE)
    child.stdout.readline()
    ended, stubborn = end_all(lambda: tagged(tag[TAG], os.getuid()))
    assert stubborn == []
    assert len(ended) > 1
    assert tagged(tag[TAG], os.getuid()) == []
    end(child)


def test_a_stopped_process_is_ended_too(sleeper):
    os.kill(sleeper.pid, signal.SIGSTOP)
    _, stubborn = end_all(lambda: [sleeper.pid] if alive_pid(sleeper.pid) else [])
    assert stubborn == []
    assert sleeper.wait() == -signal.SIGKILL


def alive_pid(pid):
    identity = process_id(pid)
    return identity is not None and bool(alive(identity))
