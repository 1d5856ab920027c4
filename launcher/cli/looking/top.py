"""`launch top`: show what each node and rank of a run uses now: CPU, memory, GPUs, disk and network, as its agents
sample it.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from types import GenericAlias

import msgspec

from launcher import api
from launcher.cli import figures
from launcher.cli.answers import list_of, merged
from launcher.cli.arguments import Arguments
from launcher.cli.looking.page import headline
from launcher.cli.looking.role_option import parts_of, refuse_several, takes_role
from launcher.cli.terminal import REDRAW_S, Screen, columns, is_terminal, paint, safe, to_json
from launcher.errors import Exit, Refused
from launcher.run.hangs import LastRank
from launcher.run.records import GpuLoad, NodeLoad
from launcher.states import State
from launcher.status.derive import RunStatus

EXAMPLES = """
  launch top last                 updated until the run has ended, or Ctrl-C
  launch top resnet --once        one table; the default if the output is no terminal
  launch top last --role actors   of this role, of a run of several programs; without it of all
  launch top resnet --json        in cores, bytes and bytes a second, for programs

CPU is in cores. A rank's figures are of all its processes, data workers too; memory that they share counts in each.
A node's are of its whole machine: networks are counted for machines alone. Agents look every five seconds.
Where ranks of torch.distributed wait for one of them, the second line says for which; that is looked at every minute.
"""
_HEAD = ("", "CPU", "MEMORY", "READ", "WRITTEN", "RECEIVED", "SENT")
_GPU_HEAD = ("GPU", "GPU MEMORY")


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch top`."""
    arguments.takes_run()
    takes_role(arguments)
    arguments.add_argument("--once", action="store_true", help="print the table once and exit")
    arguments.prints_json(_answers, "one answer for programs")


def _answers() -> dict[str, object]:
    """Return the type of what `launch top --json` prints, under the key "", as it has only one form."""
    now: dict[str, object] = {
        "state": State,
        "step": int | None,
        "rate": float | None,
        "nodes": list_of(merged("NodeNow", NodeLoad, host=str)),
        "last_rank": LastRank | None,
    }
    role = merged("RoleNow", **now)
    return {"": merged("RunNow", run=str, **now, roles=GenericAlias(dict, (str, role)))}


def run(options: argparse.Namespace) -> int:
    """Run `launch top` and return its exit code."""
    parts = parts_of(api.run(options.run), options.role)
    statuses = api.statuses([part.run for part in parts])
    if all(status.state.ended for status in statuses):
        name, state, run_id = parts[0].name, statuses[0].state, parts[0].run.id
        raise Refused(f"{name} {state}: nothing of it runs", f"hint: launch status {run_id}")
    if options.json:
        refuse_several(parts, "--json")
        roles = {name: _plain(one) for name, one in statuses[0].roles.items() if not one.state.ended}
        print(to_json({"run": statuses[0].run, **_plain(statuses[0]), "roles": roles}))
    elif options.once or not is_terminal(sys.stdout):
        print("\n".join(_tables(parts, statuses)))
        if not any(status.loads for status in statuses):
            print("its agents have sent no sample yet: they look every five seconds", file=sys.stderr)
    else:
        _watch(parts)
    return Exit.OK


def _watch(parts: Sequence[api.Part]) -> None:
    """Draw the tables again every second until all `parts` of the run have ended, then a line about the end of each. A
    part is the run itself, a role, or a rank that restarts alone.
    """
    screen, runs = Screen(sys.stdout), [part.run for part in parts]
    statuses = api.statuses(runs, api.WATCH_S)
    while not all(status.state.ended for status in statuses):
        screen.show(_tables(parts, statuses))
        time.sleep(REDRAW_S)
        statuses = api.statuses(runs, api.WATCH_S)
    screen.show([*map(headline, statuses)], last=True)


