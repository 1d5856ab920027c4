"""zygote.py as the agent uses it: by path, in processes of its own, against plain `python` as the oracle."""

import ast
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import launcher.node
from launcher.node import zygote
from launcher.node.ranks.ports import HeldPort
from launcher.run.processes import become_subreaper

ZYGOTE = Path(launcher.node.__file__).with_name("zygote.py")
SCRIPTS = Path(__file__).with_name("scripts")
TORCH = ("torch", "torch._dynamo", "torch.distributed", "torch.utils.data")
DUMP_SIGNAL = signal.SIGRTMIN + 8
ANSWER_S = 150.0
PR_SET_CHILD_SUBREAPER = 36


def environment(**more):
    base = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    ours = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(SCRIPTS / "modules")}
    return {**base, **ours, "OF_THE_NODE": "1", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", **more}


class Agent:
    """The agent's end of one zygote."""

    def __init__(self, folder, preload=(), python=sys.executable, zygote=ZYGOTE, **more):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "zygote.log"
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(ANSWER_S)
        with theirs, self.log.open("ab") as log:
            argv = [python, str(zygote), "serve", str(theirs.fileno()), str(os.getpid())]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            fds = {"pass_fds": [theirs.fileno()], "start_new_session": True}
            self.process = subprocess.Popen(argv, **streams, **fds, cwd=folder, env=environment(**more))
        self._lines = self.socket.makefile("rb")
        self._heard = []
        self._forks = 0
        self.say(op="preload", modules=list(preload))

    def say(self, **words):
        self.socket.sendall(json.dumps(words).encode() + b"\n")

    def hear(self, op, **match):
        """The next line with this op and these values; what else is said meanwhile is kept for later."""
        wanted = {"op": op, **match}
        while True:
            for words in self._heard:
                if wanted.items() <= words.items():
                    self._heard.remove(words)
                    return words
            line = self._lines.readline()
            assert line, f"the zygote is gone: {self.log.read_text()}"
            self._heard.append(json.loads(line))

    def ask(self, order):
        self._forks += 1
        self.say(op="fork", id=self._forks, order=order)
        return self._forks

    def fork(self, order):
        return self.hear("forked", id=self.ask(order))["pid"]

    def wait(self, pid):
        """Return the wait status of a process that is a child of this one, or about to be."""
        return self.wait4(pid)[1]

    def wait4(self, pid):
        while True:
            try:
                return os.wait4(pid, 0)
            except ChildProcessError:
                assert Path(f"/proc/{pid}").exists(), "it was nobody's"
                time.sleep(0.001)

    def close(self):
        self._lines.close()
        self.socket.close()
        return self.process.wait(ANSWER_S)


@pytest.fixture(scope="module", autouse=True)
def subreaper():
    """Make this process a subreaper, as an agent is, so that ranks become its children."""
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def start(tmp_path):
    """Starts zygotes and ends them."""
    agents = []

    def start_one(*args, **more):
        agents.append(Agent(tmp_path / f"zygote-{len(agents)}", *args, **more))
        return agents[-1]

    yield start_one
    for agent in agents:
        agent.close()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the scripts: as many as there are runs may write beside them."""
    folder = tmp_path_factory.mktemp("runs") / "it's a project"
    shutil.copytree(SCRIPTS / "project", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bad_syntax.py").write_text("def f(:\n    pass\n")
    (folder / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nprint('\xe9', ascii('\xe9'))\n")
    (folder / "link.py").symlink_to(folder / "folder" / "siblings.py")
    return folder


@pytest.fixture(scope="module")
def plain_zygote(tmp_path_factory):
    agent = Agent(tmp_path_factory.mktemp("plain"), ["multiprocessing.pool", "no_such_module", "code", "profile"])
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def torch_zygote(tmp_path_factory):
    agent = Agent(tmp_path_factory.mktemp("torch"), TORCH)
    agent.hear("ready")
    yield agent
    agent.close()


def order(project, target, *args, kind="script", log, **more):
    path = str(project / target) if kind == "script" else target
    words = {"kind": kind, "target": path, "args": list(args), "cwd": str(project), "log": str(log)}
    return {"env": {"OF_THE_RANK": "yes"}, "unset": ["OF_THE_NODE"], "dump_signal": int(DUMP_SIGNAL), **words, **more}


def exit_code(status):
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def by_python(words, _zygote):
    start = {"script": [], "module": ["-m"]}[words["kind"]]
    argv = [sys.executable, *start, words["target"], *words["args"]]
    env = {**environment(), **words["env"]}
    for name in words["unset"]:
        env.pop(name, None)
    with open(words["log"], "wb") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return subprocess.run(argv, cwd=words["cwd"], env=env, **streams).returncode


def by_fork(words, zygote):
    return exit_code(zygote.wait(zygote.fork(words)))


def start_by_run(words):
    read, write = os.pipe()
    argv = [sys.executable, str(ZYGOTE), "run", str(read), str(os.getpid())]
    child = subprocess.Popen(argv, pass_fds=[read], env=environment(), start_new_session=True)
    os.close(read)
    with open(write, "wb") as pipe:
        pipe.write(json.dumps(words).encode() + b"\n")
    return child


def by_run(words, _zygote):
    return start_by_run(words).wait()


# (kind, target, arguments, exit code)
CASES = [
    ("script", "names.py", ["a b", "", "--x=é\udcff", "'; echo"], 0),
    ("script", "arguments.py", ["--steps", "3"], 0),
    ("script", "arguments.py", ["--steps", "x"], 2),
    ("script", "leaves.py", ["none"], 0),
    ("script", "leaves.py", ["number"], 7),
    ("script", "leaves.py", ["text"], 1),
    ("script", "leaves.py", ["object"], 1),
    ("script", "leaves.py", ["at once"], 9),
    ("script", "leaves.py", ["signal"], -signal.SIGSEGV),
    ("script", "leaves.py", ["terminated"], -signal.SIGTERM),
    ("script", "leaves.py", ["interrupted"], -signal.SIGINT),
    ("script", "leaves.py", ["pipe"], 1),
    ("script", "raises.py", ["plain"], 1),
    ("script", "raises.py", ["hook"], 1),
    ("script", "raises.py", ["bad hook"], 5),
    ("script", "raises.py", ["import"], 1),
    ("script", "raises.py", ["group"], 1),
    ("script", "bad_syntax.py", [], 1),
    ("script", "latin.py", [], 0),
    ("script", "missing.py", [], 2),
    ("script", "pickles.py", [], 0),
    ("script", "pools.py", ["fork"], 0),
    ("script", "pools.py", ["spawn"], 0),
    ("script", "pools.py", ["forkserver"], 0),
    ("script", "ends.py", [], 0),
    ("script", "forks.py", [], 0),
    *(("script", "leftovers.py", [how], 0) for how in ("returns", "None", "daemon", "forks", "stream")),
    ("script", "leftovers.py", ["4"], 4),
    ("script", "leftovers.py", ["-1"], 255),
    ("script", "leftovers.py", ["True"], 1),
    ("script", "leftovers.py", ["words"], 1),
    ("script", "leftovers.py", ["huge"], 255),
    ("script", "leftovers.py", ["raises"], 1),
    ("script", "leftovers.py", ["broken stream"], 120),
    ("module", "leftovers", ["returns"], 0),
    ("script", "warns.py", [], 0),
    ("script", "siblings.py", [], 0),
    ("script", "folder/siblings.py", [], 0),
    ("script", "link.py", [], 0),
    ("script", "shadows/main.py", [], 0),
    ("module", "shadows.main", [], 1),
    ("module", "package", ["a", "b"], 0),
    ("module", "package.pools", [], 0),
    ("module", "package.inner.deep", [], 1),
    ("module", "package.missing", [], 1),
    ("module", "missing", [], 1),
]


@pytest.mark.parametrize(("kind", "target", "args", "code"), CASES, ids=[f"{c[1]} {' '.join(c[2])}" for c in CASES])
def test_a_program_cannot_tell_how_it_was_started(kind, target, args, code, project, plain_zygote, tmp_path):
    outcomes = {}
    for way in (by_python, by_fork, by_run):
        for path in project.glob("left*.txt"):
            path.unlink()
        log = tmp_path / f"{way.__name__}.log"
        ended = way(order(project, target, *args, kind=kind, log=log), plain_zygote)
        said = log.read_text().partition("Fatal Python error: ")[0]  # on purpose ours alone write a stack at a crash
        left = [path.read_text() for path in sorted(project.glob("left*.txt"))]
        outcomes[way.__name__] = (ended, left, re.sub(r"(pid |0x)[0-9a-f]+", r"\1N", said))
    assert outcomes["by_python"][0] == code, outcomes["by_python"][2]
    assert outcomes["by_fork"] == outcomes["by_python"]
    assert outcomes["by_run"] == outcomes["by_python"]


@pytest.mark.parametrize(("how", "apart"), [("returns", 0), ("4", 0), ("daemon", 1), ("words", 1), ("raises", 1)])
def test_what_the_zygote_has_imported_is_not_taken_apart_at_a_plain_end(how, apart, start, project, tmp_path):
    """With torch that takes seconds of CPU time. Where the end is not plain, it is the interpreter's."""
    agent = start(["mourned"])
    by_fork(order(project, "leftovers.py", how, log=tmp_path / "log"), agent)
    assert (tmp_path / "log").read_text().count("taken apart") == apart
    assert "freed second" in (tmp_path / "log").read_text()


def test_where_python_puts_no_folder_on_the_path_neither_do_we(start, project, tmp_path):
    words = order(project, "siblings.py", log=tmp_path / "log", env={"PYTHONSAFEPATH": "1"})
    assert by_python(words, None) == 1
    expected = (tmp_path / "log").read_text()
    (tmp_path / "log").unlink()
    assert by_fork(words, start(PYTHONSAFEPATH="1")) == 1
    assert (tmp_path / "log").read_text() == expected


def test_deep_recursion_shows_the_users_frames_alone(project, plain_zygote, tmp_path):
    words = order(project, "raises.py", "deep", log=tmp_path / "log")
    assert by_fork(words, plain_zygote) == 1
    text = (tmp_path / "log").read_text()
    assert "RecursionError" in text and "zygote" not in text


def test_one_that_cannot_be_imported_is_told_and_the_rest_goes_on(start):
    agent = start(["json", "no_such_module", "no_such.inner", "needy", "broken", "leaves", "pickle"])
    ready = agent.hear("ready")
    assert ready["loaded"] == ["json", "pickle"]
    assert ready["failed"] == [
        ["no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"],
        ["no_such.inner", "ModuleNotFoundError: No module named 'no_such'"],
        ["needy", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"],
        ["broken", "RuntimeError: broken at import"],
        ["leaves", "SystemExit: left at import"],
    ]
    assert 'raise RuntimeError("broken at import")' in agent.log.read_text()


def test_forks_asked_for_during_the_imports_follow_them(start, project, tmp_path):
    agent = start(["asyncio"])
    asked = agent.ask(order(project, "siblings.py", log=tmp_path / "log"))
    assert [json.loads(agent._lines.readline())["op"] for _ in range(2)] == ["began", "ready"]
    pid = agent.hear("forked", id=asked)["pid"]
    assert agent.wait(pid) == 0


def test_a_thread_of_a_preloaded_module_forbids_forks(start, project, tmp_path):
    agent = start(["json", "noisy"])
    asked = agent.ask(order(project, "siblings.py", log=tmp_path / "log"))
    reason = agent.hear("refused", id=asked)["reason"]
    assert reason == "2 threads where one was expected (ticker), started by importing noisy"


def test_an_open_device_forbids_forks(tmp_path, project, start):
    to_which_null_is_a_gpu = tmp_path / "zygote.py"
    to_which_null_is_a_gpu.write_text(ZYGOTE.read_text().replace('"/dev/nvidia"', '"/dev/null"'))
    words = order(project, "siblings.py", log=tmp_path / "log")
    agent = start(["device"], zygote=to_which_null_is_a_gpu)
    assert agent.hear("refused", id=agent.ask(words))["reason"] == "the preloaded modules have opened /dev/null"
    agent = start(["json"], zygote=to_which_null_is_a_gpu)
    assert by_fork(words, agent) == 0


GARBAGE = [
    b"\n",
    b"\xff\xfe\x00\n",
    b"[" * 100_000 + b"\n",
    b"null\n",
    b'"fork"\n',
    b"{}\n",
    b'{"op": ["fork"]}\n',
    b'{"op": "preload"}\n',
    b'{"op": "preload", "modules": 5}\n',
    b'{"op": "end"}\n',
    b"x" * ((1 << 22) + (1 << 17)) + b"\n",
]
NO_ORDERS: list = [None, 5, [], {}, {"kind": "script"}]
WRONG_VALUES = [
    {"args": 5},
    {"args": [5]},
    {"env": []},
    {"env": {"A": 1}},
    {"target": None},
    {"kind": "x"},
    {"more": 1},
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=[repr(line[:24]) for line in GARBAGE])
def test_garbage_is_answered_and_does_no_harm(garbage, plain_zygote, project, tmp_path):
    plain_zygote.socket.sendall(garbage)
    assert plain_zygote.hear("error")["reason"]
    assert by_fork(order(project, "siblings.py", log=tmp_path / "log"), plain_zygote) == 0


@pytest.mark.parametrize("words", NO_ORDERS, ids=repr)
def test_what_is_no_order_is_refused(words, plain_zygote):
    assert plain_zygote.hear("refused", id=plain_zygote.ask(words))["reason"].startswith("no order: ")


@pytest.mark.parametrize("change", WRONG_VALUES, ids=repr)
def test_an_order_with_a_wrong_value_is_refused(change, plain_zygote, project, tmp_path):
    words = order(project, "siblings.py", log=tmp_path / "log") | change
    assert plain_zygote.hear("refused", id=plain_zygote.ask(words))["reason"].startswith("no order: ")


@pytest.mark.parametrize("way", [by_fork, by_run])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cwd": "/no/such/folder"}, "No such file"),
        ({"env": {"A": "nul\0"}}, "null byte"),
        ({"env": {"A=": ""}}, "illegal"),
    ],
    ids=["cwd", "value", "name"],
)
def test_a_rank_that_cannot_start_says_why_in_its_log(way, change, complaint, plain_zygote, project, tmp_path):
    words = order(project, "siblings.py", log=tmp_path / "log") | change
    assert way(words, plain_zygote) == 125
    text = (tmp_path / "log").read_text()
    assert text.startswith("launch: cannot start this rank: ") and complaint in text


