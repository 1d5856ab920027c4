"""Test a supervisor that is forked from a server: it must look and live as if its command had been executed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.run.processes import tagged

STRATEGY = """
import json, os, sys
from launcher.supervisor.strategy import Strategy

class Told(Strategy):
    def boot(self):
        fds = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
        said = {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "folder": os.getcwd(),
                "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in fds}, "env": dict(os.environ)}
        return json.dumps(said).encode() + b"\\n"

    def supervise(self, go):
        (self.run.path / self.words[0]).write_bytes(go.read())
        return 0

class Fails(Strategy):
    def boot(self):
        raise ValueError("it is broken")
"""
SERVER = """
import os, sys, threading
from pathlib import Path
from launcher.errors import LaunchError
from launcher.supervisor.forked import fork_supervisor
from launcher.supervisor.standby import StandbySupervisor

run, strategy, kept = Path(sys.argv[1], *["x" * 250] * int(os.environ.get("DEEP", 0))), sys.argv[2], int(sys.argv[3])
run.mkdir(parents=True, exist_ok=True)
if "THREAD" in os.environ:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.environ |= {"OF_THE_SERVER": "x", "SLURM_JOB_ID": "1"}

def start(*how):
    forked = fork_supervisor(*how)
    print(forked, flush=True)
    return forked

supervisor = StandbySupervisor(strategy, run, ["said"], [kept], start)
try:
    sys.stdout.buffer.write(supervisor.report())
except LaunchError as error:
    sys.exit(print(error))
sys.stdout.flush()
sys.stdin.readline()
supervisor.send(b"go")
"""


class Server:
    """A server that forks a supervisor; `held` is read to its end once both have ended."""

    def __init__(self, folder, strategy, **environ):
        (folder / "strategy.py").write_text(STRATEGY)
        self.held, given = os.pipe()
        words = [sys.executable, "-c", SERVER, str(folder), f"strategy:{strategy}", str(given)]
        environ |= {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(words, env=environ, pass_fds=[given], **pipes)
        os.close(given)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()
        os.close(self.held)

    def line(self):
        return self.process.stdout.readline()

    def ended(self):
        """Have the supervisor begin, and wait until it and the server have ended."""
        self.process.communicate(b"\n")
        return os.read(self.held, 1) == b""


def read(pid, name):
    return Path(f"/proc/{pid}/{name}").read_bytes()


def test_it_is_shown_as_its_command_and_has_nothing_of_the_server(tmp_path):
    with Server(tmp_path, "Told", LONG="-" * 500) as server:
        assert server.line() == b"True\n"
        said, own = json.loads(server.line()), server.process.pid
        assert tagged(str(tmp_path), os.getuid()) == [said["pid"]]
        assert f" -P -m launcher.supervisor strategy:Told {tmp_path} said ".encode() in read(said["pid"], "cmdline")
        assert read(said["pid"], "comm") == b"launch-super\n"
        assert (said["env"]["LAUNCH_RUN_DIR"], said["env"]["OF_THE_SERVER"]) == (str(tmp_path), "x")
        assert "SLURM_JOB_ID" not in said["env"]
        assert said["session"] not in (os.getsid(0), own) and said["parent"] != own and said["folder"] == "/"
        kept = os.readlink(f"/proc/self/fd/{server.held}")
        places = sorted(place.split(":")[0] for place in said["fds"].values() if place != kept)
        assert kept in said["fds"].values() and places[:2] == ["/dev/null", "/dev/null"] and "deleted" in places[2]
        assert places[3:] == ["pipe", "pipe"], "to its starter"
        assert not {os.readlink(f"/proc/{own}/fd/{fd}") for fd in (0, 1, 2)} & {*said["fds"].values()}
        assert server.ended()
    assert (tmp_path / "said").read_bytes() == b"go"


@pytest.mark.parametrize("hindrance", [{"DEEP": "8"}, {"THREAD": "yes"}], ids=["a long path", "a thread"])
def test_where_it_cannot_be_forked_it_is_executed(tmp_path, hindrance):
    with Server(tmp_path, "Told", **hindrance) as server:
        assert server.line() == b"False\n"
        said = json.loads(server.line())
        assert tagged(said["env"]["LAUNCH_RUN_DIR"], os.getuid()) == [said["pid"]]
        assert server.ended()


def test_why_it_did_not_start_is_reported(tmp_path):
    with Server(tmp_path, "Fails", LONG="-" * 500) as server:
        assert server.line() == b"True\n"
        assert b"ValueError: it is broken" in server.process.stdout.read()
