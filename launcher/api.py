"""The Python API, on which the command line is built.

from launcher import submit, runs

run = submit("jobs/resnet_ddp.yaml", overrides=["resources.ranks_per_node=2"])
for line in run.logs(follow=True):
    print(line.rank, line.text)
print(run.wait().state)

for run in runs():
    print(run.id, run.status().state)

print(submit(train, lr=0.1, resources={"ranks_per_node": 2}).result())
"""

import contextlib
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from launcher.errors import BadInput, LaunchError, NoSuchRun, NothingToDo, Refused, Unreachable, said_by_the_system
from launcher.ids import LAST, RunId, parse_run_id
from launcher.places.kinds import kind_named, of_kind
from launcher.places.place import CancelReport, KeptRemote, Place, Preview
from launcher.run import registry
from launcher.run.attempts import attempts, last_attempt, newest, read_intent, read_plan, remains
from launcher.run.draining import ask_to_drain, ask_to_move
from launcher.run.durable import read_lines, readable, write_record
from launcher.run.hangs import HangReport
from launcher.run.layout import RunDir
from launcher.run.locks import locked
from launcher.run.records import KEPT, ClusterAnswer, Event, Labels, MoveRequest, NodeState, RunState
from launcher.states import LOCAL, State
from launcher.status.derive import RunStatus, derive
from launcher.status.facts import RunFacts, read_facts, role_dirs
from launcher.status.log_choice import LogChoice
from launcher.status.logs import LogLine, merged_logs

if TYPE_CHECKING:
    from launcher.node.inside.visit import Visit
    from launcher.plan.model import Plan
    from launcher.remote.connect import Line
    from launcher.remote.running import Running
    from launcher.run.code.listing import CodeList
    from launcher.run.draining import MoveAnswer
    from launcher.run.layout import AttemptDir
    from launcher.run.records import Exclusion
    from launcher.run.removal import Usage
    from launcher.status.about import About
    from launcher.status.checkpoints import Checkpoint
    from launcher.status.compared import CodeComparison, Comparison
    from launcher.status.series import Row, Rows
    from launcher.submission.exporting import Exported
    from launcher.submission.replacing import Replacement
    from launcher.supervisor.notify.record import Notifying

Spec = str | Path | Mapping[str, Any] | Any  # a file, or what would stand in one
WATCH_S = 5.0  # how old the word of a cluster may be for those who watch
WAIT_STEP_S = 0.1
UNLISTED = "it was submitted with another HOME or XDG_STATE_HOME, with which it can be asked, followed and ended"
_answered: dict[Path, tuple[float, ClusterAnswer | None]] = {}