def test_a_log_that_is_a_link_is_not_written_through(project, plain_zygote, tmp_path):
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    assert by_fork(order(project, "siblings.py", log=tmp_path / "log"), plain_zygote) == 125
    assert not (tmp_path / "elsewhere").exists()
    assert "Too many levels of symbolic links" in plain_zygote.log.read_text()


@pytest.mark.parametrize("way", [by_fork, by_run])
def test_a_rank_has_nothing_of_the_zygote(way, project, plain_zygote, tmp_path):
    way(order(project, "fds.py", log=tmp_path / "log"), plain_zygote)
    first, second, third = (tmp_path / "log").read_text().splitlines()
    assert first == "['0', '1', '2'] set()"
    handlers = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL, signal.SIG_DFL)
    assert second == repr(list(handlers))
    assert third == "-1 True 0o100600"


@pytest.mark.parametrize("way", [by_fork, by_run])
def test_lines_are_written_whole_and_at_once(way, plain_zygote, tmp_path):
    (tmp_path / "here.py").write_text(
        "import os, sys\n"
        "read, write = os.pipe()\n"
        "os.dup2(write, 1)\n"
        "print('a', 'b')\n"
        "print(os.read(read, 99), file=sys.stderr)\n"
    )
    assert way(order(tmp_path, "here.py", log=tmp_path / "log"), plain_zygote) == 0
    assert (tmp_path / "log").read_text() == "b'a b\\n'\n"


