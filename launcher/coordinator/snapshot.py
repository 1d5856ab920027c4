"""Build the record in `state.json` from what the coordinator knows. A generation is one set of ranks that train
together. Its members are the nodes with those ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from launcher.coordinator.classify import failed
from launcher.coordinator.effects import Now
from launcher.coordinator.generation import Generation, Rank
from launcher.coordinator.nodes import KnownNode, NodeTable, Presence
from launcher.coordinator.pace import Pace
from launcher.plan.model import Plan
from launcher.run.hangs import LastRank
from launcher.run.records import AttemptEnd, Failure, NodeLoad, NodeState, RankState, RunState
from launcher.states import State

_MOST_TOLD = 4


@dataclass(slots=True)
class Standing:
    """The current state of an attempt, except its nodes, ranks and progress."""

    attempt: int
    state: State = State.STARTING
    message: str = ""  # what is under way, as text for the user
    failure: Failure | None = None  # the newest
    restarts: dict[str, int] = field(default_factory=dict)  # by cause
    started_at: float | None = None  # Unix time of the first start of ranks
    end: AttemptEnd | None = None
    job: str | None = None  # the batch system's id of its job
    last_rank: LastRank | None = None  # the rank of the running generation that enters collectives last
    used_s: float = 0.0  # seconds that earlier attempts took
    began_at: float = 0.0  # by the monotonic clock

    def used_by(self, mono: float) -> float:
        """Return the seconds that all attempts of the run have taken together by `mono`, without the gaps between
        attempts.
        """
        return self.used_s + mono - self.began_at


def run_state(
    plan: Plan,
    standing: Standing,
    nodes: NodeTable,
    generation: Generation | None,
    pace: Pace,
    stopping: bool,
    now: Now,
    end: AttemptEnd | None,
) -> RunState:
    """Return the record for `state.json`, with the ranks of the newest `generation` (None: none was opened yet).

    `standing` has the attempt's state, and `pace` the progress of the training. With `stopping`, live ranks are shown
    as stopping. `end` says how the attempt ended, and is None before that.
    """
    over = end is not None and end.state.ended
    first = None if plan.coordinator else nodes[plan.nodes[0].index].process  # else that of another machine
    return RunState(
        run=plan.run_id,
        name=plan.name,
        cluster=plan.cluster,
        state=end.state if end is not None else standing.state,
        attempt=standing.attempt,
        generation=generation.number if generation else 0,
        submitted_at=plan.submitted_at,
        cause=end.cause if end is not None else None,
        exit_code=end.exit_code if end is not None and over else None,
        step=pace.step,
        total_steps=pace.total_steps,
        rate=pace.rate(now.mono) if standing.state is State.RUNNING and end is None else None,
        metrics=dict(pace.metrics),
        not_finite=dict(pace.not_finite),
        malformed=sum(rank.malformed for rank in generation.ranks) if generation else 0,
        checkpoint=pace.checkpoint,
        second_copies=plan.disks_apart and generation is not None and len(generation.members) > 1,
        safe_checkpoint=generation.copied if generation and plan.disks_apart else None,
        memory_copy=generation.copied if generation and plan.keeps_copies and not over else None,
        fingerprint=pace.fingerprint,
        world_size=len(generation.ranks) if generation else None,
        restarts=dict(standing.restarts),
        nodes=tuple(_node_state(node, generation, over) for node in nodes),
        ranks=tuple(_rank_state(rank, generation, stopping) for rank in generation.ranks) if generation else (),
        loads=() if over else tuple(_loads(nodes, generation)),
        last_rank=standing.last_rank if standing.state is State.RUNNING and end is None else None,
        failure=None if end is not None and end.state is State.SUCCEEDED else standing.failure,
        message=end.message if end is not None else _message(standing, nodes, generation),
        started_at=standing.started_at,
        ended_at=end.ended_at if end is not None and over else None,
        job=standing.job,
        used_s=standing.used_by(now.mono),
        updated_at=now.wall,
        boot_id=first.boot_id if first is not None else "",
        monotonic_s=now.boot,
    )


def _loads(nodes: NodeTable, generation: Generation | None) -> Iterator[NodeLoad]:
    """Yield the last load that each connected node reported: what the machine and its ranks use, without ranks that
    have ended.
    """
    for node in nodes:
        if node.load is None or node.link is not Presence.UP:
            continue
        ranks = {one.number for one in generation.of_node(node.index) if one.live} if generation is not None else set()
        known = tuple(one for one in node.load.ranks if one.rank in ranks)
        yield structs.replace(node.load, node=node.index, ranks=known)


def _message(standing: Standing, nodes: NodeTable, generation: Generation | None) -> str:
    """Return the message of the run's status: at which breakpoints ranks wait; if none does, the addresses that ranks
    serve; if none does, what is under way (`standing.message`). It ends with the nodes where replaced ranks may still
    run, if any.
    """
    said = _debugged(generation) or _serving(generation) or standing.message
    return "; ".join(filter(None, (said, _unaccounted(nodes))))


def _unaccounted(nodes: NodeTable) -> str:
    """Return a text that names the nodes where replaced ranks may still run, or "" if there are none."""
    found = nodes.unaccounted
    named = ", ".join(map(str, found[:_MOST_TOLD]))
    more = f" and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return f"ranks that were replaced may still run on {named}{more}, until it is reachable again" if found else ""


def _debugged(generation: Generation | None) -> str:
    """Return a text for users that names the ranks which wait in a breakpoint, and where; "" if none waits."""
    found = [rank for rank in generation.ranks if rank.live and rank.breakpoint] if generation is not None else []
    if not found:
        return ""
    places = ", ".join(f"rank {rank.number} in a breakpoint at {rank.breakpoint}" for rank in found[:_MOST_TOLD])
    more = f" and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return f"waits for a debugger: {places}{more}; `launch debug` attaches to one"


def _serving(generation: Generation | None) -> str:
    """Return text such as `serves http://10.0.0.1:8000`, the addresses of live ranks that serve; "" if none does."""
    found = [rank.address for rank in generation.ranks if rank.live and rank.address] if generation is not None else []
    more = f" and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return f"serves {', '.join(found[:_MOST_TOLD])}{more}" if found else ""


def _node_state(node: KnownNode, generation: Generation | None, over: bool) -> NodeState:
    """Return the status record of a node, with the numbers of its ranks if it is a member of `generation` (None: none
    was opened). With `over` the attempt has ended, so that no ranks run, and a node that had ranks in the generation
    counts as a member.
    """
    member = generation is not None and (
        node.holds == generation.number or (over and bool(generation.of_node(node.index)))
    )
    ranks = tuple(rank.number for rank in generation.of_node(node.index)) if generation is not None and member else ()
    word = _state_name(node, member, generation is not None)
    return NodeState(node.index, node.address, word, ranks, node.host, node.fault if node.unfit else "")


def _state_name(node: KnownNode, member: bool, begun: bool) -> str:
    """Return the state of a node, the first that holds: `unfit`; `lost`, also if it was excluded as faulty; `unknown`
    if it does not answer; for a `member`, which has ranks of the generation, and for a node that only votes, `up` or,
    before its agent has joined, `waiting`; `drained`, also if its host is about to leave; `spare`; else `waiting`.

    A spare has no ranks, but could be given some now, and is one by the plan or because a generation was opened without
    it (`begun` is True once one was opened).
    """
    if node.unfit:
        return "unfit"
    if node.fault or node.link is Presence.LOST:
        return "lost"
    if node.link is Presence.UNKNOWN or node.stale_agent is not None:
        return "unknown"
    if member or node.votes_only:
        return "up" if node.link is Presence.UP else "waiting"
    if node.drained or node.leaves:
        return "drained"
    return "spare" if node.usable and (begun or node.spare) else "waiting"


def _rank_state(rank: Rank, generation: Generation, stopping: bool) -> RankState:
    """Return the status record of a rank; with `stopping`, a live rank is shown as stopping."""
    pid = rank.pid if rank.live else None  # the pid of one that ended may be a stranger's by now
    return RankState(rank.number, rank.node, pid, _rank_word(rank, generation, stopping), rank.step)


def _rank_word(rank: Rank, generation: Generation, stopping: bool) -> str:
    """Return the state of a rank: `failed` (also if it was lost) or `done` once it has ended; before that `stopping` if
    `stopping` is True, else `starting` while its node starts its ranks, else `running`.
    """
    if rank.exit is not None:
        return "failed" if failed(rank.exit) else "done"
    if rank.lost:
        return "failed"
    if stopping:
        return "stopping"
    return "starting" if rank.node in generation.starting else "running"
