"""Operations on runs for the tests of this folder."""

import json
import os
import signal

from lab import Lab, parent


def two_nodes(desk, steps=60, more="", hold=None, **args):
    words = "\n".join([f"steps: {steps}", *(f"{name}: {value}" for name, value in args.items())])
    return desk.chain(args=words, resources="nodes: 2\nranks_per_node: 2", more=more, hold=hold)


def record(desk, run, name, attempt=1):
    """A record of the attempt; None while it is not there."""
    path = desk.run_dir(run) / "attempts" / f"{attempt:04d}" / name
    return json.loads(path.read_text()) if path.exists() else None


def job_of(desk, run, attempt=1):
    return record(desk, run, "handle.json", attempt)["job_id"]


def fingerprint_here(desk, steps):
    """Return the fingerprint of the undisturbed run on this machine."""
    return desk.fingerprint_of(two_nodes(desk, steps))


def jobs(slurm):
    """The ids of all jobs that wait or run."""
    return slurm.ask("squeue", "--noheader", "--format=%i").split()


def take_all_nodes(slurm, seconds=1):
    """A job that preempts whatever is there."""
    what = ("--partition=urgent", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null")
    return slurm.ask("sbatch", "--parsable", *what, f"--wrap=sleep {seconds}").strip()


def causes(desk, run):
    return [event["cause"] for event in desk.events(run, "failure")]


def own(desk, run, word):
    """The processes of a run on any node whose command line has this word, parents before those they forked."""
    found = []
    for pid in desk.processes(desk.run_dir(run)):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if word.encode() in file.read():
                    found.append(pid)
        except OSError:
            continue  # it has just ended
    return sorted(found, key=lambda pid: parent(pid) in found)


def strike(pid, number=signal.SIGKILL):
    os.kill(pid, number)


def desk_at(folder, slurm):
    """A project and a state folder; when the test is over, no process of its runs may be left on any node."""
    desk = Lab(folder)
    desk.env |= slurm.env
    yield desk
    try:
        slurm.ask("scancel", "--user=root")
        desk.until("the end of every process of its runs", lambda: not desk.processes())
    finally:
        desk.tidy()