@dataclass(frozen=True, slots=True)
class Run:
    """A submitted run: query, follow, cancel or resume it. Methods raise Damaged if a record of the run that they need
    cannot be read.
    """

    id: RunId
    path: Path  # its run directory on this machine

    @classmethod
    def get(cls, ref: str) -> "Run":
        """Return the run with this id, unique beginning of an id, name given by its user, or `last`; raise NoSuchRun if
        there is none, or if several fit.
        """
        return run(ref)

    def status(self, fresh_s: float = 0.0) -> "RunStatus":
        """Return the run's status, from its records on this machine and, if these cannot tell, from its cluster.

        The cluster is queried, but with `fresh_s` an answer of up to that many seconds ago is used instead. A run of
        this machine whose processes have died is restarted first, if its records allow that.
        """
        return statuses([self], fresh_s)[0]

    def logs(
        self, *, ranks: Collection[int] | None = None, follow: bool = False, choice: LogChoice | None = None
    ) -> "Iterator[LogLine]":
        """Yield the merged log lines: of all ranks or of those in `ranks`, and only those that `choice` selects (None:
        all); with `follow`, continue until the run ends.
        """
        lost = self.replacement()
        return merged_logs(
            RunDir(self.path), ranks=ranks, follow=follow, renew=lambda: lost.poll(self.renew()).state.ended,
            choice=choice,
        )  # fmt: skip

    def renew(self) -> "RunStatus":
        """Fetch what ranks on other machines have logged since the last fetch into the run's folder on this machine,
        and return the run's status.
        """
        status = self.status(WATCH_S)
        run = RunDir(self.path)
        for place in _places_of(run):
            place.bring_logs(run)
        return status

    def replacement(self) -> "Replacement":
        """Return an object that resumes the run on other hosts once it has lost some. A command that waits for the run
        calls its method `poll` with each status of the run; `poll` resumes it if need be, and returns the status to
        show.
        """
        from launcher.submission.replacing import Replacement  # late: of no use to `status`

        return Replacement(RunDir(self.path), self.resume)

    def about(self) -> "About":
        """Return the run's arguments, its commit and description, and the name, tags and note that its user gave it."""
        from launcher.status.about import about  # late: the table of runs does without

        run = RunDir(self.path)
        attempt = newest(run)
        return about(run, attempt.number if attempt is not None else 0)

    def usage(self) -> "Usage":
        """Return how much of this machine's disk the run takes."""
        from launcher.run.removal import usage_of  # late: only for tidying
        from launcher.status.checkpoints import checkpoint_folder  # late: 10 ms that no other question needs

        run = RunDir(self.path)
        folder = run.path / "checkpoints"
        with contextlib.suppress(LaunchError, OSError):
            folder = checkpoint_folder(run)
        return usage_of(run, folder)

    def remove(self) -> None:
        """Delete the run's folder and name, on other machines too.

        Raise Refused for a run that has not ended, and Unreachable if a machine did not answer or still runs a part;
        that machine keeps its part, and the run stays known here.
        """
        refuse_live(self.status())
        told = remove([self])
        if self.path.exists():
            raise Unreachable(*(kept_text(one) for one in told if one.silent or one.live))

    def label(
        self, *, add: Collection[str] = (), remove: Collection[str] = (), note: str | None = None,
        name: str | None = None,
    ) -> Labels:  # fmt: skip
        """Add the tags in `add`, remove those in `remove`, write the note and set the name; None leaves the note or
        name as it is.

        Return the labels that the run has then.
        """
        run = RunDir(self.path)
        with locked(run.labels_lock, wait=True, optional=True):
            old = readable(run.labels, Labels) or Labels()
            kept = [tag for tag in old.tags if tag not in remove]
            tags = tuple(dict.fromkeys([*kept, *add]))
            new = Labels(old.name if name is None else name, tags, old.note if note is None else note)
            if new != old:
                write_record(run.labels, new)
        return new

    def checkpoints(self, *, verify: bool = False) -> "Iterator[Checkpoint]":
        """Yield the committed checkpoints, the newest first; with `verify`, every byte is read and compared with its
        checksum.
        """
        from launcher.status.checkpoints import checkpoints  # late: 10 ms that no other question needs

        run = RunDir(self.path)
        place = _place_of(newest(run))
        if place is not None and place.lists_checkpoints:
            return iter(place.checkpoints(run, verify=verify))
        return checkpoints(run, verify=verify)

    def metrics(self) -> "Rows":
        """Return the metrics of the run as one row per step: each metric's value, and `at`, the Unix time if it is
        known.
        """
        from launcher.status.series import read_rows  # late: of no use to `status`

        self.renew()
        return read_rows(RunDir(self.path))

    def iter_metrics(self, *, follow: bool = False) -> "Iterator[tuple[int, Row]]":
        """Yield (step, row of its values) once for each step, in order: the recorded steps or, with `follow`, all until
        the run ends.

        With `follow`, a step is yielded once a later one exists, and a step that is repeated after a restart is yielded
        only the first time.
        """
        from launcher.status.series import each_step  # late: of no use to `status`

        run = RunDir(self.path)
        if follow:
            return each_step(run, over=lambda: self.renew().state.ended)
        self.renew()
        return each_step(run, over=lambda: True)

    def wait(self, timeout_s: float | None = None) -> "RunStatus":
        """Wait until the run has ended, and return its status; raise TimeoutError if that takes longer than
        `timeout_s`.

        Meanwhile this call resumes the run on other hosts if it has too few after a loss of hosts of a pool, and the
        clusters file has a command that lists the pool's present hosts.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        lost = self.replacement()
        while not (status := lost.poll(self.status(fresh_s=WATCH_S))).state.ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} is still {status.state} after {timeout_s:g} s")
            time.sleep(WAIT_STEP_S)
        return status

    def result(self, timeout_s: float | None = None, *, unpickle: bool = False) -> Any:
        """Wait for the end of a submitted function; return what it returned on rank 0, or raise what it raised.

        Plain data (numbers, text, and lists, tuples, sets and dicts of these) is returned as it is. Everything else is
        pickled, and loaded only with `unpickle`, because that may run code of anyone who could write to the run's
        folder. Exceptions built into Python are raised as they are, others as RunFailed, with the traceback as a note.
        Raise TimeoutError after `timeout_s` (None: never), Refused for a run of no function, and RunFailed if no rank
        has left an exception.
        """
        from launcher.submission.functions import is_call, result_of  # late: of no use to `status`

        run = RunDir(self.path)
        if not is_call(run, last_attempt(run).number):
            raise Refused(f"{self.id} is of no function: there is no result", "hint: submit(FUNCTION, ...) starts one")
        status = self.wait(timeout_s)
        self.fetch_outputs()
        return result_of(run, status, unpickle=unpickle)

    def fetch(self, checkpoint: str = "newest") -> list[str]:
        """Fetch logs, metrics and a checkpoint (`newest`, `none` or a step) from other machines; return one line of
        text for each fetched item, to be shown to the user.

        With `newest` the best checkpoint is fetched as well. Checkpoint files that no machine has are then fetched from
        the run's object store, unless the run is live on this machine. Raise the LaunchError of the machines if they
        failed and the store gave nothing either, and that of the store only if no other machine has files of the run.
        """
        from launcher.copies import stored  # late: of no use to `status`

        status, run = self.status(), RunDir(self.path)
        places, lines, trouble = _places_of(run), list[str](), None
        try:
            lines = [line for place in places for line in place.fetch(run, checkpoint)]
        except LaunchError as error:
            trouble = error
        try:
            # No other checkpoint is put among those that a live run here goes on from.
            asked = checkpoint != "none" and (places or status.state.ended) and stored.has_store(run)
            brought = stored.fetch_stored(run, checkpoint) if asked else []
        except LaunchError:
            if trouble is None and not places:
                raise
            brought = []
        if trouble is not None and not brought:
            raise trouble
        return lines + brought

    def fetch_outputs(self) -> list[str]:
        """Fetch files that ranks wrote beside their code into `fetched-outputs` in the run's folder; return one line of
        text per machine with such files, or a single one if there are none.

        `run.outputs` of the spec selects the files; without it, every file is fetched that is not part of the frozen
        code.
        """
        from launcher.run.code import outputs  # late: only for this
        from launcher.run.drafts import new_draft, remove  # late: likewise

        self.status()
        run = RunDir(self.path)
        plan = read_plan(run, last_attempt(run).number)
        frozen = outputs.frozen_names(run, plan)
        draft = new_draft(run.path)
        try:
            found = [(run.outputs, run.code)]
            for place in _places_of(run):
                folders = place.bring_outputs(run, draft, frozen)
                found += [(run.outputs / one.parent.name if len(folders) > 1 else run.outputs, one) for one in folders]
            wanted = plan.spec.run.outputs
            taken = [(at, outputs.link_into(code, outputs.written(code, frozen, wanted), at)) for at, code in found]
        finally:
            remove(draft)
        lines = [f"outputs, {len(files)} file{'s'[: len(files) != 1]}: {at}" for at, files in taken if files]
        return lines or ["no outputs: ranks have written nothing" + (f" of {', '.join(wanted)}" if wanted else "")]

    def export(
        self, target: str | Path, *, step: int | None = None, best: bool = False, model: str | None = None,
        dtype: str | None = None, most_bytes_per_file: int | None = None, overwrite: bool = False,
    ) -> "Exported":  # fmt: skip
        """Write the weights of a checkpoint to a file or folder: the newest, the best one (`best`), or that of a
        `step`. Return which checkpoint it was and what was written.

        The target is `model.safetensors`, `model.pt` for torch.load, `model.dcp` for torch.distributed.checkpoint, or
        `model`, a folder as Hugging Face reads it. With `model` or `dtype` the weights of that one model, or converted
        to that type, are written. A folder has several files if one would exceed `most_bytes_per_file` (None: 5 GB). An
        existing target is replaced only with `overwrite`. Checkpoints on other machines are fetched first. Raise
        BadInput for options that cannot work, Refused if the target exists or there is no such checkpoint, and another
        LaunchError if it cannot be fetched.
        """
        from launcher.copies import news, stored  # late: `status` does not fetch
        from launcher.submission import exporting  # late: of no use to `status`
        from trainer.checkpoint_files.export import ExportOptions  # late: of no use to `status`

        run = RunDir(self.path)
        options = ExportOptions(dtype, model, most_bytes_per_file, overwrite)
        wish = exporting.Wish(Path(target), options, step, best)
        exporting.refuse_impossible(wish)
        place = _place_of(newest(run))
        there = place is not None and place.remote
        if (there and step is None) or (not exporting.is_here(run, step) and (there or stored.has_store(run))):
            for line in self.fetch("newest" if step is None else str(step)):
                news.say(line)
        return exporting.export(run, wish)

    @property
    def elsewhere(self) -> bool:
        """Whether the run's checkpoints are on other machines, so that this one lists only those that were fetched."""
        place = _place_of(newest(RunDir(self.path)))
        return place is not None and place.remote and not place.lists_checkpoints

    def saved_by_script(self, step: int | None) -> bool:
        """Return whether the checkpoint that the run reported at `step` is in the script's own format.

        The criterion: the run never had a checkpoint in the trainer's format. Return False if `step` is None, and if
        the checkpoints are on other machines, whose folders cannot be examined.
        """
        from launcher.status.checkpoints import kept  # late: 10 ms that no other question needs

        run = RunDir(self.path)
        place = _place_of(newest(run))
        if step is None or (place is not None and place.remote):
            return False
        try:
            there = kept(run)
        except (OSError, LaunchError):  # a plan that cannot be read names no folder
            return False
        if there.steps or there.best or there.set_aside:
            return False
        return not any(event.kind == KEPT for event in read_lines(run.events, Event))

    def include_nodes(self, hosts: Collection[str] = ()) -> "list[Exclusion]":
        """Let the run's next attempts use the nodes on `hosts` again, or all nodes that it excludes if `hosts` is
        empty; return the exclusions that were removed.

        If the run has not ended, a job of it that waits in a queue may use them as well.
        """
        from launcher.run.avoided import include  # late: nothing else needs it

        run = RunDir(self.path)
        place = _place_of(newest(run))
        if place is not None and not self.status().state.ended:
            place.include_nodes(run, hosts)
        return include(run, hosts)

    pardon = include_nodes  # as it was called in 0.1

    def nodes_of_ranks(self) -> dict[int, int]:
        """Return the node's index for each rank that is starting or running, by the rank's number. Raise Refused if
        there is none.
        """
        status = self.status()
        state = readable(RunDir(self.path).state, RunState)
        ranks = state.ranks if state is not None and not status.state.ended else ()
        found = {rank.rank: rank.node for rank in ranks if rank.state in ("starting", "running")}
        if not found:
            said = f": {status.message}" if status.message and not status.state.ended else ""
            raise Refused(f"{self.id} is {status.state}{said}: no rank of it runs", f"hint: launch status {self.id}")
        return found

    def last_hang(self) -> HangReport | None:
        """Return the report of the run's newest hang, or None if there was none or its report cannot be read."""
        found = [path for attempt in attempts(RunDir(self.path)) for path in attempt.hangs()]
        return readable(found[-1], HangReport) if found else None

    def visit(self, node: int) -> "Visit":
        """Start a program on the node that answers questions about the run's ranks, such as for their stacks; return
        the connection to it, which the caller closes.

        Raise Refused if no coordinator of the run has recorded a state yet.
        """
        from launcher.node.inside.visit import Visit  # late: only who looks inside needs it

        return Visit(self.reach(node))

    def reach(self, node: int) -> "Running":
        """Start a program on the node that answers questions about its ranks, such as for their stacks; return the
        process through which this machine talks to it, for a caller that relays messages.

        Raise Refused if no coordinator of the run has recorded a state yet.
        """
        run = RunDir(self.path)
        place, state = _place_of(newest(run)), readable(run.state, RunState)
        if state is None or place is None:
            raise Refused(f"{self.id}: it has no ranks yet", f"hint: launch status {self.id}")
        return place.reach(run, run.attempt(state.attempt), node)

    def cancel(self, *, gone: Collection[str] = ()) -> CancelReport:
        """End the run and return a report: its ranks are asked to stop, and after the grace period all its processes
        are killed.

        It returns once they are gone. `gone` are hosts that will never answer again, and are not waited for. Raise
        Unreachable if a scheduler or another host does not answer, so that processes may be left.
        """
        run = RunDir(self.path)
        left = remains(run)
        place = of_kind(left.kind)
        if not gone:
            return place.cancel(run, left.attempt, left.plan)
        return place.cancel_without(run, left.attempt, gone)

    def resume(
        self,
        *,
        on: str | None = None,
        overrides: Sequence[str] = (),
        anew: bool = False,
        code: bool = False,
        without: Collection[str] = (),
    ) -> "Run":
        """Open a new attempt of an ended or lost run, and return the run.

        `on` names another cluster, and `overrides` change the spec. With `anew` the run may start from nothing if no
        checkpoint is complete. With `code` it gets the project's present code. `without` are hosts of a pool that are
        gone for good; ranks that are left on the others are ended first. Hosts that the pool's command no longer names
        count as gone. Raise Refused for an active run, or if another process resumed it; NothingToDo for a run that has
        succeeded and would not change.
        """
        from launcher.submission.reopening import reopen  # late: it reads YAML, which `status` must not pay for
        from launcher.submission.replacing import unlisted  # late: likewise

        (status,) = statuses([self], restart_lost=False)  # what it goes on with is for whoever resumes it to say
        stopped = status.state is State.UNKNOWN or (status.state.ended and status.state is not State.SUCCEEDED)
        gone = unlisted(RunDir(self.path)) - {*without} if stopped and on in (None, status.cluster) else set[str]()
        if (gone or without) and (status.state is State.UNKNOWN or status.state.ended):
            self.cancel(gone={*without, *gone})
            (status,) = statuses([self], restart_lost=False)
        if status.state is State.UNKNOWN:
            hint = f"hint: launch cancel {self.id} ends it where it can be asked; then it can be resumed"
            if self.elsewhere:
                hint += f". Of hosts that are gone for good: launch resume {self.id} --without HOST"
            raise Refused(f"{self.id} may still run where it cannot be asked: {status.message}", hint)
        if not status.state.ended:
            raise Refused(f"{self.id} is {status.state}: there is nothing to resume", f"hint: launch status {self.id}")
        if status.state is State.SUCCEEDED and not (on or overrides or anew or code):
            hint = (
                "hint: --set run.args.NAME=VALUE has it go on with other arguments, --code with the code as it is now"
            )
            raise NothingToDo(f"{self.id} has succeeded: there is nothing to resume", hint)
        changes = tuple(overrides)
        reopen(RunDir(self.path), after=status.attempt, on=on, overrides=changes, anew=anew, renew=code, unlisted=gone)
        return self

    def _repr_html_(self) -> str:
        """Return the HTML summary of the run that a notebook shows: its state, step, metrics and where it runs."""
        from launcher.status.html import run_html  # late: for notebooks

        return run_html(self.status(WATCH_S), time.time())


