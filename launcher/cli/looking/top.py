"""`launch top`: what a run uses now, by node and rank, from the samples that its agents take."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from launcher import api
from launcher.cli import figures
from launcher.cli.answers import list_of, merged
from launcher.cli.arguments import Arguments
from launcher.cli.looking.page import headline
from launcher.cli.terminal import Screen, columns, is_terminal, paint, safe, to_json
from launcher.errors import Exit, Refused
from launcher.run.hangs import LastRank
from launcher.run.records import GpuLoad, NodeLoad, RankLoad
from launcher.states import State
from launcher.status.derive import RunStatus

EXAMPLES = """
  launch top last                 drawn anew until the run has ended; Ctrl-C ends it sooner
  launch top resnet --once        one table; as it is where the output is no terminal
  launch top resnet --json        in cores, bytes and bytes a second, for programs

CPU is in cores. A rank's figures are of all its processes, data workers too; memory that they share counts in each.
A node's are of its whole machine: networks are counted for machines alone. Agents look every five seconds.
Where ranks of torch.distributed wait for one of them, the second line says for which; that is looked at every minute.
"""
_HEAD = ("", "CPU", "MEMORY", "READ", "WRITTEN", "RECEIVED", "SENT")
_GPU_HEAD = ("GPU", "GPU MEMORY")
_WATCH_S = 1.0


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    arguments.add_argument("--once", action="store_true", help="one table, as it is now")
    arguments.prints_json(_answers, "one answer for programs")


def _answers() -> dict[str, object]:
    node = merged("NodeNow", NodeLoad, host=str)
    return {
        "": merged(
            "RunNow",
            run=str,
            state=State,
            step=int | None,
            rate=float | None,
            nodes=list_of(node),
            last_rank=LastRank | None,
        )
    }


def run(options: argparse.Namespace) -> int:
    one = api.run(options.run)
    status = one.status()
    if status.state.ended:
        raise Refused(f"{status.run} {status.state}: nothing of it runs", f"hint: launch status {status.run}")
    if options.json:
        print(to_json(_plain(status)))
    elif options.once or not is_terminal(sys.stdout):
        print("\n".join(_lines(status, time.time())))
        if not status.loads:
            print("its agents have sent no sample yet: they look every five seconds", file=sys.stderr)
    else:
        _watch(one)
    return Exit.OK


def _watch(one: api.Run) -> None:
    screen = Screen(sys.stdout)
    while not (status := one.status(api.WATCH_S)).state.ended:
        screen.show(_lines(status, time.time()))
        time.sleep(_WATCH_S)
    screen.show([headline(status)], last=True)


def _plain(status: RunStatus) -> dict[str, object]:
    hosts = {node.node: node.host for node in status.nodes}
    nodes = [{"host": hosts.get(load.node, ""), **msgspec.structs.asdict(load)} for load in status.loads]
    return {
        "run": status.run,
        "state": status.state,
        "step": status.step,
        "rate": status.rate,
        "nodes": nodes,
        "last_rank": status.last_rank,
    }


def _lines(status: RunStatus, now: float) -> list[str]:
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
    """Yield the row of the node and one of each of its ranks."""
    memory = f"{figures.size(load.memory)} of {figures.size(load.memory_total)}"
    moved = map(_rate, (load.read, load.written, load.received, load.sent))
    cells = (f"node {load.node} {safe(host)}".rstrip(), f"{load.cpu:.2f} of {load.cores}", memory, *moved)
    yield (*cells, *(_gpu_cells(load.gpus, sum(gpu.memory for gpu in load.gpus)) if with_gpus else ()))
    for rank in load.ranks:
        moved = map(_rate, (rank.read, rank.written))
        cells = (f"  rank {rank.rank}", f"{rank.cpu:.2f}", figures.size(rank.memory), *moved, "", "")
        yield (*cells, *(_gpu_cells(_gpus_of(rank, load), rank.gpu_memory) if with_gpus else ()))


def _gpus_of(rank: RankLoad, load: NodeLoad) -> list[GpuLoad]:
    return [gpu for gpu in load.gpus if gpu.index in rank.gpus]


def _gpu_cells(gpus: Sequence[GpuLoad], held: int) -> tuple[str, str]:
    """Return the average load of the GPUs, as far as known, and their memory."""
    told = [gpu.busy for gpu in gpus if gpu.busy is not None]
    busy = f"{sum(told) / len(told):.0f} %" if told else "-"
    total = sum(gpu.memory_total for gpu in gpus)
    return busy, f"{figures.size(held)} of {figures.size(total)}" if gpus else "-"


def _rate(count: int) -> str:
    return f"{figures.size(count)}/s" if count else "-"
