"""Run `trainer.collectives` on a cluster, like any other run, and read the output of its first rank."""

from collections.abc import Sequence

from launcher import api
from launcher.apps.collectives.findings import CollectivesReport
from launcher.apps.collectives.reading import report_of
from launcher.apps.repeated_runs import Tell, to_its_end
from launcher.errors import BadInput
from launcher.states import LOCAL, State

TAG = "collectives"
_MODULE = "trainer.collectives"
SIZES = tuple(2**power for power in (10, 14, 18, 22, 26))


def collectives(
    cluster: str = LOCAL, *, ranks: Sequence[int] = (2,), nodes: int = 1, sizes: Sequence[int] = SIZES,
    backend: str = "auto", overrides: Sequence[str] = (), tell: Tell = lambda _: None,
) -> CollectivesReport:  # fmt: skip
    """Time and check each operation on each number of ranks, spread evenly over the nodes. The run is removed once
    its output is complete.
    """
    least, most = min(ranks, default=0), max(ranks, default=0)
    if least < 2:
        raise BadInput(f"--ranks: expected numbers of at least 2, got {least}")
    if most % nodes:
        raise BadInput(f"--ranks: expected as many on each of {nodes} nodes, got {most}")
    per_node = most // nodes
    words = {"ranks": ",".join(map(str, ranks)), "sizes": ",".join(map(str, sizes)), "backend": backend}
    spec = {
        "name": "collectives",
        "run": {"module": _MODULE, "args": words},
        "resources": {"nodes": nodes, "ranks_per_node": per_node} | ({"gpus_per_node": 0} if backend == "gloo" else {}),
        "recovery": {"user_error": 0},
    }
    run = api.submit(spec, on=cluster, overrides=overrides)
    run.label(add=[TAG])
    tell(f"{run.id}: {most} ranks on {nodes} {'node' if nodes == 1 else 'nodes'} of {cluster}")
    status = to_its_end(run, run.wait, tell)
    run.renew()
    failed = ""
    if status.state is not State.SUCCEEDED:
        failed = f"{run.id} {status.state}: {status.last_word}"
    report = report_of(run.id, cluster, (line.text for line in run.logs(ranks=[0])), failed)
    if not report.failed:
        api.remove([run])
    return report
