"""Looking into a run on this machine, through the real command line."""

import json
import os
import pty
import re
import select
import subprocess
import sys

import pytest
from lab import BOUND_S

pytestmark = pytest.mark.nightly

WAITS = """
import os, time
def deep():
    os.chdir("sub")
    print("there", flush=True)
    while not os.path.exists(os.environ["BRAKE_OFF"]):
        time.sleep(0.05)
os.makedirs("sub", exist_ok=True)
deep()
"""
SPEC = "name: look\nrun: {script: waits.py}\nenv: {BRAKE_OFF: %s, MINE: 'a b'}\nsecrets: [TOKEN_OF_MINE]\n%s"
TWO_NODES = "resources: {nodes: 2, ranks_per_node: 2, gpus_per_node: 0, cpus_per_rank: 1}\n"


@pytest.fixture
def run(lab):
    """Start a run of two nodes with two waiting ranks each."""
    lab.script("waits.py", WAITS)
    lab.env["TOKEN_OF_MINE"] = "a secret word"
    run = lab.submit(lab.spec(SPEC % (lab.brake, TWO_NODES)))
    lab.until("all ranks at their work", lambda: lab.rank_logs(run).count("there") == 4)
    yield run
    lab.brake.touch()
    assert lab.wait(run)["restarts"]["total"] == 0


