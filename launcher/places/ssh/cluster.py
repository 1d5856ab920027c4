"""Use plain hosts over SSH as a cluster, without a scheduler, a daemon of ours, or root."""

import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import BadInput, LaunchError, Unreachable
from launcher.places.place import CancelReport, HostNow, KeptRemote, Place, PreparedStart
from launcher.places.ssh import pool
from launcher.places.ssh.comeback import ask
from launcher.places.ssh.facts import Surveyed
from launcher.places.ssh.submit import cancel, look
from launcher.places.ssh.submit.predecessors import release, unseen
from launcher.plan.facts import Machine, Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.plan.queueing import not_taken
from launcher.plan.roles import most_gpus_asked
from launcher.remote.shipping import bundle
from launcher.run.attempts import last_attempt
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterAnswer
from launcher.spec.model import JobSpec, Ssh
from launcher.supervisor.handover import is_open
from launcher.supervisor.slots.table import GPU

if TYPE_CHECKING:
    from launcher.remote.connect import Line
    from launcher.remote.running import Running


class SshCluster(Place):
    """A pool of hosts; one object serves one command and asks each host for its facts only once."""

    kind = "ssh"  # the name of this kind of place in a spec
    doctor = "launcher.places.ssh.doctor"  # the module with its checks
    remote = True  # runs have their folders on other machines
    takes_roles = True  # a run may consist of several programs
    supports_reach = True  # `reach` can start a process beside the ranks of a node
    supports_tunnel = True  # `line_to` gives a connection that can carry others

    def __init__(self) -> None:
        self._pool = Ssh()
        self._found: dict[str, Surveyed] = {}
        self._not_mended: dict[str, LaunchError] = {}

    def machine(self, spec: JobSpec) -> Machine:
        """Return what each node of the run can have at least: the fewest GPUs and cores among the hosts of the spec's
        pool that have as many GPUs as it asks for per node. If none has so many, that is the host with most; if the
        spec gives no number, the hosts with a GPU count, or all if none has one.

        Hosts that cannot be examined are ignored; raise LaunchError if none can be.
        """
        if self._pool != spec.ssh or not self._found:
            self._found = _survey_pool(spec.ssh)
            self._pool = spec.ssh
        gpus = most_gpus_asked(spec) if spec.roles else spec.resources.gpus_per_node
        return offered([*self._found.values()], gpus, shared=spec.ssh.shared)

    def queue_problems(self, spec: JobSpec, awaited: Sequence[AwaitedRun]) -> list[Misfit]:
        """Return a problem for each setting of `spec.queue` that a pool does not support, and one more if no host of
        the pool has on its disks all of `awaited`, the runs that this one is to follow; those that have ended as
        awaited are not counted.
        """
        return [*not_taken(spec.queue, ("priority", "after", "hold", "at"), self.kind), *unseen(spec.ssh, awaited)]

    def runs_folder(self, spec: JobSpec) -> str:
        """Return the folder of runs, the same on all hosts of the spec's pool that can be examined; raise BadInput if
        they have different ones, and LaunchError if no host can be examined.
        """
        self.machine(spec)
        folders = {one.facts.workdir for one in self._found.values()}
        if len(folders) > 1:
            named = " and ".join(sorted(folders))
            raise BadInput(f"ssh.workdir: hosts of the pool have {named}: what one run makes another cannot be told")
        return f"{folders.pop()}/runs"

    def release(self, run: RunDir, attempt: AttemptDir) -> None:
        """Let a held run start, which was submitted to wait until its user releases it; do nothing if it is not held.
        Raise Refused if no host has it yet, and Unreachable if a host does not answer.
        """
        release(run, attempt)

    def hosts_now(self, spec: JobSpec) -> list[HostNow]:
        """Return the hosts of the pool in `spec.ssh`, each with its free GPUs and the runs that occupy the others. A
        host that cannot be examined has the state unknown, and the error as its text.
        """
        found, troubles = pool.surveyed(spec.ssh)
        return [
            _now(found[host.name])
            if host.name in found
            else HostNow(host.name, "unknown", text=str(troubles.get(host.name, "")))
            for host in pool.hosts_of(spec.ssh)
        ]

    def preview(self, _plan: Plan) -> None:
        """Return None, because nothing is handed to a batch system."""

    def prepare(self, plan: Plan) -> PreparedStart:
        """Start to install the launcher on the pool's hosts, in a thread, and return the object that then hands an
        attempt to them. The facts about the hosts are asked first if they are not known yet; raise LaunchError if none
        can be had.
        """
        from launcher.places.ssh.submit.handover import PoolHandover  # late: `launch status` needs none of it

        self.machine(plan.spec)  # already known if this object was asked before
        return PoolHandover(Path(plan.run_dir), self._found, agent=plan.spec.ssh.agent)

    def start(self, plan: Plan, attempt: int) -> None:
        """Hand the attempt, whose intent is on disk, to hosts of the pool and tell them to begin; raise NotStarted if
        fewer hosts can take part than the plan needs.
        """
        self.prepare(plan).start(attempt)

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """Hand attempts whose submitter was killed over to their hosts. For the others, start a process that asks hosts
        which have lost their supervisor, or are lost to the run, to take part again.

        Errors of a handover are not raised, but kept: `look` gives them as reasons.
        """
        attempts = [(run, attempt) for run, attempt in attempts if run.whole == run]
        left = [(run, attempt) for run, attempt in attempts if is_open(run, attempt)]
        if left:
            from launcher.places.ssh.submit.handover import mend  # late: a killed submitter is rare

            self._not_mended = mend(left)
        for run, attempt in attempts:
            if not is_open(run, attempt):
                ask.ask_lost(run)

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterAnswer | None]:
        """Return the state of each run as its hosts report it, or None while its submitter is still handing it to them;
        copy the hosts' records here. A run whose hosts do not answer has an unknown state, with the reason.
        """
        wholes = [(run.whole, attempt if run.whole == run else last_attempt(run.whole)) for run, attempt in attempts]
        return look.look(wholes, self._not_mended)

    def cancel(self, run: RunDir, attempt: AttemptDir, _plan: Plan | None) -> CancelReport:
        """Cancel the run on every host and return the report; raise Unreachable if ranks may be left on a host."""
        return cancel.cancel(run, attempt)

    def cancel_without(self, run: RunDir, attempt: AttemptDir, gone: Collection[str]) -> CancelReport:
        """Cancel the run on every host and return the report. Hosts in `gone`, by name, that do not answer are given up
        for good: the run may end without them from now on. Raise Unreachable if ranks may be left on any other host,
        and Refused if the run was never on one in `gone`.
        """
        return cancel.cancel(run, attempt, gone=gone)

    def include_nodes(self, run: RunDir, hosts: Collection[str]) -> None:
        """Let the run's next attempts use hosts again that the run has excluded: those in `hosts`, or all if it is
        empty.
        """
        cancel.include_hosts(run, hosts)

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Start a process on the host of node number `node` that inspects its ranks, and return the connection to the
        process.
        """
        from launcher.places.ssh.inside import reach  # late: only who looks inside needs it

        return reach(run, attempt, node)

    def line_to(self, run: RunDir, node: int) -> "Line":
        """Return a new SSH connection to the host of node number `node`. Raise Refused if this machine did not hand the
        run to that host, and Unreachable if the host cannot be reached.
        """
        from launcher.places.ssh.inside import line_to  # late: only a tunnel needs it

        return line_to(run, node)[1]

    def bring_logs(self, run: RunDir) -> None:
        """Copy what is new of the run's logs and metrics from its hosts, once. Do nothing if the run has ended and all
        were copied before; leave out hosts that do not answer.
        """
        from launcher.places.ssh.results import fetch  # late: `launch status` needs none of it

        fetch.bring_logs(run.whole)

    def fetch(self, run: RunDir, checkpoint: str) -> list[str]:
        """Copy logs, metrics and a checkpoint to this machine; return a line of text for each.

        `checkpoint` is `newest`, which copies the best one too, `none`, or a step.
        """
        from launcher.places.ssh.results import fetch  # late: `launch status` needs none of it

        return fetch.fetch(run, checkpoint)

    def bring_outputs(self, run: RunDir, draft: Path, frozen: Collection[str]) -> list[Path]:
        """Copy the files that ranks wrote into their folder of code on each host, to folders below `draft`; return the
        folder of each host that has any.

        `frozen` names the files of the code itself, which are not copied. Raise Unreachable if a host does not answer,
        after copying those of the others.
        """
        from launcher.places.ssh.results import fetch  # late: `launch status` needs none of it

        return fetch.bring_outputs(run, draft, frozen)

    def bring_newest(self, run: RunDir) -> None:
        """Copy the newest checkpoint, and the best one, from the hosts to this machine, and the logs of hosts that can
        be reached. Raise Unreachable or NotTransferred if the run had checkpoints and none can be copied.
        """
        from launcher.places.ssh.results import fetch  # late: `launch status` needs none of it

        fetch.bring_newest(run)

    def tidy(self, runs: Sequence[RunDir], *, remove: bool) -> list[KeptRemote]:
        """Return how many bytes each host keeps of the runs. With `remove`, also delete there, after counting, the runs
        that have no process on the host, and frozen code that no other run needs.
        """
        from launcher.places.ssh.results import tidying  # late: `launch status` needs none of it

        return tidying.tidy(runs, remove=remove)

    def discover(self, ref: str) -> Path | None:
        """Create a folder here for the run that another machine submitted to a pool of hosts, and whose id is `ref` or
        begins with it. Return the folder, or None if no pool in the clusters file has such a run.

        Raise NoSuchRun if several runs' ids begin with it, Unreachable if none was found and not all hosts answered.
        """
        from launcher.places.ssh.submit import discovery  # late: it reads YAML

        return discovery.discover(ref)


def offered(found: Sequence[Surveyed], gpus: int | None, *, shared: bool = False) -> Machine:
    """Return what every host that can take part has at least: the fewest GPUs and cores among them.

    Hosts with at least `gpus` GPUs can take part; if none has so many, only the host with most. With None all hosts
    with a GPU can, or all hosts if none has one. `shared` says that the hosts share a disk, which the answer repeats.
    """
    able = [one for one in found if len(one.gpus) >= (1 if gpus is None else gpus)]
    if not able and gpus is not None:  # the host that comes nearest decides how many there are
        able = [max(found, key=lambda one: len(one.gpus))]
    able = able or [*found]
    fewest = min(able, key=lambda one: len(one.gpus))
    cpus = min(one.facts.cpus for one in able)
    return Machine(cpus, fewest.gpus, apart=True, own_python=True, disks_apart=not shared, elects=True)


def _survey_pool(ssh: Ssh) -> dict[str, Surveyed]:
    """Return what was found on each host of the pool, by name, without the hosts that could not be examined; raise
    LaunchError if that leaves none.
    """
    if not ssh.hosts:
        hint = "hint: `ssh: {hosts: [...]}` in the spec, or a pool in the clusters file and --on its name"
        raise BadInput("--on ssh: the spec names no hosts", hint)
    # Takes a tenth of a second, and its result is wanted once the hosts have been looked at.
    threading.Thread(target=bundle.digest, args=(bundle.own_tag(),), daemon=True).start()
    found, troubles = pool.surveyed(ssh)
    if not found:
        error = Unreachable(*(line for one in troubles.values() for line in one.lines))
        codes = {one.exit_code for one in troubles.values()}
        error.exit_code = codes.pop() if len(codes) == 1 else error.exit_code
        raise error
    return found


def _now(one: Surveyed) -> HostNow:
    """Return the entry of `launch hosts` for a host that was examined."""
    seen = one.occupancy
    runs = tuple(dict.fromkeys(holder.run for holder in seen.held if holder.run))
    waits = f"{len(seen.waiting)} waiting" if seen.waiting else ""
    free = len(one.gpus) - one.taken(GPU)
    return HostNow(one.host.name, "taken" if seen.held else "free", len(one.gpus), free, runs, text=waits)
