"""The host on a rank's node, with a process that stands for a rank: what it runs beside it and what it reads of it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from launcher.errors import LaunchError, Refused
from launcher.node.inside.visit import Visit, host_here
from launcher.node.inside.visit_messages import (
    AskStacks,
    CommandEnded,
    Given,
    InputEnds,
    KillHere,
    Output,
    Resized,
    RunCommand,
    Signalled,
    Window,
)
from launcher.run.durable import make_dir, write_record
from launcher.run.identity import alive, process_id
from launcher.run.layout import RunDir
from launcher.run.processes import TAG
from launcher.run.records import RankProcess

BOUND_S = 150.0
WINDOW = Window(24, 80, "xterm")


class FakeRank:
    """A process with a rank's environment, and the record that its agent would have left."""

    def __init__(self, root, argv):
        self.run = RunDir(root / "job-abcd")
        self.attempt = self.run.attempt(1)
        make_dir(self.attempt.node(0))
        make_dir(self.run.logs)
        self.log = self.run.logs / "rank.log"
        self.folder = root / "a folder"
        self.folder.mkdir()
        environment = {**os.environ, TAG: str(self.run.path), "THEIRS": "ü\nand more", "RANK": "of the zygote"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, env=environment, cwd=self.folder, stdout=log, stderr=log)
        own = {"RANK": "3", "LAUNCH_PROGRESS": "/a/fifo", "TORCHELASTIC_ERROR_FILE": "/a/file"}
        record = RankProcess(3, 1, process_id(self.process.pid), own, "logs/rank.log")
        write_record(self.attempt.rank_process(0, 0), record)

    def host(self):
        return Visit(host_here(self.run, self.attempt, 0, os.environ))

    def said(self, *argv, **more):
        """Return stdout, stderr and exit code."""
        with self.host() as visit:
            visit.ask(RunCommand(more.pop("rank", 3), tuple(map(os.fsencode, argv)), more.pop("window", None)))
            for word in more.pop("then", ()):
                visit.send(word)
            return to_the_end(visit)


def to_the_end(visit, until=None):
    out, err = bytearray(), bytearray()
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        for word in visit.received():
            match word:
                case CommandEnded(code=code):
                    return bytes(out), bytes(err), code
                case Output():
                    (err if word.err else out).extend(word.data)
        if until is not None and until in out:
            return bytes(out), bytes(err), None
        time.sleep(0.01)
    raise AssertionError(f"never ended: {out} {err}")


@pytest.fixture
def rank(tmp_path):
    rank = FakeRank(tmp_path, ["sleep", "600"])
    yield rank
    rank.process.kill()
    rank.process.wait()


def test_a_command_has_the_environment_and_the_folder_of_the_rank(rank):
    script = "import os; print([os.environ.get(n) for n in ('THEIRS', 'RANK', 'LAUNCH_PROGRESS')], os.getcwd())"
    out, err, code = rank.said(sys.executable, "-c", script)
    assert (out.decode(), err, code) == (f"{['ü' + chr(10) + 'and more', '3', None]} {rank.folder}\n", b"", 0)


def test_words_arrive_as_they_are(rank):
    words = ["a b", "'", "$HOME", "; touch canary", "\udcff", "", "-n", "new\nline"]
    out, _, code = rank.said(sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *words)
    assert (out.decode(), code) == (f"{words!a}\n", 0)


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 7", 7), ("kill -TERM $$", 143), ("echo gone >&2; exit 255", 255), ("sleep 600 & exit 3", 3)],
)
def test_how_it_ended_is_told(rank, command, code):
    assert rank.said("sh", "-c", command)[2] == code


def test_what_cannot_be_run(rank):
    out, err, code = rank.said("no-such-program")
    assert (out, err, code) == (b"", b"launch: cannot run no-such-program: no such file or directory\n", 127)
    assert rank.said(str(rank.folder))[2] == 126


def test_both_ways_and_much(rank):
    data = os.urandom(300_000) * 10
    pieces = [Given(data[at : at + 30_000]) for at in range(0, len(data), 30_000)]
    out, err, code = rank.said("sh", "-c", "cat; echo done >&2", then=[*pieces, InputEnds()])
    assert (out == data, err, code) == (True, b"done\n", 0)


def test_a_signal_goes_to_the_command_and_what_it_has_started(rank):
    with rank.host() as visit:
        started = b"sh -c 'echo ready; exec sleep 600'"  # is there when it says so: who waits for it hears after it
        visit.ask(RunCommand(3, (b"sh", b"-c", b"trap 'echo heard; exit 5' INT; %s; exit 6" % started)))
        to_the_end(visit, until=b"ready")
        visit.send(Signalled(signal.SIGINT))
        assert to_the_end(visit) == (b"heard\n", b"", 5)