def predict(
    one: Run,
    output: str | Path,
    *,
    checkpoint: str | Path | None = None,
    data: str | Path | None = None,
    on: str = LOCAL,
    overrides: Sequence[str] = (),
) -> Run:
    """Start a run that loads a checkpoint of `one` and writes its prediction for each sample of `data` to `output`, one
    per line.

    It runs the frozen code and arguments of `one`, with `checkpoint`, else its best one, else its newest. The run must
    be of a module that takes --predict and --checkpoint, as the shipped tasks do. `data` is the value of its `--data`
    (of `--text` for trainer.tasks.gpt, of `--root` for trainer.tasks.resnet). The new run starts on the cluster `on`,
    with the spec changed by `overrides` (KEY=VALUE). Raise BadInput or Refused if `one` cannot predict so.
    """
    from launcher.submission.predicting import open_prediction  # late: it reads YAML: see above

    weights, samples = (None if path is None else Path(path) for path in (checkpoint, data))
    return Run(
        *open_prediction(
            RunDir(one.path), Path(output), checkpoint=weights, data=samples, on=on, overrides=tuple(overrides)
        )
    )


def fetch_predictions(one: Run, output: str | Path) -> None:
    """Fetch into `output` the predictions that the run's predict() wrote on another machine; do nothing if it wrote
    none there.
    """
    from launcher.submission.predicting import copy_predictions  # late: it reads YAML: see above

    one.fetch_outputs()
    copy_predictions(RunDir(one.path), Path(output))


