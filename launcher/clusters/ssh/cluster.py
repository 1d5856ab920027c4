"""Plain hosts over SSH as a cluster: no scheduler, no daemon of ours, no root."""

from collections.abc import Sequence
from pathlib import Path

from launcher.clusters.protocol import CancelReport
from launcher.clusters.ssh import mirror, pool
from launcher.clusters.ssh.facts import Surveyed
from launcher.clusters.ssh.handover import Handover
from launcher.errors import BadInput, Unreachable
from launcher.plan.facts import Machine
from launcher.plan.model import Plan
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord
from launcher.spec.model import JobSpec, Ssh


class SshCluster:
    """See the module. One submission asks its hosts once."""

    kind = "ssh"
    most_together = 1

    def __init__(self) -> None:
        self._pool = Ssh()
        self._found: dict[str, Surveyed] = {}

    def machine(self, spec: JobSpec) -> Machine:
        """What the least of the hosts that answer offers, so that `auto` fits each of them."""
        if self._pool != spec.ssh or not self._found:
            self._pool = spec.ssh
            self._found = _looked_at(spec.ssh)
        found = self._found.values()
        fewest = min(found, key=lambda one: len(one.gpus))
        return Machine(cpus=min(one.facts.cpus for one in found), gpus=fewest.gpus, apart=True)

    def preview(self, _plan: Plan) -> None:
        """Nothing is handed to anybody else here."""

    def engage(self, run_dir: Path) -> Handover:
        return Handover(run_dir, self._found, agent=self._pool.agent)

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
        return mirror.look(attempts)

    def cancel(self, run: RunDir, attempt: AttemptDir, _plan: Plan) -> CancelReport:
        return mirror.cancel(run, attempt)


def _looked_at(ssh: Ssh) -> dict[str, Surveyed]:
    if not ssh.hosts:
        hint = "hint: `ssh: {hosts: [...]}` in the spec, or a pool in the clusters file and --on its name"
        raise BadInput("--on ssh: the spec names no hosts", hint)
    found, troubles = pool.surveyed(ssh)
    if not found:
        error = Unreachable(*(line for one in troubles.values() for line in one.lines))
        codes = {one.exit_code for one in troubles.values()}
        error.exit_code = codes.pop() if len(codes) == 1 else error.exit_code
        raise error
    return found
