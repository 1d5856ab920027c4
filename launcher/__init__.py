"""The job launcher: one YAML file, any machine. The Python API is `submit`, `runs` and `Run`."""

import sys
from typing import TYPE_CHECKING, Any

from launcher.states import VERSION

if TYPE_CHECKING:
    from launcher.api import Run as Run
    from launcher.api import Runs as Runs
    from launcher.api import compare as compare
    from launcher.api import predict as predict
    from launcher.api import runs as runs
    from launcher.api import submit as submit
    from launcher.api import submit_many as submit_many
    from launcher.api import wait_any as wait_any
    from launcher.apps.graph import Graph as Graph
    from launcher.apps.graph import submit_graph as submit_graph
    from launcher.apps.proof.findings import Proof as Proof
    from launcher.apps.proof.proving import prove as prove
    from launcher.apps.scaling.findings import ScalingReport as ScalingReport
    from launcher.apps.scaling.measuring import scale as scale
    from launcher.apps.sweeps.sweep import Sweep as Sweep
    from launcher.apps.sweeps.sweep import sweep as sweep
    from launcher.run.addresses import peers as peers

if sys.argv[:1] == ["-m"]:  # `python -m NAME` looks for NAME at this moment
    from launcher.older_names import start_by_newer_name

    start_by_newer_name()

__version__ = VERSION
__all__ = [
    "Graph", "Proof", "Run", "Runs", "ScalingReport", "Sweep", "compare", "peers", "predict", "prove", "runs", "scale",
    "submit", "submit_graph", "submit_many", "sweep", "wait_any",
]  # fmt: skip
_OF_SWEEPS = ("Sweep", "sweep")
_OF_GRAPHS = ("Graph", "submit_graph")
_OF_PROOFS = ("Proof", "prove")
_OF_SCALING = ("ScalingReport", "scale")


def __getattr__(name: str) -> Any:
    # Late, because the agent and `launch status` import this package and must not pay for the API.
    if name in _OF_SWEEPS:
        from launcher.apps.sweeps import sweep

        return getattr(sweep, name)
    if name in _OF_GRAPHS:
        from launcher.apps import graph

        return getattr(graph, name)
    if name in _OF_PROOFS:
        from launcher.apps.proof import proving

        return getattr(proving, name)
    if name in _OF_SCALING:
        from launcher.apps.scaling import measuring

        return getattr(measuring, name)
    if name == "peers":
        from launcher.run.addresses import peers

        return peers
    if name in __all__:
        from launcher import api

        return getattr(api, name)
    raise AttributeError(f"module 'launcher' has no attribute {name!r}")