def release(one: Run) -> None:
    """Let a run start that waits because its spec has `queue.hold`; raise Refused if its spec has not, or if it has
    ended.
    """
    run, status = RunDir(one.path), one.status()
    attempt = newest(run)
    place = _place_of(attempt)
    held = attempt is not None and not status.state.ended and read_plan(run, attempt.number).spec.queue.hold
    if attempt is None or place is None or not held:
        raise Refused(f"{one.id} is {status.state}, and not held", f"hint: launch status {one.id}")
    place.release(run, attempt)


def drain(one: Run, node: str) -> int:
    """Ask a run to move its ranks off a node, which is given by its number or host name; return the node's number.

    The ranks move as soon as other nodes can take them, and the node gets no more ranks. Raise Refused if the run has
    ended, has separate disks or no such node, or if the node coordinates the others.
    """
    attempt, status = _with_nodes(one, "drained")
    index = _node_to_free(one, status, node, "drained").node
    ask_to_drain(attempt, {index: ""})
    return index


def move(one: Run, node: str, to: str | None = None) -> "MoveAnswer":
    """Ask a run to move its ranks from one node to the spare `to`, or to any spare; the first node is a spare
    afterwards.

    Nodes are given by number or host name. The ranks move at once or not at all; the returned object reads from the
    run's records whether they have moved. Raise Refused if the run is not running on a shared disk, has no such node or
    no ready spare, or if the node has no ranks or coordinates the others.
    """
    from launcher.run.draining import MoveAnswer  # late: of no use to `status`

    attempt, status = _with_nodes(one, "moved")
    hint = f"hint: launch status {one.id}"
    if status.state is not State.RUNNING:
        raise Refused(f"{one.id} is {status.state}: it has no ranks that could move now", hint)
    left = _node_to_free(one, status, node, "left without ranks")
    if not left.ranks:
        raise Refused(f"node {left.node} of {one.id} has no ranks: it is {left.state}", hint)
    spares = [known for known in status.nodes if known.state == "spare"]
    if not spares:
        raise Refused(f"{one.id} has no spare that is ready", "hint: `recovery.spares: 1` of the spec keeps one")
    wanted = None if to is None else _node_of(one, status, to)
    if wanted is not None and wanted not in spares:
        names = ", ".join(str(known.node) for known in spares)
        raise Refused(f"node {wanted.node} of {one.id} is {wanted.state}, and no spare: node {names} is", hint)
    moving = MoveAnswer(RunDir(one.path), left.node)
    ask_to_move(attempt, MoveRequest(left.node, None if wanted is None else wanted.node))
    return moving


