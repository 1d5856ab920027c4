"""Measure the time from the loss of a node to the next step of all ranks, when a spare node replaces the lost one.

    uv run python tests/benchmarks/spare.py [--pairs 5] [--lease-s 5] [--write]

The tiny MLP of trained_steps.py, ddp, on two nodes of this machine with a rank each, and a third node that stands by.
The power of a node is cut: its agent, and all that runs below it, are killed at once, and the kernel closes what they
held open. Or it freezes: all of it is stopped, so that nobody hears of it until its lease has run out. Node 1 is hit,
as node 0 coordinates. Every loss has a run of its own, and the modes take turns. Steps lost are those that rank 0 made
twice. When the loss was known, and when the next generation was decided, is told by the run's own events.

`--shards fsdp` is another table, of strategies that lose shards with the node: with `checkpoint.memory_every` alone,
whose snapshots of that node are lost, and with `checkpoint.buddy`, which has a copy of them on the other node.
"""

import itertools
import json
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "local")]
from lab import all_pids, kill, parent, whole_lines
from race import HOT, LAUNCH, Race
from recover import START_S
from results import benchmark_parser, publish
from resume_step import JOBS, PRELOAD

POWER_CUT, FROZEN = "power cut", "frozen"
HIT = 1
SHARDS = "Measure how many steps a lost node costs with FSDP when another node has a copy of its snapshots in memory."
PAUSE_S = (1.5, 3.0)  # so that there is a checkpoint
EVERY_S = 4  # with shards: seconds from one on disk to the next


@dataclass(frozen=True)
class Loss:
    """Seconds from the loss of a node until it was known, until the next generation began, and until the next step of
    all."""

    known_s: float
    decided_s: float
    whole_s: float
    steps_lost: int


def run_dir(race):
    return next((path.parent for path in race.folder.glob("runs/*/state.json")), None)


def spare_is_there(race):
    path = run_dir(race)
    return path is not None and [node["state"] for node in node_states(path)] == ["up", "up", "spare"]


def node_states(path):
    return json.loads((path / "state.json").read_text())["nodes"]


def processes_of(path, node):
    """The agent of a node and all below it, eldest first."""
    record = json.loads((path / "attempts" / "0001" / f"node-{node:02d}" / "agent.json").read_text())
    found = [record["process"]["pid"]]
    above = {pid: parent(pid) for pid in all_pids()}
    for pid in found:
        found += [child for child, one in above.items() if one == pid]
    return found


def lose(fault, pids):
    """Stopped from the youngest up, so that no agent sees its ranks stand still."""
    for pid in pids if fault == POWER_CUT else reversed(pids):
        kill(pid, signal.SIGKILL if fault == POWER_CUT else signal.SIGSTOP)  # some have ended with their agent


def loss(fault, peer, args, chance, strategy="ddp", checkpoint=""):
    more = f"  spares: 1\n  lease: {args.lease_s:g}s\n"
    words, how = [*JOBS["mlp"], "--strategy", strategy], {"recovery": more, "checkpoint": checkpoint}
    if checkpoint:
        words += ["--checkpoint-every", f"{EVERY_S} s"]
    with Race(peer, 2, *words, script="trained_steps.py", preload=PRELOAD, nodes=2, **how) as race:
        if not race.wait(lambda: race.firsts() and spare_is_there(race), START_S):
            raise SystemExit(f"{peer} did not train beside a spare in {START_S} s:\n{race.said()}")
        time.sleep(chance.uniform(*PAUSE_S) + (EVERY_S if checkpoint else 0))
        race.wait(lambda: True, 1)
        path, strangers = run_dir(race), race.all_pids()
        pids = processes_of(path, HIT)
        at, at_wall = time.monotonic(), time.time()
        lose(fault, pids)
        try:
            whole = race.wait(lambda: firsts(race, strangers, at), args.patience_s)
            if not whole:
                raise SystemExit(f"{peer} had not recovered from a {fault} in {args.patience_s} s:\n{race.said()}")
            events = [json.loads(line) for line in whole_lines(path / "events.jsonl")]
            whole_s = max(firsts(race, strangers, at)) - at
            if args.events:
                tell(fault, peer, events, at_wall)
                print(f"{fault}, {peer}: rank 0 made", *(what for _, _, what in race.notes[0][-12:]), file=sys.stderr)
                print(f"{fault}, {peer}: rank 1 made", *(what for _, _, what in race.notes[1][-12:]), file=sys.stderr)
            return Loss(*times(events, at_wall), whole_s, steps_lost(race.notes[0]))
        finally:
            if fault == FROZEN:
                for pid in reversed(pids):
                    kill(pid, signal.SIGCONT)


def steps_lost(notes):
    """How many of its steps a rank had to make again. A process that stays ends the step again at which it stood, with
    its callbacks, which note it; its weights it keeps (tests/local/test_in_place.py counts the updates)."""
    lost = 0
    for (_, pid, before), (_, same, after) in itertools.pairwise(notes):
        if (same, after) != (pid, before):
            lost += max(0, int(before) + 1 - int(after))
    return lost


def firsts(race, strangers, at):
    return race.firsts_in_place(strangers, at) if race.peer == HOT else race.firsts(strangers)


