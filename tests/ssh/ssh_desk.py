"""Operations on hosts and runs for the tests of this folder."""

import json
import os
import signal

from lab import Lab, command, parent

from launcher.run.processes import TAG


class Desk(Lab):  # type: ignore[misc] # found on pytest's path
    """A user's project, and a pool of hosts in their clusters file."""

    def __init__(self, root, hosts):
        super().__init__(root)
        self.hosts = hosts
        self.env |= hosts.env

    def job(self, steps=60, nodes="2", more="", hold=None, **args):
        """A spec that runs chain.py on so many hosts, two ranks each; held at a step where it is to be alive still."""
        words = "\n".join([f"steps: {steps}", *(f"{name}: {value}" for name, value in args.items())])
        return self.chain(args=words, resources=f"nodes: {nodes}\nranks_per_node: 2", more=more, hold=hold)

    # -- on the hosts

    def there(self, index, run, name=""):
        """A file of a run on a host, as this machine sees it."""
        return self.hosts.home(index) / "launch" / "runs" / run / name

    def record_there(self, index, run, name):
        path = self.there(index, run, name)
        return json.loads(path.read_text()) if path.exists() else None

    def state_there(self, index, run):
        return self.record_there(index, run, "state.json") or {}

    def until_step_there(self, index, run, step, attempt=None):
        def reached():
            state = self.state_there(index, run)
            right = attempt is None or state.get("attempt") == attempt
            return state if right and (state.get("step") or 0) >= step and state["state"] == "running" else None

        return self.until(f"step {step} on host {index}", reached)

    def own(self, word, index=None):
        """The pids of all processes on the hosts whose command line has this word, parents before those they forked:
        numbers go round, so that a child's may be the lower one."""
        nodes = self.hosts.nodes if index is None else [self.hosts.nodes[index]]
        found = [pid for node in nodes for pid in node.started() if word.encode() in command(pid)]
        return sorted(found, key=lambda pid: parent(pid) in found)

    def left(self):
        """Return the processes on the hosts that belong to no login; those end a moment after their command."""
        return [pid for pid in self.everything() if not is_of_a_login(pid)]

    def everything(self):
        return [pid for node in self.hosts.nodes for pid in node.started()]

    def kill(self, pid):
        strike(pid)

    def freeze(self, pid):
        strike(pid, signal.SIGSTOP)

    def fingerprint_here(self, steps, nodes=2):
        """Return the fingerprint of the undisturbed run on this machine."""
        return self.fingerprint_of(self.job(steps, nodes))


def is_of_a_login(pid):
    """Return whether a process belongs to sshd or a login, or is only an entry in the process table."""
    line = command(pid)
    if not line or line.startswith(b"sshd"):
        return True
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            names = {word.partition(b"=")[0] for word in file.read().split(b"\0")}
    except OSError:
        return True  # it has just ended
    return b"SSH_CONNECTION" in names and TAG.encode() not in names


def strike(pid, number=signal.SIGKILL):
    os.kill(pid, number)
