"""Serve a run's model in a run of its own on any cluster, with the run's frozen code and a checkpoint that is sent
along. With `--watch`, the server loads newer checkpoints from the folder where the run saves, if it can read that. An
override, such as `run.args.lr=0.1`, sets one option of the spec, as `--set` does.
"""

import json
import os
import posixpath
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.api import WATCH_S, Run, line_to
from launcher.apps.repeated_runs import as_it_ran, name_of
from launcher.apps.serving.what_is_served import Served
from launcher.errors import BadInput, LaunchError, Refused
from launcher.remote.running import Channel
from launcher.status.derive import state_text
from launcher.submission.opening import open_named
from launcher.submission.requests import Request

_PROGRAM = "launcher.cli.main"
_TOKEN = "SERVE_TOKEN"  # noqa: S105 - its name
_SERVES = re.compile(r"\bserves https?://\S+?:([0-9]{1,5})\b")
_ONE_RANK = (
    "run.script=null", "run.command=null", f"run.module={_PROGRAM}", "run.preload=[]",
    "resources.nodes=1", "resources.ranks_per_node=1", "recovery.spares=0",
    "recovery.hang_after=off",  # a server that nobody asks says nothing
    "checkpoint.every=null", "checkpoint.memory_every=null", "sweep=null",
)  # fmt: skip


def open_server(
    one: Run, found: Served, words: Sequence[str], token: str | None, *, on: str, overrides: Sequence[str],
    watch: bool = False, tls: Sequence[Path] = (), tunnel: bool = False,
) -> Run:  # fmt: skip
    """Start a run on the cluster named `on` that serves the model `found` of the run `one`, and return the new run.

    `words` are further options of the `launch serve` that it runs. Callers must send the `token` (None: anyone may
    call); it is also put into this process's environment, from which it becomes a secret of the run. With `watch`,
    newer checkpoints of `one` are loaded as they are saved. `tls` are the files of the server's certificate and key
    (empty: plain HTTP). With `tunnel`, callers reach the server through the connection to its node. Raise Refused if
    there is no checkpoint to send. Raise BadInput if the cluster cannot read the service, the watched folder or the
    certificate, or supports no tunnel.
    """
    chosen = next(iter(found.choices()), None)
    if chosen is None:
        hint = "hint: without --on it is served here, by its --app"
        raise Refused(f"{one.id} has no checkpoint of the trainer's, which could be sent along", hint)
    words = [*words, *(f"--tls-{what}={path}" for what, path in zip(("cert", "key"), tls, strict=False))]
    args = ["serve", one.id, "--in-job", json.dumps(found.args), "--app", found.app, *words]
    ran = as_it_ran(one)
    job = replace(ran, on=on)
    name = f"{job.request().spec.name}-serve"
    secret = []
    if token is not None:
        os.environ[_TOKEN] = token  # a secret of the run, which a restart has, too
        secret = [f"secrets+={_TOKEN}"]

    def asked(args: Sequence[str]) -> Request:
        """Return the request of a run whose program has the arguments `args`."""
        own = (*_ONE_RANK, f"name={name}", f"run.args={json.dumps(args)}", *secret)
        return job.request([*own, *overrides])

    wish = asked(args)
    if watch:
        wish = asked([*args, "--watch", "--watched", _watched(one, found, wish, on, trained_there=ran.on == on)])
    if found.app.startswith("/") and wish.cluster.remote:
        hint = "hint: --app MODULE, one of the run's code"
        raise BadInput(f"--app: {on} does not see this machine's disk, where {found.app} is", hint)
    if tls and wish.cluster.remote:
        hint = "hint: --tunnel asks it through SSH"
        raise BadInput(f"--tls-cert: {on} does not see this machine's disk, where {tls[0]} is", hint)
    if tunnel and not wish.cluster.supports_tunnel:
        hint = "hint: without --tunnel others reach it by `launch status`; or ssh -L to its node"
        raise BadInput(f"--tunnel: not supported on {wish.cluster.kind}: expected a pool of hosts", hint)
    run_id = name_of(wish)
    return Run(run_id, open_named(run_id, wish, checkpoint=chosen.path))


def _watched(one: Run, found: Served, wish: Request, on: str, *, trained_there: bool) -> str:
    """Return the path at which the server can read the checkpoint directory of the run `one`.

    `found` is the model to serve, `wish` the request for the server's run, and `on` its cluster. `trained_there`: the
    run `one` was trained on that cluster. A server on a cluster that does not share this machine's disk can read the
    directory only if `trained_there`, and if it is inside the folder of the run; raise BadInput otherwise.
    """
    if not wish.cluster.remote:
        return str(found.checkpoints)
    inside = found.checkpoints.is_relative_to(one.path)
    if not (trained_there and inside):
        raise BadInput(
            f"--watch: {on} does not see this machine's disk, where {one.id} saves",
            f"hint: without --on it is served here; without --watch {on} serves the checkpoint that it is sent",
        )
    return posixpath.join(wish.cluster.runs_folder(wish.spec), one.id, found.checkpoints.relative_to(one.path))


class WayToJob:
    """Makes connections to a job, which serves on the loopback interface of its node.

    After a restart on another node, new connections go there.
    """

    def __init__(self, job: Run) -> None:
        self._job = job
        self._port: int | None = None
        self._lock = threading.Lock()

    def port(self) -> int | None:
        """Return the port on the job's node, or None while the job does not serve; raise Refused if the job has
        ended.
        """
        status = self._job.status(WATCH_S)
        if status.state.ended:
            raise Refused(f"{self._job.id} {state_text(status)}", f"hint: launch logs {self._job.id}")
        found = _SERVES.search(status.message)
        return int(found[1]) if found is not None else None

    def channel(self) -> Channel:
        """Return a new connection to the job's server; raise LaunchError if it cannot be made."""
        with self._lock:
            if self._port is None:
                self._port = self.port()
            port = self._port
        if port is None:
            raise Refused(f"{self._job.id} does not serve now")
        try:
            return line_to(self._job, 0).to_port(port)
        except LaunchError:
            with self._lock:
                self._port = None
            raise


def served_in_job(run: str, *, app: str | None, args: str, best: bool, watched: Path | None = None) -> Served:
    """Return what this process, a rank of a serving run, has to serve: its own code with the checkpoint that was sent
    along.

    `run` is the id of the trained run, `app` the service and `args` the training's arguments as JSON. `best` prefers
    the best checkpoint to the newest, and checkpoints in the folder `watched` are preferred to the sent one (None:
    there is no such folder). Raise BadInput if this process was not started by `launch serve --on`, or does not see
    `watched`.
    """
    try:
        folder = Path(os.environ["LAUNCH_CHECKPOINT_DIR"])
        found = json.loads(args)
    except (KeyError, ValueError) as error:
        raise BadInput(f"--in-job: expected in a run that `launch serve --on` has started: {error}") from error
    if app is None or not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise BadInput("--in-job: expected a list of arguments as JSON, and --app")
    cwd, token = str(Path.cwd()), os.environ.get(_TOKEN, "")
    mine = Served(run, app, tuple(found), sys.executable, cwd, dict(os.environ), folder, best, token)
    if watched is None:
        return mine
    if not watched.is_dir():
        hint = f"hint: launch serve {run} --on ... without --watch; or where nodes see that folder"
        raise BadInput(f"--watch: this node sees no {watched}, where newer checkpoints of {run} come", hint)
    return replace(mine, checkpoints=watched, spare=folder)
