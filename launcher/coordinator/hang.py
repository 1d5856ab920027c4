"""Find the rank that keeps the others waiting in a hang, from what every rank was doing. Pure functions. A look
(RankLook) is the record of what one rank was doing when it was inspected; a wait (_Wait) is a collective in which some
ranks of a group wait for others. A verdict (HangVerdict) says which ranks are at fault, where in the code and why.

The collectives of a group are numbered alike on all its ranks. A rank waits in one that it has entered and not left. Of
the ranks that have not entered it, those that wait for nothing else are at fault; if all of them wait elsewhere, ranks
are in different collectives. What the observations do not show is reported as unknown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import PurePath

from msgspec.structs import replace

from launcher.run.hangs import Collective, Frame, GroupLook, HangKind, HangVerdict, RankLook

_STOPPED = ("T", "t")
_MOVING_BYTES = 64 << 10  # in the time of a look: heartbeats of a store and of our own are less
_NAMED = 4  # ranks that one line names
# Operations whose inputs must be alike on all ranks; others may legally differ by rank.
_ALIKE = frozenset({"all_reduce", "allreduce", "broadcast", "reduce", "_allgather_base", "reduce_scatter"})
_ITEM_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1,
    "Bool": 1,
}  # fmt: skip
# What a rank does instead, by a part of the files and names on its stack, the first that fits.
_ACTIVITIES: tuple[tuple[str, Callable[[Frame], bool]], ...] = (
    ("data loading", lambda one: "torch/utils/data/" in one.file or "/trainer/data/" in one.file),
    ("a checkpoint", lambda one: one.file.endswith("torch/serialization.py")),
    ("a checkpoint", lambda one: "/distributed/checkpoint/" in one.file or "/trainer/checkpoint" in one.file),
    ("a checkpoint", lambda one: "/safetensors/" in one.file),
    ("a compilation", lambda one: "/torch/_dynamo/" in one.file or "/torch/_inductor/" in one.file),
    ("a lock", lambda one: one.file.endswith("/threading.py") and one.name in ("acquire", "wait", "__enter__", "join")),
    ("a child process", lambda one: one.file.endswith("/subprocess.py")),
    ("the network", lambda one: one.file.endswith(("/socket.py", "/ssl.py", "/http/client.py"))),
    ("the end of its program", lambda one: one.name in ("_shutdown", "_exit_function", "destroy_process_group")),
)
_BETWEEN_RANKS = ("torch/distributed/distributed_c10d.py", "torch/distributed/rendezvous.py")
_LEAVING = frozenset({"_shutdown", "_exit_function", "destroy_process_group"})


@dataclass(frozen=True)
class _Wait:
    """A collective in which ranks of a group wait, with the ranks that wait, are absent or gave no answer."""

    group: str  # the process group's name
    members: tuple[int, ...]  # the group's ranks
    seq: int  # the collective's number in the group
    op: Collective
    waiting: tuple[RankLook, ...]
    absent: tuple[RankLook, ...]  # ranks whose Flight Recorder shows that they have not entered the collective
    silent: tuple[RankLook, ...]  # ranks that gave no answer


def judge(looks: Sequence[RankLook]) -> HangVerdict:
    """Return the verdict on which ranks keep the others waiting, as far as these observations of all ranks show it."""
    ranks = sorted(looks, key=lambda one: one.rank)
    waits = _waits(ranks)
    for found in (
        _frozen(ranks, waits),
        _dead_peer(ranks, waits),
        _left_early(ranks, waits),
        _in_storage(ranks, waits),
        _mismatch(ranks),
        _never_entered(ranks, waits),
        _all_entered(ranks, waits),
        _by_stacks(ranks, waits),
        _none_in_collective(ranks, waits),
    ):
        if found is not None:
            return found
    return HangVerdict(HangKind.UNKNOWN, "what the ranks wait for is unknown", evidence=_evidence(ranks))


def where_is(look: RankLook) -> str:
    """Return the line of user code that a rank is in and what it does there, such as `data.py:88 in load (data
    loading)`, or "" if unknown.
    """
    frame = own_frame(look.stack)
    if frame is None:
        return ""
    activity = _activity(look)
    return f"{place(frame)} in {frame.name}" + (f" ({activity})" if activity else "")


def doing(look: RankLook) -> str:
    """Return one line on what a rank was doing, or why that is unknown: `waits in all_reduce #7 for 41 s, at
    train.py:57 in step`.
    """
    if look.ended:
        return "has ended"
    pending = next((one for group in look.groups if (one := _first_pending(group)) is not None), None)
    waits = f"waits in {_op_name(pending)} #{pending.seq} for {pending.age_s:.0f} s" if pending is not None else ""
    where = where_is(look)
    stopped = "is stopped" if look.state in _STOPPED else ""
    return ", ".join(filter(None, (stopped, waits, where and f"at {where}", look.problem)))


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame that is in no library, else the innermost frame; None if there are no frames."""
    return next((one for one in frames if _is_own(one)), frames[0] if frames else None)


