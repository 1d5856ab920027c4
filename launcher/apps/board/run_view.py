"""The data of one run for its page. RunHead has what may change while the page is open; RunSheet has what does not."""

import contextlib
import os
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from launcher import api
from launcher.apps.board.answers import Number, named_numbers
from launcher.apps.board.rows import BoardRow, LastValue
from launcher.coordinator.hang import doing
from launcher.errors import MEANING, LaunchError
from launcher.run.attempts import read_plan
from launcher.run.hangs import HangReport
from launcher.run.layout import RunDir
from launcher.run.records import Environment, Exclusion, Failure, GpuLoad, NodeLoad, NotFinite, RankState
from launcher.states import Cause, State, exit_of
from launcher.status.about import About
from launcher.status.checkpoints import Checkpoint, by_script
from launcher.status.derive import Restarts, RunStatus, state_text
from launcher.status.rank_log import open_log
from launcher.status.text import plain

if TYPE_CHECKING:
    from launcher.plan.model import Plan

_BEHIND_STEPS = 2  # behind most others by so many, a rank holds them up: one step is the width of a report
_MOST_SPEC_BYTES = 1 << 20


class BoardRank(msgspec.Struct, frozen=True):
    """A rank, with its share of the node's CPU, memory and GPUs if these are sampled. `behind` is by how many steps it
    is behind most ranks, `straggler` marks one for which others wait, and `in_hang` says what it was doing during a
    hang.
    """

    rank: int
    node: int
    pid: int | None
    state: str  # starting, running, stopping, done, failed
    step: int | None
    behind: int  # steps, compared with most ranks
    straggler: bool
    cpu: float | None = None  # cores in use; None: not sampled
    memory: int | None = None  # bytes
    gpus: tuple[int, ...] = ()  # indexes on the node
    gpu_memory: int | None = None  # bytes
    gpu_busy: float | None = None  # percent, the mean of its GPUs
    in_hang: str = ""  # what it was doing when ranks waited for each other, or ""


class BoardNode(msgspec.Struct, frozen=True):
    """A node of the run; `load` is what its machine uses now, or None if that is not sampled."""

    node: int
    host: str  # the cluster's name of the machine, or ""
    address: str  # at which other nodes reach it
    state: str  # waiting, up, spare, drained, unknown, lost, unfit; left, if the run has ended
    ranks: tuple[int, ...]  # numbers of the ranks on it
    load: NodeLoad | None


class BoardRole(msgspec.Struct, frozen=True):
    """A role of a run beside its main role, with a script and ranks of its own. If each rank of the role is restarted
    alone (`restart: alone`), each is an entry of its own.

    `words` says why it is in its state; `members` are its ranks.
    """

    name: str
    state: State
    ranks: int | None  # how many it has; None: not known yet
    step: int | None
    restarts: int
    words: str
    members: list[BoardRank]


class RunHead(msgspec.Struct, frozen=True):
    """The part of a run's data that may change; it is sent again after each change. `words` says why the run is in its
    state, `next` advises the user, `last_rank` names the rank for which others wait in collectives, and `hang` explains
    a hang; these are "" if there is nothing to say.
    """

    row: BoardRow
    state_text: str  # the state and its cause, such as failed (user_error)
    words: str
    cause_text: str  # explains the cause of its failure, or ""
    next: str
    next_command: str  # the command in `next`, or ""
    last: LastValue | None  # the newest value of its loss
    attempt: int  # the newest one
    generation: int  # the newest start of all ranks in that attempt
    exit_code: int | None  # None: it has not ended
    job: str | None  # its id in the batch system
    run_dir: str
    checkpoint: int | None  # the step of its newest one
    checkpoint_words: str  # describes its newest checkpoint
    safe_checkpoint: int | None  # the newest step whose checkpoint survives the loss of any one disk
    restarts: Restarts
    failure: Failure | None  # its last one, or None
    not_finite: dict[str, NotFinite]  # metrics that are NaN or infinite now
    nodes: list[BoardNode]
    ranks: list[BoardRank]
    avoided: tuple[Exclusion, ...]  # nodes that were lost, and are not used for a while
    last_rank: str = ""  # names the rank for which others wait in collectives, or ""
    hang: str = ""  # explains the hang that it is in, or that made it fail, or ""
    roles: tuple[BoardRole, ...] = ()


class RunSheet(msgspec.Struct, frozen=True):
    """The part of a run's data that does not change: its spec (the beginning of the file), command and commit, and the
    environment of each node. A text is "" if it is not known.
    """

    spec: str
    overrides: tuple[str, ...]  # values of --set
    command: tuple[str, ...]  # the program and its arguments
    project: str  # the folder whose code was frozen
    commit: str
    dirty: bool | None  # whether files differed from the commit; None: no commit is known
    environments: tuple[Environment, ...]  # of each node


