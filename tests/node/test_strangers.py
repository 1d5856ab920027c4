"""Another user's program at every port of ours, and a run that goes on: thousands of connections, silent and loud."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from replication_lab import OTHER
from separate_hosts import Hosts

from launcher.places.ssh.host.supervisor_messages import Agreed, Prepare
from launcher.places.ssh.host.supervisor_rpc import SupervisorRpc
from launcher.places.ssh.messages import Peer
from launcher.run.processes import descendants
from tests.other_users import MALLORY
from tests.sizes import SCALE
from tests.waits import until

ROOT = Path(__file__).parents[2]
CONNECTIONS = 3000 * SCALE  # as fast as they come
A_SECOND = 10_000 / 60
STEADY_S = 5 if SCALE == 1 else 60 * min(5, SCALE - 1)  # at that rate
STRANGER_UID = MALLORY if os.geteuid() == 0 else os.geteuid()
MOST_MORE_KB = 10_000

# Connects again and again: says nothing, too much, nonsense or a wrong proof, and keeps what it can keep.
STRANGER = """
import json, os, resource, socket, sys, time
doors, count, uid, a_second = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
if uid != os.geteuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
began = time.monotonic()
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
proof = json.dumps({"v": 4, "nonce": "0" * 32, "mac": "0" * 64}).encode() + b"\\n"
words = [b"", b"x" * 400, b"x" * 65536, b"\\n", b"{}\\n", proof, proof[:-1], b"[" * 511 + b"\\n"]
kept = []
for number in range(count):
    if a_second:
        time.sleep(max(0.0, began + number / a_second - time.monotonic()))
    for door in doors:
        line = socket.socket()
        line.settimeout(100)
        line.connect(tuple(door))
        line.setblocking(False)
        try:
            line.send(words[number % len(words)])
        except OSError:
            pass
        kept.append(line)
        if len(kept) > 1000:
            kept.pop(0).close()
print("done", os.getuid(), flush=True)
sys.stdin.read()
"""
DONE = f"done {STRANGER_UID}\n"


def memory_kb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def listeners(pids):
    """Addresses and ports at which these processes listen."""
    rows = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    mine = [row.split()[3].rpartition(":") for row in rows if any(f"pid={pid}," in row for pid in pids)]
    return [(address, int(port)) for address, _, port in mine]


def crowd(doors, count, a_second=0.0):
    words = [sys.executable, "-c", STRANGER, json.dumps(doors), str(count), str(STRANGER_UID), str(a_second)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("count", "a_second"), [(CONNECTIONS, 0.0), (int(A_SECOND * STEADY_S), A_SECOND)])
@pytest.mark.timeout(120 * SCALE + 2 * STEADY_S)
def test_a_run_goes_on_among_strangers(tmp_path, count, a_second):
    hosts = Hosts(tmp_path, ROOT / "tests/node/scripts/project/idles.py", nodes=2)
    hosts.start(0, 1)
    try:
        until("both run", lambda: hosts.state().get("state") == "running")
        pids = hosts.pids()
        doors = listeners(pids)
        assert len(doors) >= 3, "the coordinator and two replica servers"
        before = [memory_kb(pid) for pid in pids]
        with crowd(doors, count, a_second) as strangers:
            try:
                assert strangers.stdout.readline() == DONE, "each was let in, or dropped, at once"
                seen = hosts.state()["updated_at"]
                until("it goes on", lambda: hosts.state()["updated_at"] > seen + 2)
            finally:
                strangers.kill()
        after = [memory_kb(pid) for pid in pids]
        print(f"{count * len(doors)} connections; kB before and after: {before} {after}")
        assert all(late - early < MOST_MORE_KB for early, late in zip(before, after, strict=True))
        state = hosts.state()
        assert (state["state"], state["generation"], state["restarts"]) == ("running", 1, {})
        hosts.kill(0, signal.SIGTERM)
        hosts.end()
    finally:
        hosts.tidy()


SUPERVISOR = """
import sys
from launcher.run.processes import forbid_core_dumps
from launcher.places.ssh.host.supervisor_messages import Agreed
from launcher.places.ssh.host.supervisor_rpc import SupervisorRpc
rpc = SupervisorRpc("127.0.0.1", bytes.fromhex(sys.argv[1]), lambda *_: Agreed())
print(rpc.port, flush=True)
sys.stdin.read()
"""


def await_answer(asker):
    """Ask until host 0 answers, as a supervisor does: on a busy machine it may not be in time for the first handshake,
    which is given 5 s.
    """
    until("its answer", lambda: asker.ask_one(Prepare(1), 0, limit_s=60.0) == Agreed(), timeout_s=60.0)


def test_a_supervisor_answers_among_strangers(tmp_path):
    """Of which many more come than it has descriptors."""
    words = ["/bin/sh", "-c", 'ulimit -n 400; exec "$0" "$@"', sys.executable, "-c", SUPERVISOR, OTHER.hex()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as supervisor:
        try:
            port = int(supervisor.stdout.readline())
            asker = SupervisorRpc("127.0.0.1", OTHER, lambda *_: Agreed())
            asker.join([Peer("host0", "127.0.0.1", port), Peer("host1", "127.0.0.1", asker.port)], 1)
            await_answer(asker)
            before = memory_kb(supervisor.pid)
            with crowd([("127.0.0.1", port)], CONNECTIONS) as strangers:
                assert strangers.stdout.readline() == DONE
                await_answer(asker)
                strangers.kill()
            assert memory_kb(supervisor.pid) - before < MOST_MORE_KB
            asker.close()
        finally:
            supervisor.kill()


def limits_of(pid):
    """Soft limits of a process: core dumps and descriptors."""
    rows = Path(f"/proc/{pid}/limits").read_text().splitlines()
    found = {row[:26].strip(): row[26:].split()[0] for row in rows}
    return found["Max core file size"], found["Max open files"]


def test_no_process_that_holds_secrets_dumps_its_core_and_ranks_have_what_the_user_has(tmp_path):
    hosts = Hosts(tmp_path, ROOT / "tests/node/scripts/project/idles.py", nodes=1)
    hosts.start(0)
    try:
        until("it runs", lambda: hosts.state().get("state") == "running")
        (agent,) = hosts.pids()
        rank = hosts.rank_pid(0)
        words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(agent) if pid != rank}
        zygotes = [pid for pid, line in words.items() if b"zygote.py" in line]
        assert zygotes
        assert {limits_of(pid)[0] for pid in (agent, *zygotes)} == {"1"}
        assert limits_of(rank) == limits_of(os.getpid())
    finally:
        hosts.tidy()
