"""Start a program by its name: `python -m launcher.programs NAME ARGUMENT…`.

The command line, the supervisor (`launcher.supervisor`) and the agent (`launcher.node`) start by the names of their
packages, all others by this table; the module of each says what its arguments are. A name that goes is kept in
`launcher.older_names`, because queued job scripts, crontabs and hosts call it.
"""

import gc
import sys
from importlib import import_module
from types import ModuleType

PROGRAMS = {
    "notify": "launcher.supervisor.notify.sender",  # sends the notifications of one attempt of a run
    "visit": "launcher.node.inside.there",  # serves one request about the ranks of its node, as for `launch stacks`
    "guard": "launcher.places.batch.job.guard",  # starts a job's supervisor, and restarts it if it is killed
    "on-node": "launcher.places.batch.job.on_node",  # supervises the agent of one node of a job
    "environment": "launcher.places.batch.environment",  # runs a command with the environment of the submitting user
    "trial": "launcher.places.batch.trial.on_node",  # answers the questions of `launch doctor … --try` on a node
    "nudge": "launcher.places.slurm.nudge",  # makes a requeued job of Slurm start soon
    "pod": "launcher.places.kubernetes.pod",  # runs a job's supervisor or a node's agent in a pod
    "host": "launcher.places.ssh.host.server",  # answers a submitter on a host of a pool
    "come-back": "launcher.places.ssh.comeback.there",  # restarts the supervisors of a host after a reboot
    "ask-back": "launcher.places.ssh.comeback.ask",  # asks lost hosts to take part again
}


def import_at_start(name: str) -> ModuleType:
    """Import the module `name`, which a process needs until its end, without a search for garbage meanwhile.

    What an import makes stays; to look through it takes a tenth of the start.
    """
    gc.disable()
    module = import_module(name)
    gc.freeze()
    gc.enable()
    return module


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    if name not in PROGRAMS:
        sys.exit(f"launcher.programs has no {name!r}, only {', '.join(PROGRAMS)}")
    sys.exit(import_at_start(PROGRAMS[name]).main(words))
