"""Test that what passes between two machines is data: never run, never shown to others, and unchanged."""

import json
import os
import stat
import subprocess
import threading
import time

import pytest
from hostile import files_with
from login_node import BOUND_S, read

from tests.waits import until

pytestmark = pytest.mark.nightly

NEEDLE = f"canary-of-login-{os.getpid():08x}"  # other tests of this machine have canaries of their own in the open
CANARY = f"{NEEDLE}-secret value'\"$(x)\n end"
HOSTILE = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "$(touch pwned)",
    "`touch pwned`",
    ";touch pwned",
    "--set",
    "-x",
    "a\nb",
    "é😀",
    "\\",
    "*",
]
SHOW = """
import json, os, sys
names = ("PLAIN", "HOSTILE", "TOKEN", "FROM_FILE")
with open({out!r}, "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": {{name: os.environ.get(name) for name in names}}}}, file)
"""
RUN = "resources: {ranks_per_node: 1}\n"


@pytest.fixture
def shown(laptop, login_node, tmp_path):
    """Runs a job and gives what its rank saw."""

    def shown(spec, on, *words, env=None):
        out = tmp_path / f"seen-{on}"
        laptop.script("show.py", SHOW.format(out=str(out)))
        laptop.spec(f"name: show\nrun:\n  script: show.py\n  preload: []\n{spec}")
        run = laptop.launch("submit", "job.yaml", "--on", on, *words, env=env).stdout.strip()
        laptop.launch("wait", run)
        until("the end of all that writes there", lambda: not login_node.processes())
        return run, json.loads(out.read_text())

    return shown


@pytest.mark.daily
def test_arguments_and_environment_come_byte_for_byte(laptop, login_node, shown):
    values = "".join(f"    - {json.dumps(value, ensure_ascii=False)}\n" for value in HOSTILE)
    text = json.dumps("\n".join(HOSTILE), ensure_ascii=False)
    spec = f"  args:\n{values}env:\n  PLAIN: plain\n  HOSTILE: {text}\n{RUN}"
    overrides = ("--set", "env.PLAIN=a 'b' \"c\" $(touch pwned) ; é", "--set", "run.args.more=x y")
    _, there = shown(spec, "hpc", *overrides)
    _, here = shown(spec, "local", *overrides)
    assert there == here
    assert there["argv"] == [*HOSTILE, "--more", "x y"]
    assert there["env"]["HOSTILE"] == "\n".join(HOSTILE)
    found = [path for root in (login_node.root, laptop.root) for path in root.rglob("pwned")]
    assert found == []
    assert set(login_node.asked()) == {"launch _far"}, "no text of anybody's is in a command line"


def test_hostile_names_in_the_code_arrive(laptop, login_node, shown):
    names = ["-rf", "a b", "new\nline", "$(touch pwned)", "é😀", "\udcff\udcfe", "..a", "'\""]
    for name in names:
        (laptop.project / name).write_bytes(os.fsencode(name))
    (laptop.project / "link").symlink_to("a b")
    (laptop.project / "run me").write_text("#!/bin/sh\n")
    (laptop.project / "run me").chmod(0o755)
    run, _ = shown(RUN, "hpc")
    code = login_node.home / "launch" / "runs" / run / "code"
    assert sorted(os.listdir(code)) == sorted([*names, "link", "run me", "job.yaml", "show.py", "pyproject.toml"])
    assert all((code / name).read_bytes() == os.fsencode(name) for name in names)
    assert os.readlink(code / "link") == "a b"
    assert (code / "run me").stat().st_mode & 0o100
    assert not (code / "a b").stat().st_mode & 0o111


def test_what_git_ignores_here_is_decided_here(laptop, login_node, shown):
    """A repository around the far folder has no say in what is code, and what was sent is all of it."""
    (login_node.home / ".git").mkdir()
    (login_node.home / ".gitignore").write_text("*\n")
    (login_node.home / "pyproject.toml").write_text("")
    (laptop.project / "venv").mkdir()
    (laptop.project / "venv" / "tracked.py").write_text("")
    (laptop.project / "scratch.txt").write_text("")
    (laptop.project / ".gitignore").write_text("scratch.txt\n")
    git(laptop, "init", "-q", ".")
    git(laptop, "add", "-f", "venv")
    run, _ = shown(RUN, "hpc")
    code = login_node.home / "launch" / "runs" / run / "code"
    names = sorted(str(path.relative_to(code)) for path in code.rglob("*") if path.is_file())
    assert names == [".gitignore", "job.yaml", "pyproject.toml", "show.py", "venv/tracked.py"]