def test_a_terminal_of_its_own(rank):
    """Its size, a change of it, and a Ctrl-C that is typed."""
    with rank.host() as visit:
        visit.ask(RunCommand(3, (b"sh", b"-c", b"stty size; echo $TERM; read line; stty size; exec sleep 600"), WINDOW))
        assert to_the_end(visit, until=b"xterm\r\n")[0] == b"24 80\r\nxterm\r\n"
        visit.send(Resized(Window(50, 132)))
        visit.send(Given(b"\n"))
        assert b"50 132" in to_the_end(visit, until=b"50 132\r\n")[0]
        visit.send(Given(b"\x03"))
        assert to_the_end(visit)[2] == 130


def test_without_a_command_it_is_a_shell(rank):
    out, _, code = rank.said(then=[Given(b"echo $RANK; pwd; exit 4\n"), InputEnds()])
    assert (out.decode(), code) == (f"3\n{rank.folder}\n", 4)


@pytest.mark.parametrize("window", [None, WINDOW])
def test_it_ends_with_the_visit(rank, window):
    visit = rank.host()
    visit.ask(RunCommand(3, (b"sh", b"-c", b"echo $$.; exec sleep 600"), window))
    pid = process_id(int(to_the_end(visit, until=b".")[0].partition(b".")[0]))
    visit.close()
    deadline = time.monotonic() + BOUND_S
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_that_is_not_there(rank):
    with pytest.raises(Refused, match="rank 4 does not run on node 0"):
        refused(rank.said, "true", rank=4)
    rank.process.kill()
    rank.process.wait()
    with pytest.raises(Refused, match="rank 3 does not run on node 0"):
        refused(rank.said, "true")


def refused(work, *words, **more):
    """Check that an error sent by the host keeps its exit code, and no class."""
    try:
        work(*words, **more)
    except LaunchError as error:
        assert error.exit_code == Refused.exit_code
        raise Refused(*error.lines) from error


def test_what_is_no_python_is_never_signalled(rank):
    """It would end of it."""
    with rank.host() as visit:
        [told] = visit.stacks(AskStacks())
    assert (told.rank, told.lines) == (3, ())
    assert told.problem.startswith("answers with no Python stacks")
    assert rank.process.poll() is None


TELLS = """
import faulthandler, signal, sys, threading, time
faulthandler.register(signal.SIGRTMIN + 8, file=2, all_threads=True, chain=False)
def waits(depth):
    if depth:
        waits(depth - 1)
    else:
        print("ready", flush=True)
        time.sleep(600)
threading.Thread(target=waits, args=(30,), daemon=True).start()
waits(3)
"""


def test_stacks_are_read_whole_from_the_log(tmp_path):
    rank = FakeRank(tmp_path, [sys.executable, "-c", TELLS])
    try:
        deadline = time.monotonic() + BOUND_S
        while rank.log.read_bytes().count(b"ready") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with rank.host() as visit:
            [told] = visit.stacks(AskStacks(frozenset({3})))
        assert told.problem == ""
        assert sum(line.endswith("in waits") for line in told.lines) == 31 + 4
        assert told.lines[-1].endswith("in <module>")
        with rank.host() as visit:
            assert visit.stacks(AskStacks(frozenset({0}))) == []
        rank.process.send_signal(signal.SIGSTOP)
        with rank.host() as visit:
            assert visit.stacks(AskStacks())[0].problem.startswith("is stopped")
    finally:
        rank.process.kill()
        rank.process.wait()


def test_a_rank_is_killed_and_nobody_else(tmp_path):
    rank = FakeRank(tmp_path, ["sleep", "600"])
    other = subprocess.Popen(["sleep", "600"])
    try:
        with rank.host() as visit, pytest.raises(LaunchError, match="rank 2 does not run on node 0"):
            visit.kill(KillHere(2))
        assert rank.process.poll() is None
        with rank.host() as visit:
            assert visit.kill(KillHere(3)) == 1
        assert rank.process.wait(BOUND_S) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_all_of_a_run_is_killed_as_by_a_power_cut(tmp_path):
    """Whatever carries its tag: who asked, and what is of another run, stay."""
    rank = FakeRank(tmp_path, ["sleep", "600"])
    tagged = {**os.environ, TAG: str(rank.run.path)}
    child = subprocess.Popen(["sleep", "600"], env=tagged, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, TAG: f"{rank.run.path}x"})
    try:
        with rank.host() as visit:
            assert visit.kill(KillHere()) == 2
        assert (rank.process.wait(BOUND_S), child.wait(BOUND_S)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
