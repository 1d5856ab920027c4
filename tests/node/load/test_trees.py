"""Test measured use of ranks' processes against what the processes know of themselves."""

import os
import subprocess
import sys

import pytest

from launcher.node.load import sampler
from launcher.node.load.sampler import Trees

MB = 1_000_000
HELD = 300 * MB
CPU_S = 1.0
BURNS = f"""
import os, sys, time
held = bytearray(os.urandom(1000) * {HELD // 1000})
while time.process_time() < {CPU_S}:
    pass
"""
SAYS = "print(time.process_time(), flush=True)\nsys.stdin.read()\n"
CHILD = "import os, subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {inner!r}])\n"


@pytest.fixture
def tree():
    """Starts a program that says one line once it has done its work, and then stays."""
    started = []

    def start(program):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process.pid, process.stdout.readline()

    yield start
    for process in started:
        process.stdin.close()  # the innermost reads it to its end, and whoever waits for that ends then too
        process.wait(60)
        process.stdout.close()


def test_one_process_that_burns_a_core_and_holds_300_mb(tree):
    pid, said = tree(BURNS + SAYS)
    use = Trees().look([pid])[pid]
    assert float(said) - 0.1 <= use.cpu_s <= float(said) + 1
    assert HELD <= use.memory <= HELD + 100 * MB
    assert use.pids == {pid}


def test_what_is_below_a_rank_counts_too(tree):
    pid, said = tree(CHILD.format(inner=BURNS + SAYS))
    use = Trees().look([pid])[pid]
    assert float(said) - 0.1 <= use.cpu_s <= float(said) + 5
    assert use.memory >= HELD
    assert len(use.pids) == 2


def test_what_children_used_that_have_ended_is_not_lost(tree):
    pid, _ = tree(CHILD.format(inner=BURNS) + SAYS)
    use = Trees().look([pid])[pid]
    assert use.cpu_s >= CPU_S - 0.1
    assert use.memory < HELD
    assert use.pids == {pid}


def test_bytes_on_their_way_to_the_disk_count(tree, tmp_path):
    program = (
        f"import os, sys, time\nfd = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY)\n"
        f"os.write(fd, b'x' * {8 * MB})\nos.fsync(fd)\n"
    )
    pid, _ = tree(program + SAYS)
    with open(f"/proc/{pid}/io") as file:
        counted = int(file.read().split("\nwrite_bytes: ")[1].split("\n")[0])
    assert Trees().look([pid])[pid].written == counted


def test_a_process_that_is_gone_is_left_out(tree):
    gone = subprocess.Popen(["true"])
    gone.wait()
    pid, _ = tree("import sys, time\n" + SAYS)
    assert {*Trees().look([gone.pid, pid])} == {pid}


def test_others_are_not_looked_at_each_time(tree, monkeypatch):
    read, looked_at = sampler.read_process, []
    monkeypatch.setattr(sampler, "read_process", lambda pid: looked_at.append(pid) or read(pid))
    pid, _ = tree("import sys, time\n" + SAYS)
    looks = Trees()
    looks.look([pid])
    assert {pid, os.getpid()} <= {*looked_at}
    looked_at.clear()
    looks.look([pid])
    assert pid in looked_at
    assert os.getpid() not in looked_at
    other, _ = tree("import sys, time\n" + SAYS)
    looked_at.clear()
    looks.look([pid, other])  # what a new rank has started already may have been taken for a stranger
    assert {pid, other, os.getpid()} <= {*looked_at}