def _tables(parts: Sequence[api.Part], statuses: Sequence[RunStatus]) -> list[str]:
    """Return the lines of a table for each of `parts`, whose statuses are in the same order: a part is the run itself,
    a role, or a rank that restarts alone. After a part's table comes one for each of its active roles, below the role's
    name.
    """
    now, lines = time.time(), list[str]()
    for part, status in zip(parts, statuses, strict=True):
        roles = {f"{part.name}/{name}": one for name, one in status.roles.items() if not one.state.ended}
        for name, one in ({part.name: status} | roles).items():
            lines += [*([""] if lines else []), *([paint(name, "bold")] if name != one.run else []), *_lines(one, now)]
    return lines


def _plain(status: RunStatus) -> dict[str, object]:
    """Return what `--json` prints about a run: in `nodes` a dict for each node, the fields of its newest sample
    (NodeLoad) with `host`, and from the run's status `state`, `step`, `rate` (steps per second) and `last_rank`.
    """
    hosts = {node.node: node.host for node in status.nodes}
    nodes = [{"host": hosts.get(load.node, ""), **msgspec.structs.asdict(load)} for load in status.loads]
    return {
        "state": status.state,
        "step": status.step,
        "rate": status.rate,
        "nodes": nodes,
        "last_rank": status.last_rank,
    }


def _lines(status: RunStatus, now: float) -> list[str]:
    """Return the lines about a run: its state and step, then a table of its nodes and ranks. `now` is a Unix time, to
    show how old the samples are.
    """
    step = f"step {figures.steps(status.step, status.total_steps)}, {figures.rate(status.rate)}"
    last = [paint(safe(str(status.last_rank)), "yellow")] if status.last_rank is not None else []
    head = [f"{headline(status)}  {step}"]
    if not status.loads:
        return [*head, *last]
    age = figures.duration(now - min(load.at for load in status.loads))
    with_gpus = any(load.gpus for load in status.loads)
    hosts = {node.node: node.host for node in status.nodes}
    rows = [row for load in status.loads for row in _rows(load, hosts.get(load.node, ""), with_gpus)]
    lines = columns([(*_HEAD, *(_GPU_HEAD if with_gpus else ())), *rows])
    return [f"{head[0]}, sampled {age} ago", *last, "", paint(lines[0], "dim"), *lines[1:]]


def _rows(load: NodeLoad, host: str, with_gpus: bool) -> Iterator[tuple[str, ...]]:
    """Yield the table row of a node, whose host is called `host`, and of each of its ranks; with `with_gpus` they have
    cells for GPUs.
    """
    memory = f"{figures.size(load.memory)} of {figures.size(load.memory_total)}"
    moved = map(_rate, (load.read, load.written, load.received, load.sent))
    cells = (f"node {load.node} {safe(host)}".rstrip(), f"{load.cpu:.2f} of {load.cores}", memory, *moved)
    yield (*cells, *(_gpu_cells(load.gpus, sum(gpu.memory for gpu in load.gpus)) if with_gpus else ()))
    for rank in load.ranks:
        moved = map(_rate, (rank.read, rank.written))
        cells = (f"  rank {rank.rank}", f"{rank.cpu:.2f}", figures.size(rank.memory), *moved, "", "")
        yield (
            *cells,
            *(_gpu_cells([gpu for gpu in load.gpus if gpu.index in rank.gpus], rank.gpu_memory) if with_gpus else ()),
        )


def _gpu_cells(gpus: Sequence[GpuLoad], held: int) -> tuple[str, str]:
    """Return two cells of text: the mean load of the GPUs, and `held` bytes of the sum of their memory. `held` is what
    a node's row or a rank's row shows as used; "-" stands for what is unknown.
    """
    told = [gpu.busy for gpu in gpus if gpu.busy is not None]
    busy = f"{sum(told) / len(told):.0f} %" if told else "-"
    total = sum(gpu.memory_total for gpu in gpus)
    return busy, f"{figures.size(held)} of {figures.size(total)}" if gpus else "-"


def _rate(count: int) -> str:
    """Return a rate in bytes per second as text, or `-` for 0."""
    return f"{figures.size(count)}/s" if count else "-"