def test_the_log_is_appended_to(project, plain_zygote, tmp_path):
    (tmp_path / "log").write_text("before\n")
    by_fork(order(project, "siblings.py", log=tmp_path / "log"), plain_zygote)
    assert (tmp_path / "log").read_text().startswith("before\nfrom a sibling")


@pytest.mark.parametrize("way", [by_fork, by_run])
def test_a_command_is_executed_as_it_is(way, project, plain_zygote, tmp_path):
    text = 'echo "$OF_THE_RANK" "$@" $(($$ == $(cut -d" " -f5 /proc/self/stat))); trap; yes | head -n 1; exit 3'
    words = order(project, "/bin/sh", "-c", text, "sh", "a b", "'", kind="command", log=tmp_path / "log")
    assert way(words, plain_zygote) == 3
    assert (tmp_path / "log").read_text() == "yes a b ' 1\ny\n"


@pytest.mark.parametrize(("target", "code"), [("no-such-command", 127), ("/etc/hostname", 126)])
def test_a_command_that_cannot_be_run(target, code, project, plain_zygote, tmp_path):
    assert by_run(order(project, target, kind="command", log=tmp_path / "log"), plain_zygote) == code
    assert f"launch: cannot run {target!r}: " in (tmp_path / "log").read_text()


def wait_for(path, text):
    """Wait until the file contains this text."""
    deadline = time.monotonic() + ANSWER_S
    while text not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline, f"{text!r} never came"
        time.sleep(0.002)