class RunView(msgspec.Struct, frozen=True):
    """The data about one run at the Unix time `at`."""

    at: float
    head: RunHead
    sheet: RunSheet


class BoardCheckpoint(msgspec.Struct, frozen=True):
    """A row of the table of checkpoints. None stands for a fact that the checkpoint does not tell. It has no paths,
    which mean nothing to a browser on another machine.
    """

    step: int
    kind: str  # step, or best for one selected by a monitored value
    state: str  # the condition of its bytes, such as ok or damaged
    reason: str  # why it is not complete, or ""
    saved_at: float | None  # Unix time
    size_bytes: int | None
    world_size: int | None
    attempt: int | None
    finite: bool | None  # whether every weight is a finite number
    info: dict[str, str | Number | bool | None]  # values that the user saved with it


class BoardCheckpoints(msgspec.Struct, frozen=True):
    """The checkpoints of a run. `error` says why some could not be read, and `by_script` describes one in the script's
    own format; each is "" if there is none.
    """

    checkpoints: list[BoardCheckpoint]
    error: str
    by_script: str = ""  # describes a checkpoint in the script's own format, which is not listed


def run_head(
    status: RunStatus,
    row: BoardRow,
    checkpoint_words: str,
    last: LastValue | None = None,
    hang: HangReport | None = None,
) -> RunHead:
    """Return the changing data of a run.

    `checkpoint_words` describes its newest checkpoint, `last` is a newer value of its loss than `row` has (None: there
    is none), and `hang` the report of its hang (None: there is none).
    """
    failure = status.failure
    return RunHead(
        row=row,
        state_text=state_text(status),
        words=row.headline,
        cause_text="" if status.cause is None else MEANING[exit_of(status.cause)],
        next=status.next,
        next_command=command_in(status.next),
        last=last or row.last,
        attempt=status.attempt,
        generation=status.generation,
        exit_code=status.exit_code,
        job=status.job,
        run_dir=status.run_dir,
        checkpoint=status.checkpoint,
        checkpoint_words=checkpoint_words,
        safe_checkpoint=status.safe_checkpoint,
        restarts=status.restarts,
        failure=None if failure is None else _shown(failure),
        not_finite=status.not_finite,
        nodes=_nodes(status),
        ranks=_ranks(status, hang),
        avoided=status.avoided,
        last_rank=str(status.last_rank) if status.last_rank is not None else "",
        hang=plain(hang.verdict.text) if hang is not None else "",
        roles=tuple(
            BoardRole(
                name, one.state, one.world_size, one.step, one.restarts.total, plain(one.last_word), _ranks(one, None)
            )
            for name, one in status.roles.items()
        ),
    )


def hang_of(run: api.Run, status: RunStatus) -> HangReport | None:
    """Return the report of the hang that the run is in or that made it fail, or None."""
    failure = status.failure.summary if status.failure is not None and status.failure.cause is Cause.HANG else ""
    if not (failure or (status.message and status.state is State.RUNNING)):
        return None
    report = run.last_hang()
    return report if report is not None and report.verdict.text in (failure or status.message) else None


def command_in(advice: str) -> str:
    """Return the `launch` command that is all of a text, or what follows its last `, then `; "" if it has none.

    An example of such a text is `mend train.py:3, then launch resume RUN --code`.
    """
    return next((part for part in (advice, advice.rpartition(", then ")[2]) if part.startswith("launch ")), "")


def _shown(failure: Failure) -> Failure:
    """Return the failure with terminal control sequences removed from its texts."""
    tail = tuple(plain(line) for line in failure.tail)
    return msgspec.structs.replace(failure, summary=plain(failure.summary), tail=tail)


def _nodes(status: RunStatus) -> list[BoardNode]:
    """Return the run's nodes, each with what its machine uses now (processors, memory, network), or None if that is not
    sampled.
    """
    loads = {load.node: msgspec.structs.replace(load, ranks=()) for load in status.loads}
    return [
        BoardNode(one.node, one.host, one.address, one.state, one.ranks, loads.get(one.node)) for one in status.nodes
    ]