@pytest.mark.daily
def test_a_command_beside_a_rank_reads_what_is_piped_in(lab, run):
    show = (
        "import os; print([os.environ.get(n) for n in ('RANK', 'LAUNCH_NODE', 'MINE', 'TOKEN_OF_MINE')], os.getcwd())"
    )
    done = lab.launch("exec", run, "--rank", "3", "--", sys.executable, "-c", show)
    folder = lab.run_dir(run) / "code" / "sub"
    assert done.stdout == f"{['3', '1', 'a b', 'a secret word']} {folder}\n"
    done = lab.launch("exec", run, "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=7)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert lab.launch("exec", run, "--", "tr", "a-z", "A-Z", typed="hello\n").stdout == "HELLO\n"
    assert b"a secret word" not in b"".join(path.read_bytes() for path in lab.run_dir(run).glob("attempts/*/*/rank-*"))


def test_a_shell_on_a_terminal(lab, run):
    """Typed lines go there, its exit code comes back, and the terminal is as before."""
    ours, theirs = pty.openpty()
    before = subprocess.run(["stty", "-a"], stdin=theirs, capture_output=True, check=True).stdout
    words = [sys.executable, "-m", "launcher.cli.main", "shell", run, "--rank", "2"]
    shell = subprocess.Popen(
        words, cwd=lab.project, env=lab.env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    shown = ""

    def shows(what):
        nonlocal shown
        if select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536).decode(errors="replace")
        return what in shown

    try:
        os.write(ours, b"echo rank=$RANK; test -t 0 && echo a-terminal=yes\r")
        lab.until("an answer", lambda: shows("rank=2") and shows("\na-terminal=yes\r"))
        # In short naps: a signal that comes before a long one has begun would be heard at its end.
        naps = b'trap "echo cau""ght; exit" INT; echo wai""ting; while :; do sleep 0.1; done'
        os.write(ours, b"sh -c '" + naps + b"'\r")
        lab.until("a command that runs", lambda: shows("waiting\r"))
        os.write(ours, b"\x03")
        lab.until("its end", lambda: shows("caught\r"))
        os.write(ours, b"exit 9\r")
        assert shell.wait(BOUND_S) == 9
        assert subprocess.run(["stty", "-a"], stdin=theirs, capture_output=True, check=True).stdout == before
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.daily
def test_the_stacks_of_all_ranks(lab, run):
    shown = lab.launch("stacks", run).stdout
    assert [f"── rank {rank}, node {rank // 2}, process " in shown for rank in range(4)] == [True] * 4
    assert shown.count("in deep\n") == 4
    assert "zygote.py" not in shown
    found = json.loads(lab.launch("stacks", run, "--rank", "1-2", "--json").stdout)
    assert [(each["rank"], each["node"], each["problem"]) for each in found] == [(1, 0, ""), (2, 1, "")]
    assert all(each["stacks"][-1].endswith("in <module>") for each in found)
    assert lab.rank_logs(run).count("in deep") >= 6  # and in their logs


def test_nobody_there_to_look_into(lab, run):
    for words in (
        ("exec", run, "--rank", "4", "--", "true"),
        ("stacks", run, "--rank", "7"),
        ("shell", run, "--rank", "9"),
    ):
        assert "that runs" in lab.launch(*words, check=4).stderr
    assert "expected a command behind --" in lab.launch("exec", run, check=2).stderr
    lab.brake.touch()
    lab.wait(run)
    for words in (("exec", run, "--", "true"), ("stacks", run), ("shell", run)):
        assert "is succeeded: no rank of it runs" in lab.launch(*words, check=4).stderr


def test_ranks_that_are_no_python(lab):
    lab.script("loop.sh", 'echo up; while [ ! -e "$1" ]; do sleep 0.1; done')
    spec = f"name: plain\nrun: {{command: sh, args: [loop.sh, {lab.brake}]}}\nresources: {{ranks_per_node: 1}}\n"
    run = lab.submit(lab.spec(spec))
    lab.until("its rank", lambda: "up" in lab.rank_logs(run))
    assert lab.launch("exec", run, "--", "sh", "-c", "echo $RANK").stdout == "0\n"
    shown = lab.launch("stacks", run, check=4).stdout
    assert "answers with no Python stacks" in shown
    lab.brake.touch()
    assert lab.wait(run)["state"] == "succeeded"


STOPS = """
import json, os, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
secret = int(os.environ["RANK"]) + 41
def step(number):
    if os.environ["RANK"] == "1" and number in (2, 3):
        breakpoint()
    return number
done = 0
for number in range(1, 5):
    done += step(number)
    wire.write(json.dumps({"step": number, "done_so_far": done}) + "\\n")
print("the sum is", done, secret, flush=True)
"""


def waiting(lab, run):
    message = lab.status(run)["message"]
    return message if "waits for a debugger" in message else None


def test_a_debugger_in_a_rank_that_waits(lab):
    """Somebody may leave and come again, and the run ends as it would have."""
    lab.script("stops.py", STOPS)
    run = lab.submit(lab.spec("name: stops\nrun: {script: stops.py}\nresources: {ranks_per_node: 2}\n"))
    told = lab.until("a rank that waits", lambda: waiting(lab, run))
    assert "waits for a debugger: rank 1 in a breakpoint at " in told
    assert re.search(r"stops\.py:[78]\b", told)  # from Python 3.13 on that line, before it the next one

    def debug(*lines, check=0):
        words = [sys.executable, "-m", "launcher.cli.main", "debug", run, "--rank", "1"]
        typed = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(
            words, cwd=lab.project, env=lab.env, input=typed, capture_output=True, text=True, timeout=BOUND_S
        )
        assert done.returncode == check, done.stderr
        return done.stdout

    assert "rank 0" in lab.launch("debug", run, "--rank", "0", check=4).stderr
    debug()  # leaves at once
    assert lab.status(run)["message"] == told
    assert "42" in debug("p secret", "p secret")
    debug("c")
    lab.until("the next one", lambda: lab.status(run)["ranks"][1]["step"] == 2 and waiting(lab, run))
    status = lab.status(run)
    assert (status["state"], status["restarts"]["total"]) == ("running", 0)
    debug("p number", "globals()['secret'] = 1000", "c")
    status = lab.wait(run)
    assert (status["state"], status["restarts"]["total"]) == ("succeeded", 0)
    assert "the sum is 10 1000" in lab.rank_logs(run)