def gone(*pids):
    """Wait until none of these processes lives."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([handle], [], [], ANSWER_S)
        os.close(handle)
        assert ended, f"{pid} lives"


@pytest.mark.parametrize("way", ["fork", "run"])
def test_a_script_saves_at_sigterm(way, project, plain_zygote, tmp_path):
    words = order(project, "saves.py", log=tmp_path / "log")
    child = start_by_run(words) if way == "run" else None
    pid = child.pid if child else plain_zygote.fork(words)
    wait_for(tmp_path / "log", "ready\n")
    os.kill(pid, signal.SIGTERM)
    assert (child.wait() if child else exit_code(plain_zygote.wait(pid))) == 0
    assert (tmp_path / "log").read_text() == "ready\nsaved\n"


def test_a_signal_right_after_the_birth_is_not_lost(project, plain_zygote, tmp_path):
    for number in range(20):
        pid = plain_zygote.fork(order(project, "idles.py", log=tmp_path / str(number)))
        os.kill(pid, signal.SIGTERM)
        assert exit_code(plain_zygote.wait(pid)) == -signal.SIGTERM


def test_the_dump_signal_writes_all_stacks_into_the_log(project, plain_zygote, tmp_path):
    pid = plain_zygote.fork(order(project, "idles.py", log=tmp_path / "log"))
    wait_for(tmp_path / "log", "up\n")
    os.kill(pid, DUMP_SIGNAL)
    wait_for(tmp_path / "log", "idles.py")
    os.kill(pid, signal.SIGKILL)
    assert exit_code(plain_zygote.wait(pid)) == -signal.SIGKILL
    assert "most recent call first" in (tmp_path / "log").read_text()


@pytest.fixture
def fifo(tmp_path):
    """A progress FIFO with somebody listening, and what came out of it."""
    path = tmp_path / "progress"
    os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def heard():
        try:
            lines = os.read(fd, 1 << 16).splitlines(keepends=True)
        except BlockingIOError:
            return []
        assert all(len(line) <= 4000 and line.endswith(b"\n") for line in lines)
        return [json.loads(line) for line in lines]

    yield str(path), heard
    os.close(fd)


@pytest.fixture
def exceptions(fifo):
    """The same, of exceptions alone."""
    path, heard = fifo
    return path, lambda: [report["exception"] for report in heard() if "exception" in report]


@pytest.mark.parametrize("way", [by_fork, by_run])
def test_a_rank_has_the_umask_of_its_order(way, plain_zygote, tmp_path):
    source = "import os\nopen('made', 'w').close()\nprint(oct(os.stat('made').st_mode))"
    (tmp_path / "makes.py").write_text(source)
    assert way(order(tmp_path, "makes.py", log=tmp_path / "log", umask=0o027), plain_zygote) == 0
    assert (tmp_path / "log").read_text() == "0o100640\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600, "the log is the launcher's own"


@pytest.mark.parametrize("way", [by_fork, by_run])
@pytest.mark.parametrize(("code", "told"), [("2", True), ("'no data'", True), ("0", False)])
def test_a_script_that_calls_exit_is_told_apart_from_one_that_is_ended(way, code, told, plain_zygote, tmp_path, fifo):
    (tmp_path / "exits.py").write_text(f"import sys\nsys.exit({code})")
    way(order(tmp_path, "exits.py", log=tmp_path / "log", progress=fifo[0]), plain_zygote)
    assert fifo[1]() == ([{"called_exit": True}] if told else [])


@pytest.mark.parametrize("way", [by_fork, by_run])
def test_a_rank_that_cannot_start_reports_why(way, plain_zygote, project, tmp_path, fifo):
    words = order(project, "siblings.py", log=tmp_path / "no" / "log", progress=fifo[0])
    assert way(words, plain_zygote) == 125
    (report,) = fifo[1]()
    assert report["start_failed"].startswith("FileNotFoundError: [Errno 2]")


@pytest.mark.parametrize("way", [by_fork, by_run])
def test_an_uncaught_exception_is_reported(way, project, plain_zygote, tmp_path, exceptions):
    way(order(project, "raises.py", "plain", log=tmp_path / "log", progress=exceptions[0]), plain_zygote)
    number = int(re.search(r"line (\d+), in step\n +raise", (tmp_path / "log").read_text())[1])
    message = "bad shape (3, 4)\nsecond line"
    error = {"type": "ShapeError", "message": message, "line": "ShapeError: bad shape (3, 4)"}
    raised = [{"line": line, "module": "__main__"} for line in ("ShapeError: bad shape (3, 4)", "KeyError: (3, 4)")]
    assert exceptions[1]() == [{**error, "where": f"raises.py:{number} in step", "raised": raised}]


@pytest.mark.parametrize(
    ("source", "line", "where"),
    [
        ("import json\njson.loads('x')\n", "json.decoder.JSONDecodeError: Expecting value", "here.py:2 in <module>"),
        ("def f(:\n", "SyntaxError: invalid syntax (here.py, line 1)", "here.py:1 in <module>"),
        ("exec('1/0')", "ZeroDivisionError: division by zero", "here.py:1 in <module>"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "here.py:1 in <module>"),
        ("raise ValueError('é\\ud800' * 10000)", "ValueError: é\ud800é\ud800", "here.py:1 in <module>"),
        (
            "class E(Exception):\n  def __str__(self): 1/0\nraise E",
            "E: <exception str() failed>",
            "here.py:3 in <module>",
        ),
    ],
    ids=["library", "syntax", "exec", "interrupt", "long", "no text"],
)
def test_where_an_exception_came_from(source, line, where, plain_zygote, tmp_path, exceptions):
    (tmp_path / "here.py").write_text(source)
    by_fork(order(tmp_path, "here.py", log=tmp_path / "log", progress=exceptions[0]), plain_zygote)
    (report,) = exceptions[1]()
    assert report["line"].startswith(line) and report["where"] == where


@pytest.mark.parametrize(("names", "reported"), [("2", 2), ("-1", None), ("1 << 70", None), ("'x'", None)])
def test_the_rank_that_an_exception_names_is_reported(names, reported, plain_zygote, tmp_path, exceptions):
    (tmp_path / "here.py").write_text(f"class E(Exception):\n  failed_rank = {names}\nraise E")
    by_fork(order(tmp_path, "here.py", log=tmp_path / "log", progress=exceptions[0]), plain_zygote)
    (report,) = exceptions[1]()
    assert report["line"] == "E" and report.get("failed_rank") == reported


FAILS = "def fail(x):\n  import json\n  json.loads('x')\n"
IN_A_POOL = "with {module}.{pool}(1) as pool:\n  list(pool.map(fail, [1]))\n"
FUTURES = f"import concurrent.futures as module\n{FAILS}{IN_A_POOL.format(module='module', pool='ProcessPoolExecutor')}"
POOL = f"import multiprocessing\n{FAILS}{IN_A_POOL.format(module='multiprocessing', pool='Pool')}"
SPAWN = f"import torch.multiprocessing as mp\n{FAILS}mp.start_processes(fail, nprocs=1, start_method='fork')\n"
LOADER = """\
from torch.utils.data import DataLoader
class Set(list):
  def __getitem__(self, index):
    raise KeyError('shard')
