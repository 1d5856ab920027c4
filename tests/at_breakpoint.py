"""A run whose rank 1 waits in a breakpoint(): a shell beside it and a debugger in it, wherever it runs."""

import os
import subprocess
import sys

from login_node import BOUND_S, read_terminal

SCRIPT = """
import os
number = int(os.environ["RANK"])
secret = number + 41
while number == 1:
    breakpoint()
    print("it goes on with", secret, flush=True)
"""
RUN = "name: stops\nrun: {script: stops.py, preload: []}\n"


def waits_in(status):
    """The debugger is waited for."""
    return "waits for a debugger: rank 1 in a breakpoint at " in status["message"]


def look_inside(user, run):
    """A shell on a terminal and one that reads, then a debugger, which has the rank go on with another number, to the
    next breakpoint: so the run does not end while it is looked at."""
    # One line: what is behind it would be the command's to read.
    code, shown = at_terminal(user, b"echo rank=$RANK; test -t 0 && echo a-term''inal; exit 9\r", "shell", run)
    assert (code, "rank=1\r\n" in shown, "a-terminal\r\n" in shown) == (9, True, True), shown
    piped = user.launch("shell", run, "--rank", "1", typed="echo rank=$RANK; exit 7\n", check=7)
    assert piped.stdout == "rank=1\n"
    assert "rank 0" in user.launch("debug", run, check=4).stderr
    asked = user.launch("debug", run, "--rank", "1", typed="p secret\n")  # leaves, and the rank waits on
    assert "(Pdb) 42\n" in asked.stdout
    user.launch("debug", run, "--rank", "1", typed="secret = 1000\nc\n")
    return lambda: "it goes on with 1000" in user.launch("logs", run).stdout


def at_terminal(user, keys, verb, run):
    """Exit code, and all that a terminal shows on which these keys are pressed."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-P", "-m", "launcher.cli.main", verb, run, "--rank", "1"]
    with subprocess.Popen(
        words, cwd=user.project, env=user.env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as shell:
        os.close(theirs)
        try:
            os.write(ours, keys)
            shown = b"".join(iter(lambda: read_terminal(ours), b""))
            return shell.wait(BOUND_S), shown.decode(errors="replace")
        finally:
            shell.kill()
            os.close(ours)