def _with_nodes(one: Run, done: str) -> "tuple[AttemptDir, RunStatus]":
    """Return (newest attempt, status) of an active run whose nodes can be changed.

    Raise Refused for an ended run or one without a shared disk. `done` completes the message, which says that no node
    can be `done`: "drained" or "moved".
    """
    status = one.status()
    attempt, hint = newest(RunDir(one.path)), f"hint: launch status {one.id}"
    if attempt is None or status.state.ended:
        raise Refused(f"{one.id} is {status.state}", hint)
    place = _place_of(attempt)
    if place is not None and place.remote:
        raise Refused(f"{one.id}: where it runs each node has a disk of its own, and none can be {done}", hint)
    return attempt, status


def _node_to_free(one: Run, status: "RunStatus", name: str, done: str) -> NodeState:
    """Return the node called `name`, from which ranks are to be moved; raise Refused if there is none, or if it
    coordinates the others and cannot be `done`, such as "drained".
    """
    node = _node_of(one, status, name)
    if node == status.nodes[0]:
        hint = f"hint: launch status {one.id}"
        raise Refused(f"node {node.node} of {one.id} coordinates the others, and cannot be {done}", hint)
    return node


def _node_of(one: Run, status: "RunStatus", name: str) -> NodeState:
    """Return the node whose number or host name is `name`; raise Refused if there is none, or if it belongs to a role
    beside the main one, whose ranks cannot be moved.
    """
    for node in status.nodes:
        if name in (str(node.node), node.host):
            return node
    for role, part in status.roles.items():
        if name in (node.host for node in part.nodes):
            hint = f"hint: launch cancel {one.id}, and launch resume {one.id} where that node is not used"
            raise Refused(f"{name} is a node of role {role}, whose ranks stay on their nodes", hint)
    known = ", ".join(str(node.node) for node in status.nodes)
    expected = f"expected one of {known}" if known else "none of its nodes is there yet"
    raise Refused(f"{one.id} has no node {name!r}: {expected}", f"hint: launch status {one.id}")


def remove(runs_: "Sequence[Run]", *, anyway: bool = False) -> list[KeptRemote]:
    """Delete runs that have ended, first on other machines, then here.

    Return a report for each machine that stores or stored a part of one. A run that turns out to be active on a machine
    is kept. Unless `anyway`, a run is also kept if a machine that may have a part of it does not answer.
    """
    from launcher.places.elsewhere import kept_elsewhere  # late: only for tidying
    from launcher.run.graphs import remove_finished_graphs  # late: only for tidying
    from launcher.run.removal import remove_run, remove_unused_code  # late: only for tidying

    living = [one for one in kept_elsewhere([RunDir(one.path) for one in runs_]) if one.live]
    live = {run_id for one in living for run_id in one.live}
    told = kept_elsewhere([RunDir(one.path) for one in runs_ if one.id not in live], remove=True)
    kept = live | {run_id for one in told for run_id in (one.runs if one.silent and not anyway else one.live)}
    for one in runs_:
        if one.id not in kept:
            remove_run(one.id, one.path)
    remove_finished_graphs()
    remove_unused_code({one.path.parent for one in runs_})
    return [*told, *living]


def kept_text(kept: KeptRemote) -> str:
    """Return a line of text for the user that says which runs' files on the machine `kept.where` were not deleted, and
    why: the machine did not answer, or processes of the runs are alive there.
    """
    if kept.silent:
        return f"{kept.where} was not asked: what it may keep of {', '.join(kept.runs)} stays there ({kept.silent})"
    return f"{kept.where}: processes of {', '.join(kept.live)} are there: its files stay"


def refuse_live(status: "RunStatus") -> None:
    """Raise Refused unless the run has ended, because a process of it may still write."""
    if not status.state.ended:
        said = f": {status.message}" if status.state is State.UNKNOWN and status.message else ""
        raise Refused(f"{status.run} is {status.state}{said}", f"hint: launch cancel {status.run} ends it first")