next(iter(DataLoader(Set([1]), num_workers=1)))
"""
HANDLED = f"""\
{FAILS}
import multiprocessing
try:
  multiprocessing.Pool(1).map(fail, [1])
except ValueError as error:
  raise OSError('mine') from error
"""
NO_JSON = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"


@pytest.mark.parametrize(
    ("source", "line", "where"),
    [
        (FUTURES, NO_JSON, "here.py:4 in fail"),
        (POOL, NO_JSON, "here.py:4 in fail"),
        (SPAWN, NO_JSON, "here.py:4 in fail"),
        (LOADER, "KeyError: 'shard'", "here.py:4 in __getitem__"),
        (HANDLED, "OSError: mine", "here.py:9 in <module>"),
    ],
    ids=["futures", "pool", "torch spawn", "loader", "handled"],
)  # fmt: skip
def test_the_exception_of_a_worker_is_the_cause(source, line, where, plain_zygote, tmp_path, exceptions):
    (tmp_path / "here.py").write_text(source)
    by_fork(order(tmp_path, "here.py", log=tmp_path / "log", progress=exceptions[0]), plain_zygote)
    (report,) = exceptions[1]()
    assert (report["line"], report["where"]) == (line, where), (tmp_path / "log").read_text()
    assert report["raised"][0]["line"] == line


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["/p/code/train.py", "/elsewhere/theirs.py", "/v/lib/python3.11/site-packages/torch/x.py"], "train.py:0 in f"),
        (["/elsewhere/theirs.py", "/v/lib/python3.11/site-packages/torch/x.py"], "/elsewhere/theirs.py:0 in f"),
        ([json.__file__, "/usr/lib/python3/dist-packages/x.py"], "/usr/lib/python3/dist-packages/x.py:1 in f"),
        ([], ":0 in "),
    ],
)
def test_a_frame_of_the_project_is_named_else_one_of_no_library(files, named):
    frames = [(file, number, "f") for number, file in enumerate(files)]
    assert zygote.where(frames, zygote.Order("script", "train.py", (), "/p/code", {}, "/log")) == named


def test_the_shells_word_for_the_folder_is_the_folder(project, plain_zygote, tmp_path):
    (tmp_path / "here.py").write_text("import os\nprint(os.environ['PWD'] == os.getcwd(), end='')\n")
    by_fork(order(tmp_path, "here.py", log=tmp_path / "log"), plain_zygote)
    assert (tmp_path / "log").read_text() == "True"


CALLS = "import socket\ndef call():\n  socket.create_connection(('127.0.0.1', 1), 1)\n"


@pytest.mark.parametrize(
    ("source", "raised"),
    [
        (f"{CALLS}call()", [("ConnectionRefusedError", "__main__")]),
        (
            f"{CALLS}try:\n  call()\nexcept OSError as error:\n  raise ValueError('no way') from error",
            [("ValueError: no way", "__main__"), ("ConnectionRefusedError", "__main__")],
        ),
        (f"{CALLS}try:\n  call()\nexcept OSError:\n  raise ValueError('mine') from None", [("ValueError", "__main__")]),
        ("import json\njson.loads('x')\n", [("json.decoder.JSONDecodeError", "__main__")]),
        ("import theirs\ntheirs.fail()", [("RuntimeError: x", "theirs")]),
    ],
    ids=["library", "chain", "cut chain", "json", "module"],
)
def test_which_module_raised_what(source, raised, plain_zygote, tmp_path, exceptions):
    (tmp_path / "theirs.py").write_text("def fail():\n  raise RuntimeError('x')\n")
    (tmp_path / "here.py").write_text(source)
    by_fork(order(tmp_path, "here.py", log=tmp_path / "log", progress=exceptions[0]), plain_zygote)
    (report,) = exceptions[1]()
    assert [one["module"] for one in report["raised"]] == [module for _, module in raised]
    assert all(one["line"].startswith(line) for one, (line, _) in zip(report["raised"], raised, strict=True))


@pytest.mark.parametrize(
    ("target", "args"), [("leaves.py", ["number"]), ("forks.py", []), ("siblings.py", [])], ids=["exit", "fork", "fine"]
)
def test_what_is_no_uncaught_exception_of_the_rank_is_not_reported(
    target, args, project, plain_zygote, tmp_path, exceptions
):
    by_fork(order(project, target, *args, log=tmp_path / "log", progress=exceptions[0]), plain_zygote)
    assert exceptions[1]() == []


@pytest.mark.parametrize("progress", [None, "/no/such/fifo"])
def test_a_report_that_nobody_hears_changes_nothing(progress, project, plain_zygote, tmp_path):
    words = order(project, "raises.py", "plain", log=tmp_path / "log", progress=progress)
    assert by_fork(words, plain_zygote) == 1
    assert (tmp_path / "log").read_text().endswith("ShapeError: bad shape (3, 4)\nsecond line\n")


def test_the_end_of_the_stream_ends_the_zygote(start, project, tmp_path):
    """Not the ranks: those are the agent's, which ends them, or ends itself."""
    agent = start()
    pid = agent.fork(order(project, "idles.py", log=tmp_path / "log"))
    wait_for(tmp_path / "log", "up\n")
    assert agent.close() == 0
    os.kill(pid, signal.SIGTERM)
    assert exit_code(agent.wait(pid)) == -signal.SIGTERM