def times(events, at):
    """Return how many seconds after `at` the failure was recorded, and the next generation opened."""
    later = [event for event in events if event["at"] >= at]
    return tuple(
        next(event["at"] for event in later if event["kind"] == kind) - at for kind in ("failure", "generation_opened")
    )


def tell(fault, peer, events, at):
    for event in events:
        if event["at"] >= at:
            print(f"{fault}, {peer}: {event['at'] - at:.2f} {json.dumps(event)}", file=sys.stderr, flush=True)


def row(fault, peer, losses, beside):
    whole = sorted(one.whole_s for one in losses)
    ratio = statistics.median(whole) / statistics.median(one.whole_s for one in beside)
    known = statistics.median(one.known_s for one in losses)
    decided = statistics.median(one.decided_s for one in losses)
    lost = sorted(one.steps_lost for one in losses)
    return (
        f"| {fault} | {peer} | {len(losses)} | {known:.2f} | {decided:.2f} | {statistics.median(whole):.2f} "
        f"| {whole[0]:.2f}-{whole[-1]:.2f} | {ratio:.2f} | {lost[0]}-{lost[-1]} |"
    )


def beside_copies(args, chance):
    """Both hot, by turns."""
    memory = f"checkpoint:\n  memory_every: {args.memory_every} steps\n"
    ways = {"memory_every": memory, "and buddy": f"{memory}  buddy: true\n"}
    table = [
        "| strategy | | n | decided, s | next step of all, s | range | of without | steps lost, median | range |",
        "|---" * 9 + "|",
    ]
    for strategy in args.shards:
        taken = {way: [] for way in ways}
        for _ in range(args.pairs):
            for way, checkpoint in ways.items():
                taken[way].append(loss(POWER_CUT, HOT, args, chance, strategy, checkpoint))
        table += [row_of_way(strategy, way, losses, taken["memory_every"]) for way, losses in taken.items()]
    notes = (
        "Every process of one of two nodes with one rank each was killed, as by a power cut, and a spare "
        f"node replaced it, with `recovery: {{mode: hot}}` (seed {args.seed}). With FSDP each rank has only "
        "a part (shard) of the state, so the other rank could not supply that of the lost one. A snapshot "
        f"of each rank's shard was made in its node's memory every {args.memory_every} steps "
        f"(`checkpoint.memory_every`), and a checkpoint on disk every {EVERY_S} s. In the row "
        "`memory_every`, the snapshots of the lost node were lost with it, and the training continued from "
        "the disk. In the row `and buddy`, the option `checkpoint.buddy` was set too: the other node had a "
        "copy of the snapshots. `of without` is the median of `next step of all` divided by that of the row "
        "`memory_every`."
    )
    publish("spare-shards", "\n".join([*table, "", notes]), write=args.write, title="spare.py --shards", what=SHARDS)


def row_of_way(strategy, way, losses, beside):
    whole = sorted(one.whole_s for one in losses)
    ratio = statistics.median(whole) / statistics.median(one.whole_s for one in beside)
    lost, decided = sorted(one.steps_lost for one in losses), statistics.median(one.decided_s for one in losses)
    return (
        f"| {strategy} | {way} | {len(losses)} | {decided:.2f} | {statistics.median(whole):.2f} "
        f"| {whole[0]:.2f}-{whole[-1]:.2f} | {ratio:.2f} | {statistics.median(lost):g} | {lost[0]}-{lost[-1]} |"
    )


def main():
    parser = benchmark_parser(__doc__, pairs=5, seed=True)
    parser.add_argument("--faults", nargs="+", choices=[POWER_CUT, FROZEN], default=[POWER_CUT, FROZEN])
    parser.add_argument("--shards", nargs="+", choices=["zero1", "zero2", "fsdp"], help="the other table")
    parser.add_argument("--memory-every", type=int, default=5)
    parser.add_argument("--lease-s", type=float, default=5.0)
    parser.add_argument("--patience-s", type=float, default=60.0)
    parser.add_argument("--events", action="store_true", help="tell what the run noted after each loss")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    if args.shards:
        beside_copies(args, chance)
        return
    table = [
        "| node | | n | known, s | decided, s | next step of all, s | range | of warm | steps lost |",
        "|---" * 9 + "|",
    ]
    for fault in args.faults:
        taken = {LAUNCH: [], HOT: []}
        for _ in range(args.pairs):
            for peer, losses in taken.items():
                losses.append(loss(fault, peer, args, chance))
        table += [row(fault, peer, losses, taken[LAUNCH]) for peer, losses in taken.items()]
    notes = (
        "The run was a tiny MLP with `ddp`, on 2 nodes with one rank each, and a spare node (seed "
        f"{args.seed}). A node without contact counts as lost after {args.lease_s:g} s. In the rows `power "
        "cut` all processes of a node were killed at once; in the rows `frozen` they were stopped by "
        f"SIGSTOP. In the rows `launch` the spec has `recovery: {{mode: warm}}`: all ranks start again from "
        "a checkpoint. In the rows `launch, hot` it has `mode: hot`: the other rank keeps its process, and "
        "sends its state to the new one. `known` is the time from the fault until launch recorded the loss, "
        "`decided` until it began the restart. `of warm` divides the time until the next step by that of "
        "the row `launch` with the same fault. `steps lost` is the lowest and the highest number of steps "
        "that were repeated."
    )
    publish("spare", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