def statuses(runs_: "Sequence[Run]", fresh_s: float = 0.0, *, restart_lost: bool = True) -> "list[RunStatus]":
    """Return the status of each run, in the same order. All runs on one kind of cluster are queried at once; a run for
    which a new attempt was opened meanwhile is queried once more.

    With `restart_lost`, a run of this machine whose processes have died is restarted if its records allow it; without,
    its end is recorded. A cluster's answer may be `fresh_s` seconds old.
    """
    facts = [read_facts(one.path) for one in runs_]
    left = list(range(len(runs_)))
    for _ in range(2):  # an answer may be of the attempt before the one that turns out to be the newest
        asked: dict[str, list[int]] = {}
        for index in left:
            if _is_asked(facts[index]):
                asked.setdefault(facts[index].kind_to_query, []).append(index)
        left = []
        for kind, indexes in asked.items():
            answers = _answers_of(kind, [facts[index].attempt_dir for index in indexes], fresh_s)
            for index, answer in zip(indexes, answers, strict=True):
                # Read again: what happened while the cluster was asked is in the folder by now.
                before, facts[index] = facts[index].attempt, read_facts(runs_[index].path)
                if facts[index].attempt == before:
                    facts[index] = replace(facts[index], answer=answer)
                else:
                    left.append(index)
    return [_carried_on(fact, restart=restart_lost) for fact in facts]


def _carried_on(fact: RunFacts, *, restart: bool) -> "RunStatus":
    """Return the status of a run from its facts, after helping a run whose supervisor died on this machine.

    The run is then restarted or, without `restart`, its end is recorded, and the status is that after it; if this
    fails, the status's message says why.
    """
    status = derive(fact)
    if status.state is not State.LOST or not fact.kind_to_query or _is_asked(fact):
        return status
    place = of_kind(fact.kind_to_query)
    try:
        if restart:
            place.mend([fact.attempt_dir])
        else:
            place.finish_lost(*fact.attempt_dir)
    except (LaunchError, OSError) as error:
        why = said_by_the_system(error) if isinstance(error, OSError) else str(error)
        return msgspec.structs.replace(status, message=f"{status.message}; it cannot go on by itself: {why}")
    return derive(read_facts(fact.run_dir))


def compare(runs_: "Sequence[Run]") -> "Comparison":
    """Return the results and metrics of the runs side by side, and the differences in arguments, spec, environment,
    packages and code, by the files on this machine.

    Logs and metrics on other machines are fetched first; what is on a machine that does not answer is left out.
    """
    from launcher.status.compared import compared  # late: it knows all options of a spec, which `status` does without

    for one in runs_:
        with contextlib.suppress(LaunchError):  # what is here can be compared without what is elsewhere
            one.renew()
    return compared([(RunDir(one.path), status) for one, status in zip(runs_, statuses(runs_, WATCH_S), strict=True)])


def uncommitted(run: Run) -> "CodeComparison":
    """Return how the code that the run froze differs from the commit that was checked out when it was submitted.

    If that cannot be told, as there was no commit or the code is not on this machine, `unknown` says why.
    """
    from launcher.status.compared import since_commit  # late: likewise

    return since_commit(RunDir(run.path), run.status().attempt)


def _is_asked(fact: RunFacts) -> bool:
    """Return whether only the run's cluster can tell the run's state, so that the cluster has to be queried."""
    kind = kind_named(fact.kind_to_query) if fact.kind_to_query else None
    return kind is not None and kind.asked


def line_to(one: Run, node: int) -> "Line":
    """Return an open shell connection to the machine that is this node of the run.

    Raise Unreachable if it cannot be made, and Refused if the run has no nodes yet.
    """
    run = RunDir(one.path)
    place = _place_of(newest(run))
    if place is None:
        raise Refused(f"{one.id}: it has no nodes yet", f"hint: launch status {one.id}")
    return place.line_to(run, node)


def _place_of(attempt: "AttemptDir | None") -> Place | None:
    """Return the cluster of an attempt, or None for no attempt. Raise BadInput if its kind is not installed here, and
    Damaged if the attempt's intent, the record that names the kind, cannot be read.
    """
    return of_kind(read_intent(attempt).cluster_kind) if attempt is not None else None


def _places_of(run: RunDir) -> list[Place]:
    """Return the remote clusters on which any attempt of the run may have left files, except those whose kinds are not
    installed here; raise Damaged if an attempt's intent, the record that names its kind of cluster, cannot be read.
    """
    kinds = dict.fromkeys(read_intent(attempt).cluster_kind for attempt in attempts(run) if attempt.intent.exists())
    asked = (of_kind(kind) for kind in kinds if (known := kind_named(kind)) is not None and known.asked)
    return [place for place in asked if place.remote]


def _answers_of(kind: str, attempts: "list[tuple[RunDir, AttemptDir]]", fresh_s: float) -> "list[ClusterAnswer | None]":
    """Return for each attempt what its cluster answers about it, at most `fresh_s` seconds old; all of these attempts
    are on clusters of the kind `kind`. The answer is None for an attempt about which the run's folder says as much as
    the cluster could, and for all if the kind is not installed here. Submits that a killed process left half done are
    completed first.

    Answers are cached because a command that follows a run asks ten times a second.
    """
    now = time.monotonic()
    known = kind_named(kind)
    if known is None:
        return [None for _ in attempts]  # of a package that is not installed here
    kept = [_answered.get(attempt.path) for _, attempt in attempts]
    fresh_s = fresh_s if known.fresh_s is None else min(fresh_s, known.fresh_s)
    if all(one is not None and now - one[0] < fresh_s for one in kept):
        return [one[1] for one in kept if one is not None]
    place = of_kind(kind)
    place.mend(attempts)
    answers = place.look(attempts)
    _answered.update({attempt.path: (now, answer) for (_, attempt), answer in zip(attempts, answers, strict=True)})
    return answers


