"""Find the host of a run's node, and start this version of the launcher on it to inspect ranks."""

from launcher.errors import LaunchError, Refused
from launcher.node.inside.visit import host_command, machine_of
from launcher.places.ssh.facts import survey
from launcher.places.ssh.host_client import Place, settled_in
from launcher.places.ssh.host_clients import lines_to
from launcher.places.ssh.run_hosts import places_ever
from launcher.remote.connect import Line
from launcher.remote.running import Running
from launcher.run.layout import AttemptDir, RunDir


def line_to(run: RunDir, node: int) -> tuple[Place, Line]:
    """Return (the host of node number `node`, an SSH connection to it). Raise Refused if this machine did not hand the
    run to the host that the node's records name, Unreachable if the host cannot be reached.
    """
    name = machine_of(run, node)
    place = places_ever(run.whole).get(name)
    if place is None:
        raise Refused(f"node {node} of {run.id} is {name[:100]}, to which it was not handed over from here")
    line = lines_to([place], anew=True)[name]
    if isinstance(line, LaunchError):
        raise line
    return place, line


def reach(run: RunDir, attempt: AttemptDir, node: int) -> Running:
    """Start `launcher.programs visit` for the node on its host, and return the connection to it; raise Unreachable
    if that fails.
    """
    place, line = line_to(run, node)
    found = survey(line, place.host)
    python = settled_in(line, found)
    below = run.path.relative_to(run.whole.path.parent)
    return line.start(host_command(python, f"{found.facts.workdir}/runs/{below}", attempt, node))
