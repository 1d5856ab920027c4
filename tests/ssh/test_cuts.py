"""A host that cannot be reached is said to be that: every command answers soon, and nothing that was cut off stays."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest

from tests.lab.nodes import Cut, pid_inside
from tests.sizes import SCALE

pytestmark = pytest.mark.nightly

LIMIT_S = 100.0  # 30, and what a busy machine adds
LEASE_S = 10.0
FROZEN = "frozen"
LONG = f"recovery: {{lease: {LEASE_S:g}s, grace: 1s}}\n"
ALL = ("--set", "resources.nodes=4", "--set", "resources.ranks_per_node=1")


def answers(desk, *commands, **env):
    """Return the answer of each command, run at the same time, each within the limit."""
    words = [sys.executable, "-m", "launcher.cli.main"]
    options = {"cwd": desk.project, "env": desk.env | env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    began = time.monotonic()
    said = []
    with ExitStack() as asked:
        running = [asked.enter_context(subprocess.Popen([*words, *one], text=True, **options)) for one in commands]
        try:
            for one, command in zip(running, commands, strict=True):
                out, err = one.communicate(timeout=max(0.1, began + LIMIT_S - time.monotonic()))
                print(f"{command[0]}: answered by {time.monotonic() - began:.1f} s")
                assert "Traceback" not in err, (command, err)
                said.append(SimpleNamespace(code=one.returncode, out=out, err=err))
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"no answer within {LIMIT_S} s: {late.cmd}") from None
        finally:
            for one in running:
                one.kill()
    return said


def submitter(desk):
    """This machine, as one that a host may be cut off from."""
    return SimpleNamespace(address=desk.hosts.claim.address(1))


def ranks(desk, run, index):
    """Return the ranks of the first generation that live on a host."""
    ids = {rank["pid"] for rank in desk.state_there(0, run)["ranks"] if rank["node"] == index}
    assert ids, "no rank was there"
    return lambda: [pid for pid in desk.hosts.nodes[index].started() if pid_inside(pid) in ids]


def training(desk, more=LONG):
    """A run without an end on the first two hosts."""
    run = desk.submit(desk.job(100_000, more=more), "--on", "pool")
    desk.until_step_there(0, run, 5)
    return run


def keep_away(desk, how):
    """Cut this machine from the first two hosts, which still reach each other."""
    for node in desk.hosts.nodes[:2]:
        if how == FROZEN:
            node.signal("sshd", signal.SIGSTOP)  # the kernel still takes connections, and nobody greets
        else:
            node.cut(how, peers=[submitter(desk)])


def let_back(desk, how):
    for node in desk.hosts.nodes[:2]:
        if how == FROZEN:
            node.signal("sshd", signal.SIGCONT)
        else:
            node.mend()


def test_no_host_of_the_run_can_be_reached(desk, draw):
    run = training(desk, "recovery: {grace: 1s}\n")  # with the usual lease: none is over while this machine is busy
    desk.launch("logs", run)
    for how in draw.sample([Cut.IN, Cut.OUT, Cut.BOTH, Cut.RESET, FROZEN], min(5, SCALE)):
        desk.status(run)
        keep_away(desk, how)
        status, page, logs, hosts, submit, cancel = answers(
            desk, ["status", run, "--json"], ["status"], ["logs", run], ["hosts", "--json"],
            ["submit", "job.yaml", "--on", "pool", *ALL], ["cancel", run],
        )  # fmt: skip
        shown = json.loads(status.out)
        assert (status.code, shown["state"]) == (0, "unknown"), (how, shown["message"])
        assert "last seen RUNNING at" in shown["message"] and "node0" in shown["message"], shown["message"]
        assert "failed" not in page.out and run in page.out
        assert "rank 0" in logs.out, (how, logs.err)
        told = [json.loads(line) for line in hosts.out.splitlines()]
        assert [one["reachable"] for one in told] == [False, False, True, True]
        assert (submit.code, cancel.code) == (5, 5), (how, submit.err, cancel.err)
        assert "nothing was started" in submit.err and "could not ask node0, node1" in cancel.err
        let_back(desk, how)
        state = desk.state_there(0, run)
        assert (state["state"], state["attempt"], state["generation"]) == ("running", 1, 1)
    assert desk.status(run)["state"] == "running"
    desk.launch("cancel", run)
    assert desk.left() == []


def test_one_packet_in_five_is_lost(desk):
    run = training(desk)
    for node in desk.hosts.nodes[:2]:
        node.cut(Cut.LOSS, peers=[submitter(desk)])
    for said in answers(desk, ["status", run], ["logs", run], ["hosts"]):
        assert said.code in (0, 5), said.err
    (said,) = answers(desk, ["cancel", run])
    assert said.code in (0, 5), said.err
    for node in desk.hosts.nodes[:2]:
        node.mend()
    desk.launch("cancel", run)
    assert (desk.left(), desk.status(run)["state"]) == ([], "cancelled")


@pytest.mark.daily
def test_a_host_that_is_cut_off_from_all(desk, draw, tmp_path):
    """Its ranks end with its lease; a cancel names it, and another one when it is back leaves nothing there either."""
    config = tmp_path / "ssh_config"
    config.write_text(f"{desk.hosts.config.read_text()}  ConnectTimeout 4\n")
    desk.env["LAUNCH_SSH_CONFIG"] = str(config)
    cut = desk.hosts.nodes[1]
    for how in draw.sample([Cut.LINK, Cut.IN, Cut.OUT, Cut.BOTH, Cut.RESET], min(5, SCALE)):
        run = training(desk)
        here, there = ranks(desk, run, 0), ranks(desk, run, 1)
        assert here() and there()
        cut.cut(how)
        desk.until(f"the end of its ranks, cut {how}", lambda there=there: not there())
        (said,) = answers(desk, ["cancel", run])
        assert said.code == 5, (how, said.err)
        assert "could not ask node1" in said.err and f"launch cancel {run} again" in said.err
        assert not here(), how
        cut.mend()
        (said,) = answers(desk, ["cancel", run])
        assert (said.code, desk.left()) == (0, []), (how, said.err)
        assert desk.status(run)["state"] == "cancelled", how


def test_a_host_that_was_cut_off_hears_of_a_cancel_from_the_others(desk):
    """It held its slots for five minutes, and the next run waited for them without a word of why."""
    run = training(desk)
    cut, there = desk.hosts.nodes[1], ranks(desk, run, 1)
    cut.cut(Cut.BOTH)
    desk.until("the end of its ranks", lambda: not there())
    (said,) = answers(desk, ["cancel", run])
    assert said.code == 5 and "could not ask node1" in said.err
    shown = desk.status(run)
    assert shown["state"] == "unknown" and "node1" in shown["message"] and "CANCELLED" in shown["message"]
    assert desk.own("ssh.host.host_supervisor", 1), "it knows nothing of that"
    cut.mend()
    desk.until("the end of its supervisor", lambda: not desk.own("ssh.host.host_supervisor", 1))
    assert desk.record_there(1, run, "attempts/0001/exit.json")["state"] == "cancelled"
    assert desk.until("its word", lambda: desk.status(run)["state"] == "cancelled")
    desk.until("that nobody is left to be told", lambda: not desk.left())


UNTIL = """
import json, os, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
step = 0
while not os.path.exists(os.path.join(os.environ["LAUNCH_RUN_DIR"], "enough")):
    step += 1
    wire.write(json.dumps({"step": step}) + "\\n")
    time.sleep(0.05)