def submit(spec: Spec, *args: Any, on: str = LOCAL, overrides: Sequence[str] = (), **given: Any) -> Run:
    """Start a run on the cluster `on`, and return as soon as its agents are being started.

    The spec is a file, the content of one as a dict or an object with such fields (a dataclass, a msgspec struct), or a
    function. For content, the project is that of the current folder. `overrides` (KEY=VALUE) change the spec. A
    function is called by each rank with these arguments; keyword arguments that are options of a spec (`resources`,
    `name`, `env`, ...) are the run's, and `Run.result()` returns what it returns. Raise BadInput for a wrong spec,
    TypeError for arguments without a function, and another LaunchError if the run cannot be started; an error's `runs`
    are the ids and folders of runs that exist all the same, such as one that may not have reached its cluster.
    """
    from launcher.submission.functions import as_job, call_of, is_function  # late: of no use to `status`

    if not is_function(spec):
        if args or given:
            raise TypeError(f"submit: only a function takes arguments, got {next(iter(given), args[:1])!r}")
        return submit_many([spec], on=on, overrides=overrides)[0]
    from launcher.submission.opening import open_runs  # late: it reads YAML, which `status` must not pay for
    from launcher.submission.project import project_of  # late: of no use to `status`

    call, project = call_of(spec, args, given), project_of(Path.cwd() / "spec.yaml")
    with as_job(call, project) as (job, files), as_files([job]) as (specs, roots):
        [opened] = open_runs(specs, on=on, overrides=tuple(overrides), roots=roots, beside=files)
    return Run(*opened)


def submit_many(
    specs: Sequence[Spec], *, on: str = LOCAL, overrides: Sequence[str] = (), repeat: int | None = None
) -> "Runs":
    """Start a run of each spec, or `repeat` runs of each, on the cluster `on`, and return them; on Slurm they are one
    job array if possible.

    `overrides` (KEY=VALUE) change every spec. The ranks of a repeated run find its number in LAUNCH_REPEAT, from 0 on.
    Raise BadInput for a wrong spec, and another LaunchError if a run cannot be started; its `runs` are the ids and
    folders of the runs that were started before it.
    """
    from launcher.submission.opening import open_runs  # late: it reads YAML, which `status` must not pay for

    with as_files(specs) as (files, roots):
        opened = open_runs(files, on=on, overrides=tuple(overrides), repeat=repeat, roots=roots)
    return Runs(Run(*one) for one in opened)


def prepare(spec: str | Path, *, on: str = LOCAL, overrides: Sequence[str] = ()) -> "tuple[Plan, CodeList]":
    """Return what `submit` would use on the cluster `on` for a spec, changed by `overrides` (KEY=VALUE): the plan, and
    the list of code files to freeze. Raise BadInput for a wrong spec.

    Nothing is started or written.
    """
    from launcher.submission.requests import prepare as prepare_run  # late: it reads YAML: see above

    return prepare_run(_file(spec), on=on, overrides=tuple(overrides))


def preview(plan: "Plan") -> Preview | None:
    """Return the script that the batch system would get for this plan and its answer to a trial submit, or None if no
    batch system is involved; raise BadInput if the kind of cluster is not installed.
    """
    return of_kind(plan.cluster_kind).preview(plan)


def validate(spec: Spec, *, overrides: Sequence[str] = ()) -> None:
    """Raise BadInput with every problem of a spec, changed by `overrides` (KEY=VALUE), as far as they do not depend on
    where it will run.
    """
    from launcher.submission.requests import validate as validate_spec  # late: it reads YAML: see above

    with as_files([spec]) as ([file], roots):
        validate_spec(file, tuple(overrides), roots.get(file))


@contextlib.contextmanager
def as_files(specs: Sequence[Spec]) -> Iterator[tuple[list[Path], dict[Path, Path]]]:
    """Give each spec a file for the duration of the context: its own, or a temporary one if it is a dict or object.

    Yield the file of each spec, and for each temporary file the folder of its project: the project that the current
    folder belongs to. A BadInput raised inside shows `spec`, or `specs[1]` if there are several, in place of a
    temporary file's path. Raise BadInput for a spec of another type, or an empty path.
    """
    if all(isinstance(spec, str | Path) for spec in specs):
        yield [_file(spec) for spec in specs if isinstance(spec, str | Path)], {}
        return
    import tempfile  # late: of no use to `status`

    from launcher.spec.written import written  # late: of no use to `status`
    from launcher.submission.project import project_of  # late: of no use to `status`

    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        files, roots, names = list[Path](), dict[Path, Path](), dict[str, str]()
        for number, spec in enumerate(specs):
            if isinstance(spec, str | Path):
                files.append(_file(spec))
                continue
            file = Path(folder, str(number), "spec.yaml")
            file.parent.mkdir()
            file.write_text(written(spec))
            files.append(file)
            roots[file] = project_of(Path.cwd() / file.name)
            names[str(file)] = "spec" if len(specs) == 1 else f"specs[{number}]"
        try:
            yield files, roots
        except BadInput as error:
            error.lines = tuple(_renamed(line, names) for line in error.lines)
            raise


def _renamed(line: str, names: Mapping[str, str]) -> str:
    """Return an error's line; if it begins with a temporary file that is a key of `names`, the file and the position
    after it (`:LINE:COLUMN`) are replaced by the name.
    """
    for file, name in names.items():
        line = re.sub(rf"^{re.escape(file)}(:\d+:\d+)?(?=: )", name, line)
    return line


def notifying(spec: str | Path) -> "Notifying | None":
    """Return the addressees that the spec names for notifications of a run, or None if there are none; raise BadInput
    for a wrong spec.
    """
    from launcher.submission.requests import notifying_in  # late: it reads YAML, which `status` must not pay for

    return notifying_in(_file(spec))