def _ranks(status: RunStatus, hang: HangReport | None) -> list[BoardRank]:
    """Return the run's ranks. A rank is marked as a straggler if it is two or more steps behind most others, if others
    wait for it in collectives, or if it is to blame for the hang that `hang` reports (None: no hang).
    """
    steps = [rank.step for rank in status.ranks if rank.step is not None and rank.state == "running"]
    usual = statistics.median_high(steps) if steps else 0
    loads = {load.node: load for load in status.loads}
    last = status.last_rank.rank if status.last_rank is not None else None
    found = [_rank(rank, usual, loads.get(rank.node), rank.rank == last) for rank in status.ranks]
    if hang is None:
        return found
    seen, fault = {look.rank: plain(doing(look)) for look in hang.ranks}, hang.verdict.ranks
    return [
        msgspec.structs.replace(one, in_hang=seen.get(one.rank, ""), straggler=one.straggler or one.rank in fault)
        for one in found
    ]


def _rank(rank: RankState, usual: int, node: NodeLoad | None, last: bool) -> BoardRank:
    """Return one rank; `node` is the load of its node, or None.

    The rank is a straggler if it is `_BEHIND_STEPS` or more behind the step `usual`, the median of the running ranks,
    or with `last`, which says that others wait for it in collectives.
    """
    behind = max(0, usual - rank.step) if rank.step is not None and rank.state == "running" else 0
    load = next((one for one in node.ranks if one.rank == rank.rank), None) if node is not None else None
    row = BoardRank(rank.rank, rank.node, rank.pid, rank.state, rank.step, behind, last or behind >= _BEHIND_STEPS)
    if load is None or node is None:
        return row
    busy = _busy(gpu for gpu in node.gpus if gpu.index in load.gpus)
    return msgspec.structs.replace(
        row, cpu=load.cpu, memory=load.memory, gpus=load.gpus, gpu_memory=load.gpu_memory, gpu_busy=busy
    )


def _busy(gpus: Iterable[GpuLoad]) -> float | None:
    """Return the mean load of the GPUs in percent, or None if none is known."""
    known = [gpu.busy for gpu in gpus if gpu.busy is not None]
    return sum(known) / len(known) if known else None


def run_sheet(run: api.Run, attempt: int, about: About) -> RunSheet:
    """Return the unchanging data of a run: its spec, the code's commit from `about`, and the command and environments
    of attempt number `attempt`. A part that cannot be read is empty.
    """
    from launcher.status.compared import environments  # late: it knows all options of a spec; the first page does not

    at = RunDir(run.path)
    plan: Plan | None = None
    with contextlib.suppress(LaunchError, OSError):
        plan = read_plan(at, attempt)
    return RunSheet(
        spec=_spec(at),
        overrides=plan.overrides if plan is not None else (),
        command=(plan.entry.target, *plan.entry.args) if plan is not None else (),
        project=plan.project if plan is not None else "",
        commit=about.commit,
        dirty=about.dirty,
        environments=environments(at, attempt),
    )


def _spec(run: RunDir) -> str:
    """Return the run's spec file as text, its first MiB if it is larger, or "" if it cannot be read."""
    with contextlib.suppress(OSError), open_log(run.spec) as fd:
        return os.read(fd, _MOST_SPEC_BYTES).decode("utf-8", "replace") if fd is not None else ""
    return ""


def checkpoint_words(run: api.Run, step: int | None) -> str:
    """Return a description of the checkpoint of `step`, such as `step 120`; it says if the user's script saved it in a
    format of its own.

    Return "" if `step` is None.
    """
    if step is None:
        return ""
    return by_script(step) if run.saved_by_script(step) else f"step {step}"


def board_checkpoints(run: api.Run, reported: int | None) -> BoardCheckpoints:
    """Return the run's checkpoints.

    `reported` is the newest step at which ranks reported a checkpoint (None: they reported none). If the script saved
    that checkpoint in a format of its own, not by the trainer, its contents are unknown, and `by_script` mentions it.
    """
    found = list[BoardCheckpoint]()
    try:
        for one in run.checkpoints():
            found.append(_checkpoint(one))
    except (LaunchError, OSError) as trouble:
        return BoardCheckpoints(found, str(trouble))
    own = reported is not None and run.saved_by_script(reported)
    return BoardCheckpoints(found, "", by_script(reported) if own and reported is not None else "")


def _checkpoint(one: Checkpoint) -> BoardCheckpoint:
    """Return a checkpoint as a row of the table."""
    numbers_of_info = {name: value for name, value in one.info.items() if isinstance(value, float)}
    return BoardCheckpoint(
        one.step, one.kind, one.state, one.reason, one.saved_at, one.size_bytes, one.world_size, one.attempt,
        one.finite, {**one.info, **named_numbers(numbers_of_info)},
    )  # fmt: skip