def test_a_killed_agent_takes_zygote_and_ranks_along(project, tmp_path):
    words = order(project, "deaf.py", log=tmp_path / "log")
    argv = [sys.executable, str(SCRIPTS / "stand_in.py"), str(ZYGOTE), json.dumps(words)]
    agent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment())
    zygote, rank = map(int, agent.stdout.readline().split())
    wait_for(tmp_path / "log", "\n")
    stray = int((tmp_path / "log").read_text().split()[1])
    agent.kill()
    agent.wait()
    agent.stdout.close()
    try:
        gone(zygote, rank)
    finally:
        os.kill(stray, signal.SIGKILL)  # what a rank has started is found by the agent, or by its successor


def test_ranks_outlive_a_killed_zygote(start, project, tmp_path):
    agent = start()
    pid = agent.fork(order(project, "idles.py", log=tmp_path / "log"))
    wait_for(tmp_path / "log", "up\n")
    agent.process.kill()
    agent.process.wait(ANSWER_S)
    os.kill(pid, signal.SIGTERM)  # not by the kernel, before
    assert exit_code(agent.wait(pid)) == -signal.SIGTERM


@pytest.mark.parametrize("mode", ["serve", "run"])
def test_it_does_not_start_for_an_agent_that_has_gone(mode, tmp_path):
    read, write = os.pipe()
    argv = [sys.executable, str(ZYGOTE), mode, str(read), "1"]
    child = subprocess.Popen(argv, pass_fds=[read], env=environment(), cwd=tmp_path)
    assert child.wait(ANSWER_S) == 1
    os.close(read)
    os.close(write)


def test_signals_to_end_it_are_left_to_the_agent(start, project, tmp_path):
    agent = start()
    agent.hear("ready")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        agent.process.send_signal(number)
    assert by_fork(order(project, "siblings.py", log=tmp_path / "log"), agent) == 0


def test_what_modules_said_stays_in_the_log_of_the_zygote(start, project, tmp_path):
    agent = start(["chatty"], PYTHONUNBUFFERED="")
    assert by_fork(order(project, "siblings.py", log=tmp_path / "log"), agent) == 0
    assert (tmp_path / "log").read_text().startswith("from a sibling")
    assert sorted(agent.log.read_text().splitlines()) == ["said at import", "said by C"]


def test_two_hundred_forks_leave_nothing_behind(start, project, tmp_path):
    agent = start()
    fds = Path(f"/proc/{agent.process.pid}/fd")
    by_fork(order(project, "siblings.py", log=tmp_path / "log"), agent)
    before = sorted(path.name for path in fds.iterdir())
    for _ in range(50):
        pids = [agent.fork(order(project, "siblings.py", log=tmp_path / "log")) for _ in range(4)]
        assert [agent.wait(pid) for pid in pids] == [0] * 4
    assert sorted(path.name for path in fds.iterdir()) == before
    assert Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text() == ""
    assert (tmp_path / "log").read_text().count("from a sibling") == 201


def test_an_idle_zygote_costs_nothing(start):
    agent = start(["asyncio"])
    agent.hear("ready")
    stat = Path(f"/proc/{agent.process.pid}/stat")
    looks = []
    while len(looks) < 2 or looks[-1] != looks[-2] or looks[-1][0] != "S":  # one that is starved costs nothing either
        time.sleep(0.3)  # real time is what this is about
        looks.append([stat.read_text().rpartition(")")[2].split()[at] for at in (0, 11, 12)])
        assert len(looks) < 200, looks


