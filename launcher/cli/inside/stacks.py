"""`launch stacks`: where every rank is in its Python code, now."""

import argparse
from collections import defaultdict

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.looking.logs import numbers
from launcher.cli.terminal import paint, safe, to_json
from launcher.errors import Exit, LaunchError, Refused
from launcher.node.inside.words import AskStacks, RankStacks
from launcher.remote.parallel import for_all

EXAMPLES = """
  launch stacks last                 of all ranks, the innermost frame first; they are in the ranks' logs too
  launch stacks last --rank 0,3-5
  launch stacks last --json          an object for each rank, for programs

The ranks go on. Exit code 4 where a rank tells none, with the reason; 5 where a node cannot be reached.
"""


class _OfRank(msgspec.Struct, frozen=True):
    rank: int
    node: int
    pid: int | None
    stacks: tuple[str, ...]
    problem: str


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    words = "of this rank only, or of several: 0,3-5; may be repeated"
    arguments.add_argument("--rank", metavar="N", type=numbers, action="append", help=words)
    arguments.add_argument("--json", action="store_true", help="one JSON list")


def run(options: argparse.Namespace) -> int:
    one = api.run(options.run)
    running = one.nodes_of_ranks()
    wanted = set(sum(options.rank, ())) if options.rank else set(running)
    if missing := wanted - running.keys():
        raise Refused(f"{one.id} has no rank {min(missing)} that runs")
    nodes = defaultdict[int, list[int]](list)
    for rank in sorted(wanted):
        nodes[running[rank]].append(rank)
    said = for_all({str(node): node for node in nodes}, lambda _, node: _asked(one, node, nodes[node]))
    found = [each for node, ranks in nodes.items() for each in _of_node(node, ranks, said[str(node)])]
    found.sort(key=lambda each: each.rank)
    print(to_json(found) if options.json else "\n\n".join(map(_shown, found)))
    if any(isinstance(answer, LaunchError) for answer in said.values()):
        return Exit.UNREACHABLE
    return Exit.REFUSED if any(each.problem for each in found) else Exit.OK


def _asked(one: api.Run, node: int, ranks: list[int]) -> list[RankStacks]:
    with one.visit(node) as visit:
        return visit.stacks(AskStacks(frozenset(ranks)))


def _of_node(node: int, ranks: list[int], said: list[RankStacks] | LaunchError) -> list[_OfRank]:
    """Each rank that was asked for, whatever the node says."""
    if isinstance(said, LaunchError):
        return [_OfRank(rank, node, None, (), said.lines[0]) for rank in ranks]
    told = {each.rank: each for each in said}
    return [
        _OfRank(rank, node, told[rank].pid, told[rank].lines, told[rank].problem)
        if rank in told
        else _OfRank(rank, node, None, (), "does not run any more, or not yet")
        for rank in ranks
    ]


def _shown(each: _OfRank) -> str:
    place = f"rank {each.rank}, node {each.node}" + (f", process {each.pid}" if each.pid is not None else "")
    lines = [paint(f"── {place} ──", "bold"), *map(safe, each.stacks)]
    return "\n".join([*lines, *([paint(safe(each.problem), "yellow")] if each.problem else [])])
