"""Plain hosts over SSH as a cluster: no scheduler, no daemon of ours, no root."""

import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from launcher.clusters.protocol import CancelReport
from launcher.clusters.ssh import pool
from launcher.clusters.ssh.facts import Surveyed
from launcher.clusters.ssh.results import fetch
from launcher.clusters.ssh.submit import cancel, discovery, look
from launcher.clusters.ssh.submit.handover import Handover
from launcher.errors import BadInput, Unreachable
from launcher.hostlink.shipping import bundle
from launcher.plan.facts import Machine
from launcher.plan.model import Plan
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord
from launcher.spec.model import JobSpec, Ssh


class SshCluster:
    """See the module. One submission asks its hosts once."""

    kind = "ssh"

    def __init__(self) -> None:
        self._pool = Ssh()
        self._found: dict[str, Surveyed] = {}

    def machine(self, spec: JobSpec) -> Machine:
        if self._pool != spec.ssh or not self._found:
            self._pool = spec.ssh
            self._found = _looked_at(spec.ssh)
        return offered([*self._found.values()], spec.resources.gpus_per_node)

    def preview(self, _plan: Plan) -> None:
        """Nothing is handed to anybody else here."""

    def engage(self, plan: Plan) -> Handover:
        self.machine(plan.spec)  # whoever asked this object before has made it known already
        return Handover(Path(plan.run_dir), self._found, agent=self._pool.agent)

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
        return look.look(attempts)

    def cancel(self, run: RunDir, attempt: AttemptDir, _plan: Plan) -> CancelReport:
        return cancel.cancel(run, attempt)

    def cancel_without(self, run: RunDir, attempt: AttemptDir, gone: Collection[str]) -> CancelReport:
        return cancel.cancel(run, attempt, gone=gone)

    def forgive(self, run: RunDir, hosts: Collection[str]) -> None:
        cancel.pardon(run, hosts)

    def bring_logs(self, run: RunDir) -> None:
        fetch.bring_logs(run)

    def fetch(self, run: RunDir, checkpoint: str) -> list[str]:
        return fetch.fetch(run, checkpoint)

    def bring_newest(self, run: RunDir) -> None:
        fetch.bring_newest(run)

    def discover(self, ref: str) -> Path | None:
        return discovery.adopt(ref)


def offered(found: Sequence[Surveyed], gpus: int | None) -> Machine:
    """What each of the hosts that can take part has: those with that many GPUs; None: all with any, where some have."""
    able = [one for one in found if len(one.gpus) >= (1 if gpus is None else gpus)]
    if not able and gpus is not None:  # the one that comes nearest says how many there are
        able = [max(found, key=lambda one: len(one.gpus))]
    able = able or [*found]
    fewest = min(able, key=lambda one: len(one.gpus))
    return Machine(cpus=min(one.facts.cpus for one in able), gpus=fewest.gpus, apart=True, own_python=True)


def _looked_at(ssh: Ssh) -> dict[str, Surveyed]:
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