def test_code_is_sent_once(laptop, login_node, shown):
    laptop.relay()
    (laptop.project / "large.bin").write_bytes(os.urandom(3_000_000))
    shown(RUN, "hpc")
    shown(RUN, "hpc", "--set", "env.PLAIN=other")
    first, second = [one["up"] for one in laptop.passed() if b'"type":"open"' in one["up"]]
    assert len(first) > 3_000_000
    assert len(second) < 5_000
    assert b'"type":"tree"' in first
    assert b'"type":"tree"' not in second
    assert len(login_node.trees()) == 1
    (laptop.project / "large.bin").write_bytes(b"other")
    shown(RUN, "hpc")
    assert len(login_node.trees()) == 2


def git(laptop, *words):
    subprocess.run(["git", *words], cwd=laptop.project, check=True)


class Watch(threading.Thread):
    """Looks at every command line and environment of this machine, again and again."""

    def __init__(self, needle, allowed):
        super().__init__(daemon=True)
        self._needle, self._allowed = needle, allowed
        self._over = threading.Event()
        self.found, self.looks = {}, 0

    def run(self):
        while not self._over.is_set():
            for name in filter(str.isdigit, os.listdir("/proc")):
                line, environ = read(name, "cmdline"), read(name, "environ")
                if read(name, "cmdline") != line:
                    continue  # it has become another program meanwhile, and is looked at again
                if self._needle in line or (self._needle in environ and not self._allowed(line, environ)):
                    self.found[name] = line
            self.looks += 1
            time.sleep(0.002)

    def stop(self):
        self._over.set()
        self.join()


@pytest.mark.daily
def test_a_secret_is_in_no_command_line_environment_or_log(laptop, login_node, shown, tmp_path):
    laptop.relay()
    laptop.configure("SendEnv TOKEN")
    (laptop.project / "token").write_text(f"from-file-{NEEDLE}")
    (laptop.project / ".gitignore").write_text("token\n")
    git(laptop, "init", "-q", ".")
    spec = f"{RUN}secrets: [TOKEN, {{FROM_FILE: token}}]\n"

    def allowed(line, environ):
        """The user's own command, and the ranks that are to have it."""
        return b"submit\0" in line or b"\0LAUNCH_RUN_ID=" in b"\0" + environ

    watch = Watch(NEEDLE.encode(), allowed)
    watch.start()
    try:
        run, seen = shown(spec, "hpc", env={"TOKEN": CANARY})
    finally:
        watch.stop()
    assert seen["env"] == {"PLAIN": None, "HOSTILE": None, "TOKEN": CANARY, "FROM_FILE": f"from-file-{NEEDLE}"}
    assert watch.found == {}
    assert watch.looks > 20
    for call in laptop.passed():
        assert NEEDLE not in json.dumps([call["argv"], call["env"]])
    keeps = login_node.home / "launch" / "runs" / run / "secrets.json"
    here = laptop.folder(run) / "secrets.json"
    ours = {keeps, here, laptop.project / "token", *(laptop.root / "passed").iterdir(), tmp_path / "seen-hpc"}
    assert {*files_with(NEEDLE, tmp_path)} <= ours
    assert stat.S_IMODE(keeps.stat().st_mode) == stat.S_IMODE(here.stat().st_mode) == 0o600


@pytest.mark.daily
def test_the_watch_bites(tmp_path):
    watch = Watch(b"canary-of-the-watch", lambda line, environ: False)
    watch.start()
    pid = os.spawnlpe(os.P_NOWAIT, "sleep", "sleep", "600", {**os.environ, "X": "canary-of-the-watch"})
    try:
        deadline = time.monotonic() + BOUND_S
        while str(pid) not in watch.found and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        watch.stop()
    assert str(pid) in watch.found


def test_what_is_kept_is_private(laptop, login_node, shown):
    os.umask(0)
    try:
        run, _ = shown(RUN, "hpc")
    finally:
        os.umask(0o022)
    state = laptop.root / "state" / "launch"
    kept = [*state.rglob("*"), *(laptop.project / ".launch").rglob("*"), *(login_node.home / "launch").rglob("*")]
    assert {stat.S_IMODE(path.lstat().st_mode) & 0o077 for path in kept if not path.is_symlink()} == {0}
    assert laptop.folder(run).exists()