"""


def test_a_host_that_was_cut_off_hears_how_the_run_has_ended_from_who_led_it(desk):
    """It stayed until it had been refused for a lease and 8 s, and left by itself where the cut was what refused."""
    desk.script("until.py", UNTIL)
    spec = "name: until\nrun: {script: until.py, preload: []}\nresources: {nodes: 2, ranks_per_node: 1}\n"
    run = desk.submit(desk.spec(f"{spec}{LONG[:-2]}, spares: 1}}\n"), "--on", "pool")
    desk.until_step_there(0, run, 1)
    cut = desk.hosts.nodes[2]
    cut.cut(Cut.BOTH)
    for index in (0, 1):
        desk.there(index, run, "enough").touch()
    assert desk.wait(run)["state"] == "succeeded"
    desk.until("the end of the other supervisors", lambda: not desk.own("ssh.host.host_supervisor", 0))
    assert desk.own("ssh.host.host_supervisor", 2) and desk.own("ssh.host.late_messages", 0)
    assert desk.record_there(2, run, "attempts/0001/exit.json") is None
    cut.mend()
    desk.until("the end of its supervisor", lambda: not desk.own("ssh.host.host_supervisor", 2))
    assert desk.record_there(2, run, "attempts/0001/exit.json")["state"] == "succeeded"
    desk.until("that nobody is left to be told", lambda: not desk.left())


@contextmanager
def proxy(target, most, *, reset):
    """A port of this machine that leads to a host; after so many bytes of the client's it is silent, or resets."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()
    open_ends = []

    def pump(source, sink, left):
        with suppress(OSError):
            while left > 0 and (data := source.recv(min(65536, left))):
                sink.sendall(data)
                left -= len(data)
            if left > 0:
                sink.shutdown(socket.SHUT_WR)
                return
            if not reset:
                over.wait()
                return
            for end in (source, sink):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    def serve():
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((target, 22), timeout=60)
                server.settimeout(None)
                open_ends.extend((client, server))
                for pair in ((client, server, most), (server, client, 1 << 40)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        server.join(60)
        for end in open_ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


# Bytes of the client's: the greeting is 24 long, the exchange of keys ends at about 2000, the login at about 2600.
WHERE = {"greeting": 10, "keys": 1_200, "login": 2_200, "probe": 4_000, "upload": 1_500_000}


@pytest.mark.timeout(600)
def test_the_way_to_two_hosts_ends_in_the_middle(desk, tmp_path, draw):
    """Of a handshake or a question, and of the code that is sent: the others are used, and there nothing is left."""
    cases = [(where, reset) for where in WHERE for reset in (False, True) if where != "upload"]
    for where, reset in draw.sample(cases, min(len(cases), SCALE)):
        (desk.project / "weights.bin").write_bytes(os.urandom(4_000_000))  # so that it is nowhere yet
        spec = desk.job(3)
        with ExitStack() as ways:
            lines = []
            for index, most in enumerate((WHERE[where], WHERE["upload"])):
                port = ways.enter_context(proxy(desk.hosts.nodes[index].address, most, reset=reset))
                lines.append(f"Host node{index}\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias node{index}\n")
            config = tmp_path / "ssh_config"
            config.write_text("".join(lines) + desk.hosts.config.read_text())
            (said,) = answers(desk, ["submit", spec, "--on", "pool"], LAUNCH_SSH_CONFIG=str(config))
        assert said.code == 0, (where, reset, said.err)
        status = desk.wait(said.out.strip())
        assert [node["host"] for node in status["nodes"]] == ["node2", "node3"], (where, reset)
        for index in (0, 1):
            desk.until(f"nothing there, {where}", lambda index=index: not desk.hosts.nodes[index].started())
            assert not [*desk.hosts.home(index).glob("launch/runs/*")], (where, reset, index)
