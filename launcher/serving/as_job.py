"""A run of a run: a server of its model wherever runs go, by its frozen code and a checkpoint that goes along.

here    RUN ─ the chosen checkpoint, the code, the arguments ─► a run of one rank ─ engage ─► CLUSTER
there   launch serve RUN --in-job ARGS ─► its own checkpoint, its own code ─► address ─► launch status
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.api import Run
from launcher.clusters.protocol import KeepsRunsElsewhere
from launcher.errors import BadInput, Refused
from launcher.repeated import as_it_ran, name_of
from launcher.serving.what_is_served import Served
from launcher.submission.opening import open_named

_PROGRAM = "launcher.cli.main"
_TOKEN = "SERVE_TOKEN"  # noqa: S105 - its name
_ONE_RANK = (
    "run.script=null", "run.command=null", f"run.module={_PROGRAM}", "run.preload=[]",
    "resources.nodes=1", "resources.ranks_per_node=1", "recovery.spares=0",
    "recovery.hang_after=off",  # a server that nobody asks says nothing
    "checkpoint.every=null", "checkpoint.memory_every=null", "sweep=null",
)  # fmt: skip


def open_server(one: Run, found: Served, words: Sequence[str], token: str, *, on: str, overrides: Sequence[str]) -> Run:
    """Start a run that serves what was found. `words`: options of its `launch serve`. Raises Refused where there is no
    checkpoint to send, and BadInput where its program would not be there.
    """
    chosen = next(iter(found.choices()), None)
    if chosen is None:
        hint = "hint: without --on it is served here, by its --app"
        raise Refused(f"{one.id} has no checkpoint of the trainer's, which could be sent along", hint)
    args = ["serve", one.id, "--in-job", json.dumps(found.args), "--app", found.app, *words]
    job = replace(as_it_ran(one), on=on)
    name = f"{job.request().spec.name}-serve"
    os.environ[_TOKEN] = token  # a secret of the run, which a restart has, too
    own = (*_ONE_RANK, f"name={name}", f"run.args={json.dumps(args)}", f"secrets+={_TOKEN}")
    wish = job.request([*own, *overrides])
    if found.app.startswith("/") and isinstance(wish.cluster, KeepsRunsElsewhere):
        hint = "hint: --app MODULE, one of the run's code"
        raise BadInput(f"--app: {on} does not see this machine's disk, where {found.app} is", hint)
    run_id = name_of(wish)
    return Run(run_id, open_named(run_id, wish, checkpoint=chosen.path))


def served_in_job(run: str, *, app: str | None, args: str, best: bool) -> Served:
    """What this process, a rank of such a run, is to serve: the code that it runs in, and the checkpoint beside it."""
    try:
        folder = Path(os.environ["LAUNCH_CHECKPOINT_DIR"])
        found = json.loads(args)
    except (KeyError, ValueError) as error:
        raise BadInput(f"--in-job: expected in a run that `launch serve --on` has started: {error}") from error
    if app is None or not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise BadInput("--in-job: expected a list of arguments as JSON, and --app")
    cwd, token = str(Path.cwd()), os.environ.get(_TOKEN, "")
    return Served(run, app, tuple(found), sys.executable, cwd, dict(os.environ), folder, best, token)