def _file(spec: str | Path) -> Path:
    """Return the spec's path; raise BadInput for an empty one, which would mean the current folder."""
    if not str(spec):
        raise BadInput("expected the file of a spec, got nothing", "hint: `launch spec init` writes one to start from")
    return Path(spec)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run with records of its own: the run itself, a role (one program of a run that has several), or a
    rank that restarts alone. `run` is the run with the part's folder as its path, `name` how the part is shown, and
    `rank` the rank's number in its role if it restarts alone.
    """

    run: Run  # with the part's folder as its path
    name: str
    rank: int | None = None  # in the role, if it restarts alone


def parts(run: Run, role: str) -> list[Part]:
    """Return the parts of the run with this role, or the one part with this name, such as `actors-1`: a part is a role,
    or one rank of a role whose ranks restart alone. Raise BadInput if none has it, and Damaged if a plan cannot be
    read.
    """
    plans = [(path, read_plan(RunDir(path), 1)) for path in (run.path, *role_dirs(RunDir(run.path)))]
    (_, own), *beside = plans
    if role == own.role and role:
        return [Part(run, f"{run.id}/{role}")]
    chosen = [(path, plan) for path, plan in beside if role in (path.name, plan.role)]
    if not chosen:
        known = ", ".join(dict.fromkeys(plan.role for _, plan in plans)) if own.role else ""
        hint = f"hint: there is {known}" if known else "hint: it is a run of one program, or has not begun"
        raise BadInput(f"{role!r}: {run.id} has no such role", hint)
    return [
        Part(Run(run.id, path), f"{run.id}/{path.name}", plan.role_rank if path.name != plan.role else None)
        for path, plan in sorted(chosen, key=lambda one: one[1].role_rank)
    ]


def run(ref: str) -> Run:
    """Return the run with this id, unique beginning of an id, name given by its user, or `last`; raise NoSuchRun if
    there is none, or if several fit, and BadInput for an empty text.

    If this machine knows no such run, each cluster of the clusters file is asked for one that was submitted elsewhere,
    and a folder is made here for it.
    """
    if not ref.strip():
        raise BadInput("expected the id of a run, got nothing", "hint: `launch status` shows all runs")
    try:
        return Run(*registry.find(ref))
    except NoSuchRun:
        found = _discovered(ref) if ref != LAST else None
        if found is None:
            if others := unlisted("" if ref == LAST else ref):
                one = max(others, key=lambda other: recorded_status(other).submitted_at)
                raise NoSuchRun(f"{one.id}: {UNLISTED}", f"hint: its folder is {one.path}") from None
            raise
        return Run(parse_run_id(found.name), found)


def unlisted(ref: str = "") -> list[Run]:
    """Return runs in the current project's folder that this user's list of runs lacks, because they were submitted with
    another HOME or state folder.

    Only runs whose ids begin with `ref` are returned.
    """
    return [Run(run_id, path) for run_id, path in registry.unlisted(Path.cwd()) if run_id.startswith(ref)]


def recorded_status(run: Run) -> RunStatus:
    """Return the status that the run's folder records; no cluster is queried, and nothing is changed. The state is
    `unknown` if only the cluster could tell it.
    """
    return _recorded_status(read_facts(run.path))


def _recorded_status(facts: RunFacts) -> RunStatus:
    """Return the status that the facts give if the cluster cannot be queried, without a suggested next command."""
    if _is_asked(facts):
        facts = replace(facts, answer=ClusterAnswer("unknown", "", 0.0, silent=UNLISTED))
    return msgspec.structs.replace(derive(facts), next="")


def status_so_far(run: Run) -> tuple[RunStatus, str]:
    """Return (the status from local records alone, the kind of the cluster that would have to be queried for more, or
    "").
    """
    facts = read_facts(run.path)
    return (_recorded_status(facts), facts.kind_to_query) if _is_asked(facts) else (derive(facts), "")


def _discovered(ref: str) -> Path | None:
    """Ask the clusters of the clusters file for a run that was submitted on another machine, and whose id is `ref` or
    begins with it.

    Return the folder that is made on this machine for the first such run, or None if no cluster has one.
    """
    from launcher.places.clusters_file import clusters_file, named_clusters  # late: it reads YAML

    if clusters_file() is None:
        return None
    places = (of_kind(kind) for kind in dict.fromkeys(entry.kind for entry in named_clusters().values()))
    found = (place.discover(ref) for place in places)
    return next((path for path in found if path is not None), None)


def runs() -> "Runs":
    """Return every run of this user, from any folder, the newest first."""
    return Runs(Run(run_id, path) for run_id, path in registry.registered())


class Runs(list[Run]):
    """A list of runs, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Return the runs as an HTML table for a notebook."""
        from launcher.status.html import table_html  # late: for notebooks

        return table_html(statuses(self, WATCH_S), time.time())


def wait_any(runs_: Sequence[Run], timeout_s: float | None = None) -> Run:
    """Wait until one of the runs has ended and return it, at once if one had ended before.

    A run that has lost hosts of its pool is resumed on others meanwhile, if the clusters file has a command that names
    the pool's hosts. Raise TimeoutError if none ends within `timeout_s`, and ValueError for an empty list.
    """
    if not runs_:
        raise ValueError("expected a run to wait for, got none")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    lost = [one.replacement() for one in runs_]
    while True:
        for one, status, replacement in zip(runs_, statuses(runs_, WATCH_S), lost, strict=True):
            if replacement.poll(status).state.ended:
                return one
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"none of {len(runs_)} runs has ended after {timeout_s:g} s")
        time.sleep(WAIT_STEP_S)