def place(frame: Frame) -> str:
    """Return a frame's place as `file.py:12`."""
    return f"{PurePath(frame.file).name}:{frame.line}"


# -- what is found


def _frozen(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict on the ranks that are stopped by a signal or a debugger. If there are none, return that on
    ranks stuck in the kernel (state D, and they neither answered nor gave a stack), unless all ranks are. Else return
    None.
    """
    stopped = [one for one in ranks if one.state in _STOPPED]
    deep = [one for one in ranks if one.state == "D" and not one.answered and not one.stack]
    found = stopped or (deep if len(deep) < len(_living(ranks)) else [])
    if not found:
        return None
    how = "stopped (SIGSTOP, or a debugger)" if stopped else "in the kernel and cannot be interrupted (state D)"
    hint = (
        "`kill -CONT` lets it continue, if it is not under a debugger"
        if stopped
        else "a disk, a mount or a driver of that node does not answer: look at its kernel log"
    )
    text = f"{_names(found)} {_be_verb(found)} {how}{_for_them(waits, found)}"
    return replace(_verdict(HangKind.FROZEN, text, found, ranks, hint), distrusts_node=True)


def _dead_peer(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict on ranks that died while others wait for them; None if no rank is dead, or no other waits."""
    dead = [one for one in ranks if (one.ended and (one.exit_code or one.exit_signal)) or one.state == "Z"]
    if not dead or not _any_waits(ranks, waits):
        return None
    text = f"{_names(dead)} {_be_verb(dead)} dead, and the others have not noticed{_for_them(waits, dead)}"
    return _verdict(HangKind.DEAD_PEER, text, dead, ranks, "the transport keeps its connection: see the network")


def _left_early(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict on ranks that finished before collectives in which others wait for them or, if no rank has
    finished, on those that are exiting; return None if nobody waits for such ranks.
    """
    gone = [one for one in ranks if one.ended and not one.exit_code and not one.exit_signal]
    leaving = [one for one in ranks if not one.ended and _leaves(one) and not _is_waiting(one, waits)]
    found = gone or leaving
    if not any(one.rank in wait.members for one in found for wait in waits):
        return None
    ended = "has ended" if len(found) == 1 else "have ended"
    text = f"{_names(found)} {ended}{_for_them(waits, found)}"
    hint = "ranks have unequal numbers of batches: drop the last ones, or use DDP's join()"
    same = f"left_early:{_op_place(waits)}"
    return _verdict(HangKind.LEFT_EARLY, text, found, ranks, hint, where=_op_place(waits), same=same)


def _in_storage(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict that storage is slow if some ranks are outside a collective and each of them waits for a disk
    (the kernel's state D), else None.
    """
    busy = [one for one in _living(ranks) if not _is_waiting(one, waits)]
    found = [one for one in busy if one.state == "D"]
    if not found or len(found) < len(busy):
        return None
    where = where_is(found[0])
    text = f"{_names(found)} {_wait_verb(found)} for storage" + (f" at {where}" if where else "")
    hint = "the file system does not answer: see its mount, and the kernel log of the node"
    return _verdict(HangKind.STORAGE, text + _for_them(waits, found), found, ranks, hint)


def _mismatch(ranks: Sequence[RankLook]) -> HangVerdict | None:
    """Return the verdict on ranks that called a collective with other operations or shapes than the rest, or None if
    all agree.
    """
    for members in _groups(ranks).values():
        if not any(not one.done for _, group in members for one in group.last):
            continue
        entered = {rank.rank: {one.seq: one for one in group.last if not one.p2p} for rank, group in members}
        numbers = sorted(set[int]().union(*entered.values()))
        for seq in numbers:
            ops = [(rank, entered[rank.rank][seq]) for rank, _ in members if seq in entered[rank.rank]]
            if found := _differing(seq, ops, ranks):
                return found
    return None


def _differing(seq: int, ops: Sequence[tuple[RankLook, Collective]], ranks: Sequence[RankLook]) -> HangVerdict | None:
    """Return the verdict if ranks of a group entered its collective number `seq` with different operations or shapes,
    else None. If the ranks are divided by what they called, the smallest of these sets is at fault.

    `ops` has each rank that entered the collective, with its call; `ranks` are all ranks that were inspected.
    """
    names = Counter(one.op for _, one in ops)
    if len(names) > 1:
        kind, what, manner = HangKind.DIFFERENT_COLLECTIVES, "different collectives", _op_name
        hint = "all ranks must call the same collectives in the same order: one took another branch"
    else:
        shapes = Counter((one.sizes, one.dtypes) for _, one in ops)
        if len(shapes) < 2 or next(iter(names)) not in _ALIKE or all(one.done for _, one in ops):
            return None
        kind, what, manner = HangKind.DIFFERENT_SHAPES, "different shapes", _shape_of
        hint = "all ranks must give this collective tensors of the same shape and type"
    by_manner = dict[str, list[tuple[RankLook, Collective]]]()
    for rank, one in ops:
        by_manner.setdefault(manner(one), []).append((rank, one))
    parts = sorted(by_manner.items(), key=lambda part: (len(part[1]), part[1][0][0].rank == 0, -part[1][0][0].rank))
    (ours, few), (theirs, most) = parts[0], parts[-1]
    at, there = _called_at(few[0][1]), _called_at(most[0][1])
    text = (
        f"ranks are in {what} as #{seq} of their group: {_names([rank for rank, _ in few])} in {ours}{_at(at)}, "
        f"{_names([rank for rank, _ in most])} in {theirs}{_at(there)}"
    )
    return _verdict(kind, text, [rank for rank, _ in few], ranks, hint, where=at, same=f"{kind}:{at}:{there}")


def _never_entered(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict on ranks that have not entered a collective in which others wait, or None if there are
    none.
    """
    busy = _in_no_collective([one for one in ranks if not _is_waiting(one, waits)])
    receives = False
    for wait in waits:
        if not wait.absent and wait.silent:
            text = f"{_names(wait.silent)} {'does' if len(wait.silent) == 1 else 'do'} not answer"
            if any(one.state == "R" for one in wait.silent):
                return _verdict(HangKind.UNKNOWN, f"{text}; {_waiting_in(wait)}", wait.silent, ranks, "")
            text = f"{text}: native code holds Python's lock there; {_waiting_in(wait)}"
            return _verdict(HangKind.FROZEN, text, wait.silent, ranks, "see the native stack of that rank, if any")
        free = [one for one in wait.absent if not _is_waiting(one, waits)]
        if not free:
            continue
        elsewhere = [one for one in free if _in_torch_distributed(one)]
        if elsewhere and len(elsewhere) == len(free):
            if not busy:
                return _out_of_order(wait, elsewhere, ranks)
            receives = True  # the Flight Recorder of gloo does not know for whom: it may be for one of these
            continue
        found = [one for one in free if one not in elsewhere] or free
        return _verdict(
            HangKind.NEVER_ENTERED,
            f"{_names(found)} never entered {_op_name(wait.op)} #{wait.seq}{_size(wait.op)}"
            f"{_instead(found[0], wait)}; {_waiting_in(wait)}",
            found,
            ranks,
            _hint_of(found[0]),
        )
    crossed = [wait for wait in waits if wait.absent]
    if receives:
        return _outside(busy, ranks)
    return _crossed(crossed, ranks) if crossed else None


def _out_of_order(wait: _Wait, elsewhere: Sequence[RankLook], ranks: Sequence[RankLook]) -> HangVerdict:
    """Return the verdict that ranks are in different collectives: the ranks `elsewhere` are at fault. They are absent
    from the collective `wait`, and in an operation which torch's Flight Recorder does not list, such as a receive.
    """
    first = elsewhere[0]
    theirs, ours = _called_at(wait.op), where_is(first)
    name = next((one.name for one in first.stack if one.file.endswith(_BETWEEN_RANKS)), "torch")
    text = (
        f"ranks are in different collectives: {_names(elsewhere)} in {name}{_at(ours)}, "
        f"{_names(wait.waiting)} in {_op_name(wait.op)} #{wait.seq}{_at(theirs)}"
    )
    hint = "all ranks must call the same collectives in the same order: one took another branch"
    same = f"{HangKind.DIFFERENT_COLLECTIVES}:{ours}:{theirs}"
    return _verdict(HangKind.DIFFERENT_COLLECTIVES, text, elsewhere, ranks, hint, where=ours, same=same)


def _crossed(waits: Sequence[_Wait], ranks: Sequence[RankLook]) -> HangVerdict:
    """Return the verdict for ranks that wait for each other in different groups. Each of `waits`, at least one, lacks
    ranks; the verdict names the first rank that the first of them lacks.
    """
    first = waits[0]
    absent = first.absent[0]
    other = next((wait for wait in waits[1:] if absent in wait.waiting), None)
    ours = _called_at(first.op)
    there = f" in {_op_name(other.op)} #{other.seq}{_at(_called_at(other.op))}" if other is not None else " elsewhere"
    text = (
        f"ranks wait for each other in different groups: {_names(first.waiting)} in {_op_name(first.op)} #{first.seq}"
        f"{_at(ours)}, {_names([absent])}{there}"
    )
    hint = "all ranks must call the collectives of all their groups in the same order"
    same = f"{HangKind.DIFFERENT_COLLECTIVES}:{ours}:{_called_at(other.op) if other else ''}"
    return _verdict(HangKind.DIFFERENT_COLLECTIVES, text, [absent], ranks, hint, where=ours, same=same)


def _all_entered(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict for ranks that have all entered the same collective, as the caller has found: a slow link if
    bytes still move between them, else an unknown cause. Return None if no rank waits.
    """
    if not waits:
        return None
    wait = waits[0]
    what = f"{_op_name(wait.op)} #{wait.seq}{_size(wait.op)}"
    moving = [one for one in ranks if one.moved_bytes >= _MOVING_BYTES]
    if moving:
        text = f"all ranks are in {what}, and bytes still move: a link between them is slow"
        return HangVerdict(
            HangKind.SLOW_LINK, text, (), _called_at(wait.op), _evidence(ranks), "`launch doctor` measures"
        )
    text = f"all ranks are in {what}, and nothing moves: the reason is unknown"
    return HangVerdict(HangKind.UNKNOWN, text, (), _called_at(wait.op), _evidence(ranks))


def _by_stacks(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict, from stacks alone, on the ranks that are in no collective while the others wait in one.

    That is for ranks without a Flight Recorder, and for operations that it does not record. Return None if there are
    `waits`, which the recorders show better, if a living rank has no stack, or if none or all are outside of
    collectives.
    """
    living = _living(ranks)
    outside = _in_no_collective(living)
    if waits or not outside or len(outside) == len(living) or not all(one.stack for one in living):
        return None
    return _outside(outside, ranks)


def _in_no_collective(ranks: Sequence[RankLook]) -> list[RankLook]:
    """Return the ranks whose stacks show something other than waiting for other ranks. Ranks that have ended, or whose
    stack is not known, are left out.
    """
    return [one for one in _living(ranks) if one.stack and not _in_torch_distributed(one)]


def _outside(found: Sequence[RankLook], ranks: Sequence[RankLook]) -> HangVerdict:
    """Return the verdict that names the ranks in `found` as at fault: they are in no collective while the others of
    `ranks` wait in one.
    """
    count = len(_living(ranks)) - len(found)
    text = f"{_names(found)} {_be_verb(found)} in no collective{_instead(found[0])}; {_waiters(count)} in one"
    return _verdict(HangKind.NEVER_ENTERED, text, found, ranks, _hint_of(found[0]))


def _none_in_collective(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> HangVerdict | None:
    """Return the verdict that no rank is in a collective, with the line where most ranks are. Return None if some rank
    is in one, or may be: it is inside torch.distributed, or its stack is not known.
    """
    living = _living(ranks)
    if waits or not living or not all(one.stack for one in living) or any(map(_in_torch_distributed, living)):
        return None
    places = Counter(where_is(one) for one in living)
    common, count = places.most_common(1)[0]
    of = "all ranks are" if count == len(living) else f"{count} of {len(living)} ranks are"
    text = f"no rank is in a collective: {of} at {common}"
    hint = _hint_of(next(one for one in living if where_is(one) == common))
    return _verdict(HangKind.NOBODY_IN_A_COLLECTIVE, text, living, ranks, hint)


# -- who waits in what


def _groups(ranks: Iterable[RankLook]) -> Mapping[tuple[str, tuple[int, ...]], list[tuple[RankLook, GroupLook]]]:
    """Return all looks at ranks by process group; the key is the group's name and its members."""
    found = dict[tuple[str, tuple[int, ...]], list[tuple[RankLook, GroupLook]]]()
    for rank in ranks:
        for group in rank.groups:
            found.setdefault((group.name, group.ranks), []).append((rank, group))
    return found


def _waits(ranks: Sequence[RankLook]) -> list[_Wait]:
    """Return for each process group the oldest collective in which a rank waits; a group without one is left out. They
    are sorted by the number of waiting ranks, largest first.
    """
    found = list[_Wait]()
    for (name, numbers), members in _groups(ranks).items():
        pending = {rank.rank: _first_pending(group) for rank, group in members}
        firsts = [one for one in pending.values() if one is not None]
        if not firsts:
            continue
        op = min(firsts, key=lambda one: one.seq)
        waiting = tuple(rank for rank, _ in members if (one := pending[rank.rank]) is not None and one.seq == op.seq)
        absent = tuple(rank for rank, group in members if group.entered < op.seq)
        known = {rank.rank for rank, _ in members}
        others = [one for one in ranks if one.rank in numbers and one.rank not in known]
        # A rank that answered without this group has entered nothing of it.
        absent += tuple(one for one in others if one.answered)
        silent = tuple(one for one in others if not one.answered and not one.ended)
        found.append(_Wait(name, numbers, op.seq, op, waiting, absent, silent))
    return sorted(found, key=lambda wait: (-len(wait.waiting), wait.group))


def _first_pending(group: GroupLook) -> Collective | None:
    """Return the oldest collective that the rank has entered in this group and not completed, or None if there is none.
    Sends and receives between two ranks do not count.
    """
    return next((one for one in group.last if not one.done and not one.p2p), None)


def _is_waiting(look: RankLook, waits: Sequence[_Wait]) -> bool:
    """Return whether the rank waits in one of the collectives in `waits`."""
    return any(look in wait.waiting for wait in waits)


def _any_waits(ranks: Sequence[RankLook], waits: Sequence[_Wait]) -> bool:
    """Return whether any of `ranks` waits for others: in a collective, as listed in `waits`, or in another operation
    of torch.distributed, as its stack shows.
    """
    return bool(waits) or any(map(_in_torch_distributed, ranks))


def _in_torch_distributed(look: RankLook) -> bool:
    """Return whether the rank's main thread is in an operation between ranks, and not in a user's hook that was called
    from one.
    """
    inner = look.stack[: next((n for n, one in enumerate(look.stack) if _is_own(one)), len(look.stack))]
    return any(one.file.endswith(_BETWEEN_RANKS) for one in inner)


def _leaves(look: RankLook) -> bool:
    """Return whether the rank's stack shows that its Python interpreter is exiting."""
    return any(one.name in _LEAVING for one in look.stack)


def _living(ranks: Iterable[RankLook]) -> list[RankLook]:
    """Return the ranks that have not ended."""
    return [one for one in ranks if not one.ended]


# -- words


def _verdict(
    kind: HangKind,
    text: str,
    found: Sequence[RankLook],
    ranks: Sequence[RankLook],
    hint: str,
    *,
    where: str = "",
    same: str = "",
) -> HangVerdict:
    """Build a verdict of `kind` that names the `found` ranks, with the place of the first one unless `where` gives
    another place.

    `text` and `hint` are for the user, and `ranks` supply the evidence. `same` identifies a mismatch in the program,
    which a restart does not cure: two hangs by the same mismatch have the same text here. It is "" for other hangs.
    """
    frame = own_frame(found[0].stack)
    known = where or (f"{place(frame)} in {frame.name}" if frame is not None else "")
    return HangVerdict(kind, text, tuple(one.rank for one in found), known, _evidence(ranks), hint, same=same)


def _evidence(ranks: Sequence[RankLook]) -> tuple[str, ...]:
    """Return one line for each of the first 16 ranks: its state, its collective and its line of code. If there are
    more, a last line says how many.
    """
    return tuple(map(_line_of, ranks[:16])) + ((f"and {len(ranks) - 16} more ranks",) if len(ranks) > 16 else ())


def _line_of(look: RankLook) -> str:
    """Return one line about a rank: its process state, the collective it waits in, its GPUs and its line of code."""
    if look.ended:
        how = f"signal {look.exit_signal}" if look.exit_signal else f"exit code {look.exit_code or 0}"
        return f"rank {look.rank}: ended with {how}"
    parts = [f"state {look.state or '?'}", f"uses {look.busy:.1f} processors"]
    pending = [(group, one) for group in look.groups if (one := _first_pending(group)) is not None]
    parts += [f"waits in {_op_name(one)} #{one.seq} of group {group.name}" for group, one in pending]
    parts += ["" if pending or not look.groups else f"entered #{max(one.entered for one in look.groups)} last"]
    parts += [f"its GPUs {', '.join(f'{one} %' for one in look.gpus_busy)} busy" if look.gpus_busy else ""]
    where = where_is(look)
    parts += [f"at {where}" if where else "", look.problem]
    return f"rank {look.rank}: {', '.join(filter(None, parts))}"


def _names(ranks: Sequence[RankLook]) -> str:
    """Return the ranks as text: `rank 3 on node 2`, or `ranks 3, 5 and 6`; of more than four, the first four and how
    many more there are.
    """
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} on node {ranks[0].node}"
    numbers = [str(one.rank) for one in ranks]
    if len(numbers) > _NAMED:
        return f"ranks {', '.join(numbers[:_NAMED])} and {len(numbers) - _NAMED} more"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _be_verb(ranks: Sequence[RankLook]) -> str:
    """Return `is` for one rank, `are` for several."""
    return "is" if len(ranks) == 1 else "are"


def _wait_verb(ranks: Sequence[RankLook]) -> str:
    """Return `waits` for one rank, `wait` for several."""
    return "waits" if len(ranks) == 1 else "wait"


def _waiters(count: int) -> str:
    """Return `1 rank waits` or `7 ranks wait`."""
    return f"{count} rank{'s wait' if count != 1 else ' waits'}"


def _waiting_in(wait: _Wait) -> str:
    """Return how many ranks wait in the collective and from which line it was called."""
    return f"{_waiters(len(wait.waiting))} in it{_at(_called_at(wait.op))}"


def _for_them(waits: Sequence[_Wait], found: Sequence[RankLook]) -> str:
    """Return how many ranks wait for the `found` ones, as the end of a sentence: `; 7 ranks wait in all_reduce
    #4812`.
    """
    wait = next((one for one in waits if any(look not in found for look in one.waiting)), None)
    if wait is None:
        return ""
    return f"; {_waiters(len(wait.waiting))} in {_op_name(wait.op)} #{wait.seq}{_at(_called_at(wait.op))}"


def _op_place(waits: Sequence[_Wait]) -> str:
    """Return the user's line, as `file.py:12`, that called the collective of the first of the `waits`; "" if there is
    none or the line is unknown.
    """
    return _called_at(waits[0].op) if waits else ""


def _instead(look: RankLook, wait: _Wait | None = None) -> str:
    """Return the end of a sentence on where the rank is instead of in the collective, such as `; it has been in
    data.py:88 in load for 41 s`, or "" if that is unknown.

    The seconds in it are those for which others wait in `wait`, or, if that is None, for which the rank was idle.
    """
    where = where_is(look)
    age_s = max(wait.op.age_s, 0.0) if wait is not None else look.idle_s
    since = f" for {age_s:.0f} s" if age_s >= 1 else ""
    return f"; it has been in {where}{since}" if where else ""


def _op_name(one: Collective) -> str:
    """Return the name of the collective's operation."""
    return one.op


def _shape_of(one: Collective) -> str:
    """Return the operation with the sizes of its first two tensors and their type, such as `all_reduce of [8, 4]
    float`.
    """
    sizes = " ".join(str(list(each)) for each in one.sizes[:2]) or "no tensor"
    return f"{one.op} of {sizes} {one.dtypes[0] if one.dtypes else ''}".rstrip()


def _size(one: Collective) -> str:
    """Return the size of the operation's tensors as ` (4 MB)`, or "" if it is unknown."""
    total = sum(prod(size) * _ITEM_BYTES.get(kind, 4) for size, kind in zip(one.sizes, one.dtypes, strict=False))
    if not total:
        return ""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if total >= scale:
            return f" ({total / scale:.3g} {unit})"
    return f" ({total} bytes)"


def _called_at(one: Collective) -> str:
    """Return the user's line that called the collective as `file.py:12`, or ""."""
    frame = own_frame(one.frames)
    return place(frame) if frame is not None else ""


def _at(where: str) -> str:
    """Return ` at PLACE` for the end of a sentence, or "" if the place is ""."""
    return f" at {where}" if where else ""


def _is_own(frame: Frame) -> bool:
    """Return whether the frame is in the user's code, judged by its file's path: neither in site-packages nor in
    Python's own library, and not the launcher's zygote.
    """
    parts = PurePath(frame.file).parts
    if "site-packages" in parts or "dist-packages" in parts or frame.file.startswith("<"):
        return False
    library = any(
        one.startswith("python3.") and parts[at - 1] in ("lib", "lib64") for at, one in enumerate(parts) if at
    )
    return not library and not frame.file.endswith("launcher/node/zygote.py")


def _activity(look: RankLook) -> str:
    """Return what the stack shows the rank doing, such as `data loading`, or ""."""
    return next((name for name, fits in _ACTIVITIES if any(map(fits, look.stack))), "")


def _hint_of(look: RankLook) -> str:
    """Return a hint for the user on why a rank may hang at its line of code, or how to find out if nothing is known."""
    hints = {
        "data loading": "its data do not come: see the file system, the network and the workers of its DataLoader",
        "a checkpoint": "only this rank saves or loads: all ranks must take part, or wait for it in a barrier",
        "a lock": "another thread of its program holds the lock: `launch stacks` shows all threads",
        "a child process": "it waits for a program that it started",
        "the network": "it waits for another machine: give that call a timeout",
    }
    found = hints.get(_activity(look), "")
    if not found and look.busy > 0.5:
        return "it computes: more work than the other ranks have, or a loop without an end"
    return found or "`launch stacks RUN --last` shows where every rank is"
