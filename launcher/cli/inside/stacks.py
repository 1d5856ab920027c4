"""`launch stacks`: print where every rank is in its Python code now."""

import argparse
from collections import defaultdict
from dataclasses import dataclass

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.looking.logs import numbers
from launcher.cli.looking.role_option import parts_of, refuse_several, takes_role
from launcher.cli.terminal import paint, safe, to_json
from launcher.coordinator.hang import judge
from launcher.errors import Exit, LaunchError, Refused
from launcher.node.inside.visit_messages import AskStacks, RankStacks
from launcher.remote.parallel import for_all
from launcher.run.hangs import GroupLook, HangReport, RankLook

EXAMPLES = """
  launch stacks last                 of all ranks, the innermost frame first; they are in the ranks' logs too
  launch stacks last --rank 0,3-5
  launch stacks last --role actors   of this role, of a run of several programs
  launch stacks last --json          one object for each rank, for programs
  launch stacks last --last          the report of the run's last hang, also after its end

Where ranks wait for one of them, the first line says for which. The ranks go on. Exit code 4 where a rank tells none,
with the reason; 5 where a node cannot be reached.
"""


_WAITS_S = 5.0  # in a collective: of a training that goes on, ranks are found in one, too


class StacksOfRank(msgspec.Struct, frozen=True):
    """The Python stacks of one rank. `problem` says why they are unknown, or is ""; `look` has what else was read of
    the process, such as its native stack and collectives.
    """

    rank: int
    node: int  # the index of its node
    pid: int | None  # None: not known
    stacks: tuple[str, ...]
    problem: str
    look: RankLook | None = None


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch stacks`."""
    arguments.takes_run()
    words = "of this rank only, or of several: 0,3-5; may be repeated"
    arguments.add_argument("--rank", metavar="N", type=numbers, action="append", help=words)
    takes_role(arguments)
    arguments.prints_json(lambda: {"": list[StacksOfRank], "--last": HangReport}, "one list; with --last one object")
    arguments.add_argument("--last", action="store_true", help="the stacks of the last hang")


def run(options: argparse.Namespace) -> int:
    """Run `launch stacks` and return its exit code."""
    wanted = set(sum(options.rank, ())) if options.rank else set[int]()
    parts = parts_of(api.run(options.run), options.role, wanted)
    if options.last:
        refuse_several(parts, "--last")
        return _show_last(parts[0].run, options)
    asked = [_stacks(part.run, wanted if part.rank is None else set(), part.rank) for part in parts]
    found = [each for one in asked for each in one.found]
    lines = [line for one in asked for line in (*_waiting(one.found, one.ranks), *map(_shown, one.found))]
    print(to_json(found) if options.json else "\n\n".join(lines))
    if any(one.unreachable for one in asked):
        return Exit.UNREACHABLE
    return Exit.REFUSED if any(each.problem for each in found) else Exit.OK


@dataclass(frozen=True, slots=True)
class _Asked:
    """The stacks of some ranks of a run or a role; `ranks` is the number of all its ranks, and `unreachable` tells
    whether a node did not answer.
    """

    found: list[StacksOfRank]
    ranks: int
    unreachable: bool  # whether a node did not answer


def _stacks(one: api.Run, wanted: set[int], called: int | None) -> _Asked:
    """Return the stacks of the `wanted` ranks, or of all running ranks if `wanted` is empty; raise Refused if a wanted
    one does not run. Stacks on a node that does not answer are replaced by the error.

    A rank that restarts alone has records of its own, in which it is rank 0. For such records `called` is the rank's
    number in its role, by which it is reported; else None.
    """
    running = one.nodes_of_ranks()
    if missing := wanted - running.keys():
        raise Refused(f"{one.id} has no rank {min(missing)} that runs")
    nodes = defaultdict[int, list[int]](list)
    for rank in sorted(wanted or running):
        nodes[running[rank]].append(rank)
    said = for_all({str(node): node for node in nodes}, lambda _, node: _stacks_on_node(one, node, nodes[node]))
    found = [each for node, ranks in nodes.items() for each in _entries_of_node(node, ranks, said[str(node)])]
    found.sort(key=lambda each: each.rank)
    if called is not None:
        found = [msgspec.structs.replace(each, rank=called) for each in found]
    return _Asked(found, len(running), any(isinstance(answer, LaunchError) for answer in said.values()))


def _show_last(one: api.Run, options: argparse.Namespace) -> int:
    """Print the report of the run's last hang, and return the exit code; raise Refused if the run had none."""
    report = one.last_hang()
    if report is None:
        raise Refused(f"{one.id}: no hang of it was looked at", f"hint: of ranks that run: launch stacks {one.id}")
    wanted = set(sum(options.rank, ())) if options.rank else None
    looks = [look for look in report.ranks if wanted is None or look.rank in wanted]
    if options.json:
        print(to_json(msgspec.structs.replace(report, ranks=tuple(looks))))
        return Exit.OK
    verdict = report.verdict
    told = [f"attempt {report.attempt}, generation {report.generation}: {verdict.kind.replace('_', ' ')}", verdict.text]
    told += [f"hint: {verdict.hint}"] if verdict.hint else []
    head = "\n".join([paint(safe(told[1]), "bold"), *map(safe, (told[0], *told[2:], *verdict.evidence))])
    print("\n\n".join((head, *map(_shown_look, looks))))
    return Exit.OK


def _waiting(found: list[StacksOfRank], ranks: int) -> list[str]:
    """Return a line that names the rank for which the others wait, judged as in a hang report by the ranks' stacks and
    unfinished collectives.

    Return an empty list if fewer than all `ranks` of the run have answered, or if none is stopped by a signal or has
    waited in a collective for five seconds.
    """
    looks = [each.look for each in found if each.look is not None]
    ages = [call.age_s for look in looks for group in look.groups for call in group.last if not call.done]
    stopped = any(look.state in ("T", "t") for look in looks)
    if len(looks) < ranks or not (stopped or max(ages, default=0) >= _WAITS_S):
        return []
    return [paint(safe(judge(looks).text), "bold")]


def _shown_look(look: RankLook) -> str:
    """Return a rank's stacks and collectives, as a hang report has them, as text."""
    frames = [f'  File "{one.file}", line {one.line} in {one.name}' for one in look.stack]
    lines = [paint(f"── rank {look.rank}, node {look.node}, process {look.pid} ──", "bold"), *frames, *look.threads]
    lines += _native(look)
    lines += [f"its GPUs: {', '.join(f'{one} % busy' for one in look.gpus_busy)}"] if look.gpus_busy else []
    lines += ["NCCL's RAS:", *(f"  {line}" for line in look.nccl)] if look.nccl else []
    lines += [f"group {group.name}, newest #{group.entered}: {_call(group)}" for group in look.groups]
    return "\n".join(
        [lines[0], *map(safe, lines[1:]), *([paint(safe(look.problem), "yellow")] if look.problem else [])]
    )


def _native(look: RankLook) -> list[str]:
    """Return a rank's native stack as lines with a heading, or an empty list if it is not known."""
    return ["native stack of the main thread:", *(f"  {line}" for line in look.native)] if look.native else []


def _call(group: GroupLook) -> str:
    """Return text such as `waits in allreduce #120 for 33 s`: the oldest collective that a rank's process group has not
    finished, or `waits in none`.
    """
    pending = next((one for one in group.last if not one.done), None)
    return f"waits in {pending.op} #{pending.seq} for {pending.age_s:.0f} s" if pending is not None else "waits in none"


def _stacks_on_node(one: api.Run, node: int, ranks: list[int]) -> list[RankStacks]:
    """Query the node for the stacks of these ranks, and return them; raise LaunchError if it does not answer."""
    with one.visit(node) as visit:
        return visit.stacks(AskStacks(frozenset(ranks)))


def _entries_of_node(node: int, ranks: list[int], said: list[RankStacks] | LaunchError) -> list[StacksOfRank]:
    """Return an entry for each of the ranks of a node.

    `said` is the node's answer, or the error if it did not answer; an entry without stacks has the problem.
    """
    if isinstance(said, LaunchError):
        return [StacksOfRank(rank, node, None, (), said.lines[0]) for rank in ranks]
    told = {each.rank: each for each in said}
    return [
        StacksOfRank(rank, node, told[rank].pid, told[rank].lines, told[rank].problem, told[rank].look)
        if rank in told
        else StacksOfRank(rank, node, None, (), "does not run any more, or not yet")
        for rank in ranks
    ]


def _shown(each: StacksOfRank) -> str:
    """Return a rank's stacks as text with a heading."""
    place = f"rank {each.rank}, node {each.node}" + (f", process {each.pid}" if each.pid is not None else "")
    native = _native(each.look) if each.look is not None else []
    lines = [paint(f"── {place} ──", "bold"), *map(safe, (*each.stacks, *native))]
    return "\n".join([*lines, *([paint(safe(each.problem), "yellow")] if each.problem else [])])
