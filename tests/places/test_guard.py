"""The guard of a job, and a batch process below it that notes what it hears."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BOUND_S = 150.0
SUPERVISOR = """
import os, signal, sys
log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(*words):
    os.write(log, (" ".join(map(str, words)) + "\\n").encode())  # print may be in the middle of another one

def hear(number, _frame):
    note(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit(7)

note("begun", *sys.argv[4:])
if sys.argv[3] == "slow":
    while not os.path.exists(sys.argv[2] + ".go"):
        pass
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, hear)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
note("pid", os.getpid())
if sys.argv[3] == "brief":
    os.kill(os.getppid(), signal.SIGUSR1)
    sys.exit(5)
while True:
    signal.pause()
"""


@pytest.fixture
def guard(tmp_path):
    """`guard("")` gives one, with a program of this kind in the place of the batch process."""
    package = tmp_path / "launcher" / "places" / "batch" / "job"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:3]):
        (folder / "__init__.py").touch()
    for ours in ("programs.py", "places/batch/job/guard.py"):
        (tmp_path / "launcher" / ours).write_bytes((Path(__file__).parents[2] / "launcher" / ours).read_bytes())
    supervisor = tmp_path / "launcher" / "supervisor"
    supervisor.mkdir()
    (supervisor / "__init__.py").touch()
    (supervisor / "__main__.py").write_text(SUPERVISOR)
    made = []

    def begin(kind, *ends):
        command = [sys.executable, "-P", "-m", "launcher.programs", "guard", kind, str(tmp_path / "log"), *ends]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        made.append(subprocess.Popen(["/bin/sh", "-c", "trap '' USR1 USR2; exec \"$@\"", "sh", *command], env=env))
        return made[-1]

    yield begin
    for one in made:
        one.kill()
        one.wait()


def until_said(tmp_path, word, times=1):
    """Return all lines once a line that begins so has come that often."""
    deadline = time.monotonic() + BOUND_S
    while True:
        lines = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        if sum(line.startswith(word) for line in lines) >= times:
            return lines
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)


def until_shown(pid, text):
    """Wait until the kernel shows the process in this state."""
    deadline = time.monotonic() + BOUND_S
    while text not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pid_in(lines):
    return int([line for line in lines if line.startswith("pid")][-1].split()[1])


def test_signals_reach_the_batch_process(guard, tmp_path):
    job = guard("")
    until_said(tmp_path, "pid")
    for times, name in enumerate(("SIGUSR1", "SIGUSR2", "SIGUSR1")):
        job.send_signal(getattr(signal, name))
        until_said(tmp_path, name, 1 + times // 2)
    job.terminate()
    assert job.wait(BOUND_S) == 7


def test_a_job_that_the_scheduler_would_hold_for_a_failure_ends_with_0(guard, tmp_path):
    job = guard("", "ends-with-0")
    until_said(tmp_path, "pid")
    job.terminate()
    assert job.wait(BOUND_S) == 0


def test_what_comes_while_its_python_starts_is_heard_once_it_can(guard, tmp_path):
    """Slurm's word of the limit came then in two of eight jobs, and ended them."""
    job = guard("slow")
    until_said(tmp_path, "begun")
    job.send_signal(signal.SIGUSR1)
    (tmp_path / "log.go").touch()
    assert until_said(tmp_path, "SIGUSR1").count("begun") == 1
    job.terminate()
    assert job.wait(BOUND_S) == 7


def test_one_that_is_killed_is_begun_anew_and_told_by_what(guard, tmp_path):
    job = guard("")
    for times, number in enumerate((signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL), start=1):
        os.kill(pid_in(until_said(tmp_path, "pid", times)), number)
    said = until_said(tmp_path, "pid", 4)
    assert [line for line in said if line.startswith("begun")] == ["begun", "begun 9", "begun 11", "begun 9"]
    job.send_signal(signal.SIGUSR1)
    until_said(tmp_path, "SIGUSR1")
    job.terminate()
    assert job.wait(BOUND_S) == 7


def test_one_that_is_killed_when_the_job_is_ended_is_not_begun_anew(guard, tmp_path):
    """By scancel, a preemption or the limit: SIGTERM, and after KillWait SIGKILL for who has not left."""
    job = guard("")
    pid = pid_in(until_said(tmp_path, "pid"))
    os.kill(pid, signal.SIGSTOP)
    until_shown(pid, "State:\tT")
    job.terminate()
    until_shown(pid, f"ShdPnd:\t{1 << (signal.SIGTERM - 1):016x}")
    os.kill(pid, signal.SIGKILL)
    assert job.wait(BOUND_S) == 128 + signal.SIGKILL
    assert until_said(tmp_path, "begun").count("begun") == 1


def test_its_exit_code_is_the_jobs_whatever_comes_at_that_moment(guard):
    assert [guard("brief").wait(BOUND_S) for _ in range(5)] == [5] * 5
