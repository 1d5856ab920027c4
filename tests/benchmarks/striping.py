"""Measure how fast a new rank gets a training's state: from one rank, from three, and from memory on its node.

    uv run python tests/benchmarks/striping.py [--megabytes 300] [--mbit 1000] [--pairs 7] [--write]

Four ranks, each a process of its own with a model and its Adam, meet over gloo; the first has lost its state. Over
loopback all share two cores, and nothing is gained by more ends: it only must not be slower. `--mbit` puts each rank
into a network namespace of its own (as root), from which it sends no faster than that; there nothing is read. What was
taken is compared with what was given, byte by byte.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

from replica import Clock, Replica, ratio, spread
from results import benchmark_parser, publish

from launcher.node.ranks.ports import HeldPort
from trainer import world as worlds
from trainer.checkpoint.contents import Subjects
from trainer.recovery import replica as handing
from trainer.recovery.agreement import Agreement
from trainer.recovery.replica import ReplicaReader, Snapshot, senders_of

RANKS = 4
ONE, THREE, READ = "from one", "from three", "read"
HUB = "10.99.0.1"
AGREED = Agreement(step=1, source=1, receivers=(0,))


def hand_on(ways, pairs, megabytes):
    """On each rank; the first one tells how long it took, by way."""
    world = worlds.join(device="cpu")
    state = Replica(megabytes)
    subjects = Subjects({"model": state.model}, {"optimizer": state.optimizer}, {}, {})
    snapshot = Snapshot.of(1, {}, subjects.optimizers, {})
    clock, taken, wanted = Clock(world), {way: [] for way in ways}, digest(state)
    for turn in range(len(ways) * (pairs + 1)):
        way = ways[turn % len(ways)]
        handing.senders_of = senders_of if way == THREE else (lambda *at: senders_of(*at)[:1])
        among = replace(world, local_size=RANKS) if way == READ else world
        if world.is_first:
            for tensor in state.model.parameters():
                tensor.detach().zero_()
            state.optimizer.state.clear()
        taken[way].append(clock.time(partial(move, subjects, snapshot, among)))
        if digest(state) != wanted:
            raise SystemExit("what was taken is not what was given")
    worlds.barrier(world)
    if world.is_first:
        print(json.dumps({"bytes": state.bytes, "taken": {way: times[1:] for way, times in taken.items()}}))


def move(subjects, snapshot, world):
    if world.is_first:
        ReplicaReader(AGREED, subjects, world).take()
    else:
        handing.Replica(subjects, snapshot).give(AGREED, world)


def digest(state):
    found = hashlib.blake2b()
    for parameter in state.model.parameters():
        found.update(parameter.detach().numpy().data)
        for _, value in sorted(state.optimizer.state[parameter].items()):
            found.update(value.numpy().tobytes())
    return found.hexdigest()


def measure(args, mbit):
    """Measure with ranks on one network, or each in a network namespace of its own."""
    port = HeldPort("127.0.0.1")
    words = [sys.executable, __file__, "--pairs", str(args.pairs), "--megabytes", str(args.megabytes)]
    words += ["--rank", ONE, THREE, *([] if mbit else [READ])]
    ranks = []
    for rank in range(RANKS):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCH_")} | {
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": HUB if mbit else "127.0.0.1",
            "MASTER_PORT": str(port.number),
            "GLOO_SOCKET_IFNAME": "lo" if not mbit else "eth0" if rank else "hub",
            "OMP_NUM_THREADS": "1",
        }
        enter = ["unshare", "--net"] if mbit else []
        ranks.append(subprocess.Popen([*enter, *words], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    try:
        if mbit:
            connect([one.pid for one in ranks], mbit)
        for one in ranks:
            one.stdin.write(b"\n")
            one.stdin.flush()
        said = [one.communicate()[0] for one in ranks]
        if any(one.returncode for one in ranks):
            raise SystemExit("a rank has failed")
    finally:
        for one in ranks:
            one.kill()
    return json.loads(said[0])


def connect(pids, mbit):
    """The first rank's namespace has the switch. They end with their processes, and all that is in them."""
    for pid in pids:
        while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
    first, *others = pids
    run(first, "ip link add hub type bridge; ip link set hub up; ip link set lo up")
    run(first, f"ip address add {HUB}/24 dev hub")
    for number, pid in enumerate(others, 2):
        run(first, f"ip link add to{number} type veth peer name eth0 netns {pid}")
        run(first, f"ip link set to{number} master hub up")
        run(pid, f"ip address add 10.99.0.{number}/24 dev eth0; ip link set eth0 up; ip link set lo up")
        run(pid, f"tc qdisc add dev eth0 root tbf rate {mbit}mbit burst 256kb latency 50ms")


def run(pid, commands):
    for command in commands.split("; "):
        subprocess.run(["nsenter", f"--target={pid}", "--net", *command.split()], check=True)


def rows(where, said):
    for way, times in said["taken"].items():
        rates = sorted(said["bytes"] / seconds / 1e6 for seconds in times)
        cells = f"{spread(times)} | {rates[len(rates) // 2]:.0f} | {ratio(times, said['taken'][ONE]):.2f}"
        yield f"| {where} | {said['bytes'] / 1e6:.0f} | {way} | {cells} |"


def main():
    parser = benchmark_parser(__doc__, pairs=7)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--mbit", type=int, nargs="*", default=[], help="what each rank may send, in namespaces")
    parser.add_argument("--rank", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        sys.stdin.readline()  # the network is there
        hand_on(args.rank, args.pairs, args.megabytes)
        return
    table = [
        "| network | MB | | s | range | MB/s | of one |",
        "|---" * 7 + "|",
        *rows("loopback", measure(args, None)),
        *(row for mbit in args.mbit for row in rows(f"{mbit} Mbit/s from each", measure(args, mbit))),
    ]
    notes = (
        "One of four ranks had lost its state, the weights of a model and its Adam, and got it from the "
        "others. In the rows `from one`, one rank sent all of it; in the rows `from three`, each of three "
        "ranks sent a third. In the row `read`, the new rank read it from the memory of a rank on the same "
        "node. In the rows `loopback` the ranks shared 2 cores and the loopback network, so three senders "
        "are no faster than one. In rows such as `1000 Mbit/s from each`, each rank was in a network "
        "namespace of its own, from which it could send no faster. These ways took turns in the same "
        f"processes; times are medians of {args.pairs} measurements. `of one` is the median of the ratios to "
        "the time of `from one`."
    )
    publish("striping", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