def test_a_zygote_of_an_agent_with_thousands_of_connections_serves_it():
    """Its descriptor, which it gets from there, is beyond those that select takes."""
    ours, theirs = socket.socketpair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    beyond = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 1500)
    theirs.close()
    try:
        with ours, subprocess.Popen(
            [sys.executable, str(ZYGOTE), "serve", str(beyond), str(os.getpid())],
            pass_fds=[beyond], env=environment(), stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            os.close(beyond)
            ours.settimeout(ANSWER_S)
            ours.sendall(json.dumps({"op": "preload", "modules": []}).encode() + b"\n")
            with ours.makefile("rb") as lines:
                assert [json.loads(lines.readline())["op"] for _ in range(2)] == ["began", "ready"]
            ours.close()
            assert process.wait(ANSWER_S) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_peak_memory_is_told(plain_zygote, project, tmp_path):
    (tmp_path / "eats.py").write_text("bytearray(b'x' * (64 << 20))")
    pid = plain_zygote.fork(order(tmp_path, "eats.py", log=tmp_path / "log"))
    peak_kb = plain_zygote.wait4(pid)[2].ru_maxrss
    assert (64 << 10) < peak_kb < (256 << 10)


def test_two_ranks_draw_different_numbers(start, project, tmp_path):
    agent = start(["numpy.random", "random"])
    for log in ("one", "two"):
        by_fork(order(project, "draws.py", log=tmp_path / log), agent)
    (one_random, one_numpy), (two_random, two_numpy) = ((tmp_path / log).read_text().split() for log in ("one", "two"))
    assert one_random != two_random
    assert one_numpy != two_numpy


@pytest.mark.parametrize(
    "asks", ["os.getenv('RANK', '0')", "'LOCAL_RANK' in os.environ", "os.environ['LAUNCH_PROGRESS']"]
)
def test_in_reserve_a_program_is_ended_that_asks_for_what_only_a_rank_is_told(plain_zygote, tmp_path, asks):
    lines = (
        "import os",
        "dict(os.environ)",
        "print(os.environ['WORLD_SIZE'])",
        "os.environ.get('NOT_OURS')",
        asks,
        "print('on')",
    )
    (tmp_path / "asks.py").write_text("\n".join(lines))
    env = {"LAUNCH_RESERVE": "/nowhere", "WORLD_SIZE": "2"}
    assert by_fork(order(tmp_path, "asks.py", log=tmp_path / "log", env=env), plain_zygote) == 1
    size, said = (tmp_path / "log").read_text().splitlines()
    assert size == "2"
    assert re.fullmatch(
        r"launch: asks\.py:5 asks for \w+ before the training begins, and a process .* is no rank yet", said
    )


def test_once_it_is_a_rank_it_may_ask(plain_zygote, tmp_path):
    lines = "import os", "del os.environ['LAUNCH_RESERVE']", "os.environ.update(RANK='1')", "print(os.environ['RANK'])"
    (tmp_path / "asks.py").write_text("\n".join(lines))
    words = order(tmp_path, "asks.py", log=tmp_path / "log", env={"LAUNCH_RESERVE": "/nowhere"})
    assert by_fork(words, plain_zygote) == 0
    assert (tmp_path / "log").read_text() == "1\n"


def test_in_reserve_a_breakpoint_is_passed_over_where_nobody_would_find_it(plain_zygote, tmp_path):
    (tmp_path / "stops.py").write_text("breakpoint()\nprint('on')\n")
    words = order(tmp_path, "stops.py", log=tmp_path / "log", env={"LAUNCH_RESERVE": "/nowhere"})
    assert by_fork(words | {"debug": str(tmp_path / "debug")}, plain_zygote) == 0
    assert (tmp_path / "log").read_text().endswith("passed over: this process waits to be a rank\non\n")


def test_numpy_starts_no_threads_and_the_rank_sees_no_trace_of_why(start, tmp_path):
    agent = start(["numpy"])
    agent.hear("ready")
    (tmp_path / "sees.py").write_text("import os; print(os.environ.get('OPENBLAS_NUM_THREADS'))")
    assert by_fork(order(tmp_path, "sees.py", log=tmp_path / "log"), agent) == 0
    assert (tmp_path / "log").read_text() == "None\n"


def world(project, port, size, log):
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
    for rank in range(size):
        env = {**shared, "RANK": str(rank)}
        args = ["fork", "spawn"] if rank == 0 else []
        yield order(SCRIPTS, "reduces.py", *args, log=log / str(rank), env=env, cwd=str(project))


def test_four_ranks_of_torch(torch_zygote, project, tmp_path):
    port = HeldPort("127.0.0.1")
    asked = [torch_zygote.ask(words) for words in world(project, port.number, 4, tmp_path)]
    pids = [torch_zygote.hear("forked", id=number)["pid"] for number in asked]
    codes = [exit_code(torch_zygote.wait(pid)) for pid in pids]
    port.release()
    logs = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert codes == [0] * 4, logs
    assert "sum 10.0 of 4 [140.0, 140.0]\n" in logs[0]
    assert all("sum 10.0 of 4 []\n" in log for log in logs[1:])
    assert not any("leaked" in log for log in logs), logs


LAST_WORD = """
import ctypes, sys
import torch
libc = ctypes.CDLL(None)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
sys.said = handler(lambda *_, puts=libc.puts: puts(b"a last word") and None)
libc.on_exit(sys.said, None)
libc.puts(b"in the buffer of C")
for path in sys.argv[1:]:
    ctypes.CDLL(path)
"""


def test_what_libraries_do_at_the_end_is_left_out_where_each_is_known_to_do_nothing(torch_zygote, project, tmp_path):
    """Those of torch take half a second to find that out."""
    unknown = tmp_path / "libprofiler.so"
    known = next(path for path in zygote.mapped_code() if "/libc.so" in path)
    shutil.copy(next(path for path in zygote.mapped_code() if "/libm.so" in path), unknown)
    script = tmp_path / "last_word.py"
    script.write_text(LAST_WORD)
    for path, words in ((known, 0), (str(unknown), 1)):
        log = tmp_path / f"{words}.log"
        asked = order(project, str(script), path, log=log)
        assert exit_code(torch_zygote.wait(torch_zygote.fork(asked))) == 0
        assert log.read_text().count("in the buffer of C") == 1
        assert log.read_text().count("a last word") == words


def test_only_libraries_that_are_known_are_silent():
    site = "/home/me/.venv/lib/python3.12/site-packages/"
    known = [
        f"{site}torch/lib/libtorch_cpu.so", f"{site}numpy.libs/libscipy_openblas64_-ff651d7f.so",
        "/usr/lib/python3.12/lib-dynload/_json.cpython-312-x86_64-linux-gnu.so", "/lib/x86_64-linux-gnu/libm-2.31.so",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", "/usr/lib64/ld-linux-x86-64.so.2",
        "/opt/python/lib/libpython3.12.so.1.0",
    ]  # fmt: skip
    unknown = [
        f"{site}h5py/_hl.so", "/usr/lib/python3/dist-packages/h5py/defs.so", "/usr/lib/libprofiler.so.0",
        f"{site}torch/lib/libtorch_cpu.so (deleted)".replace("torch/", "own/"), "/tmp/torchinductor_me/ab/c.so",
    ]  # fmt: skip
    assert [path for path in known if not zygote.is_silent(path, site)] == []
    assert [path for path in unknown if zygote.is_silent(path, site)] == []


def test_ranks_share_the_memory_of_torch(torch_zygote, project, tmp_path):
    asked = [torch_zygote.ask(order(project, "idles.py", log=tmp_path / str(rank))) for rank in range(4)]
    pids = [torch_zygote.hear("forked", id=number)["pid"] for number in asked]
    for rank in range(4):
        wait_for(tmp_path / str(rank), "up\n")
    own_mb = [private_mb(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        torch_zygote.wait(pid)
    assert max(own_mb) < private_mb(torch_zygote.process.pid) / 2, own_mb


def private_mb(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(number) for number in re.findall(r"Private_\w+: +(\d+) kB", text)) // 1024


def test_it_is_written_in_the_syntax_of_python_3_9_and_needs_nothing_of_ours():
    tree = ast.parse(ZYGOTE.read_text(), feature_version=(3, 9))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def other_pythons():
    for minor in set(range(9, 16)) - {sys.version_info.minor}:
        path = shutil.which(f"python3.{minor}")
        code = f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
        if path and subprocess.run([path, "-c", code], capture_output=True).returncode == 0:
            yield path


@pytest.mark.parametrize("python", list(other_pythons()), ids=lambda path: Path(path).name)
def test_other_pythons(python, start, project, tmp_path, exceptions):
    agent = start(["asyncio", "launcher", "messages"], python=python)
    assert [name for name, _ in agent.hear("ready")["failed"]] == ["launcher", "messages"]
    for target, args, kind in [
        ("ends.py", [], "script"),
        ("package", ["x"], "module"),
        ("pools.py", ["spawn"], "script"),
    ]:
        log = tmp_path / "log"
        words = order(project, target, *args, kind=kind, log=log)
        outcome = by_fork(words, agent), log.read_text()
        log.unlink()
        start_words = ["-m", target] if kind == "module" else [str(project / target)]
        env = {**environment(), **words["env"]}
        oracle = subprocess.run([python, *start_words, *args], cwd=project, env=env, capture_output=True, text=True)
        assert outcome == (oracle.returncode, oracle.stdout + oracle.stderr)
    by_fork(order(project, "raises.py", "plain", log=tmp_path / "log", progress=exceptions[0]), agent)
    assert exceptions[1]() != [] or "SyntaxError" in (tmp_path / "log").read_text()


FORKS_A_SIBLING = """
import ctypes, os, sys, threading
sys.path.insert(0, sys.argv[1])
import zygote

def thread_id_as_glibc_knows_it():
    at = ctypes.c_void_p()
    assert zygote.LIBC.prctl(zygote.PR_GET_TID_ADDRESS, ctypes.byref(at), 0, 0, 0) == 0
    return ctypes.c_int.from_address(at.value).value

seen = []
os.register_at_fork(after_in_child=lambda: seen.append(os.getpid()))
parent, me = os.getppid(), os.getpid()
sibling = getattr(zygote, sys.argv[2])()
if sibling == 0:
    assert (os.getppid(), seen[-1]) == (parent, os.getpid())
    assert thread_id_as_glibc_knows_it() == os.getpid() == threading.get_native_id() != me
    thread = threading.Thread(target=seen.clear)
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os._exit(9 if not seen else 1)
assert seen == []
print(sibling)
"""


@pytest.mark.parametrize("fork", ["fork_sibling", "fork_for_subreaper"])
def test_a_rank_is_forked_as_a_child_of_the_agent_and_is_a_process_like_any_other(fork):
    """The second one costs two forks: it is for where the first is refused."""
    words = [sys.executable, "-c", FORKS_A_SIBLING, str(Path(zygote.__file__).parent), fork]
    done = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_S)
    assert done.returncode == 0, done.stderr
    _, status = os.waitpid(int(done.stdout), 0)
    assert os.waitstatus_to_exitcode(status) == 9, done.stderr
