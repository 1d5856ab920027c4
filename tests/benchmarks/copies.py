"""Measure how much slower the steps of two ranks on two hosts are while launch copies checkpoints between the hosts.

    uv run python tests/benchmarks/copies.py [--write]

In one run every second checkpoint is copied and the others are not, so that each period with a copy has neighbours
without one: a step's time in it is compared with the mean of theirs, which a machine that gets slower or faster in the
meantime does not disturb. Both hosts are this machine, so the training pays for both ends of a copy: sending, and
receiving, hashing and fsync. Each rank computes with one thread; DDP over gloo; a replicated state of the given size,
of which each writes a half. The agents' CPU time is theirs alone.
"""

import contextlib
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "node"), str(HERE.parent / "local")]

import idle
from replica import folder_for_all, spread
from results import benchmark_parser, publish
from separate_hosts import Hosts

from launcher.run.layout import RunDir
from launcher.spec.model import CheckpointOptions

_AGENT = """
import sys
from launcher.node import __main__ as agent
from launcher.copies.copier import Copier

note, seen = Copier.note, set()

def note_every_second(copier, step):
    if step not in seen:
        seen.add(step)
        if len(seen) % 2:
            note(copier, step)

Copier.note = note_every_second
sys.exit(agent.main())
"""


def measure(root, args):
    """Seconds a step in each period between two saves, and the agents' CPU seconds."""
    words = {"megabytes": args.megabytes, "seconds": args.seconds, "batch": args.batch}
    lab = Hosts(root, HERE / "copied_steps.py", 2, checkpoint=CheckpointOptions(every_s=args.every_s, keep=2), **words)
    try:
        lab.start(0, 1, agent=("-c", _AGENT))
        cpu_s = watch(lab, args.seconds + 120)
        codes = lab.end(1)
        if set(codes.values()) != {0}:
            raise SystemExit(f"the agents ended with {codes}\n{lab.rank_log(0, 1)}")
        if not lab.state()["safe_checkpoint"]:
            raise SystemExit("no checkpoint has got its second copies")
        lines = (RunDir(lab.run_dir(0)).metrics / "steps.txt").read_text().splitlines()
    finally:
        lab.tidy()
    moments = [tuple(map(float, line.split())) for line in lines]  # time, saves begun, steps done
    begins = [after for before, after in pairwise(moments) if after[1] > before[1]]
    return [(end[0] - begin[0]) / (end[2] - begin[2]) for begin, end in pairwise(begins)], cpu_s


def watch(lab, bound_s):
    """Wait until the agents have left, and return the CPU seconds that both have used."""
    used = {}
    deadline = time.monotonic() + bound_s
    while (running := lab.pids()) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            used.update({pid: idle.cpu_s(pid) for pid in running})
        time.sleep(0.5)
    return sum(used.values())


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=150)
    parser.add_argument("--every-s", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--where", type=Path, default=None, help="folder on the disk to be used")
    args = parser.parse_args()
    with folder_for_all(args.where) as root:
        periods, cpu_s = measure(root, args)
    if len(periods) < 3:
        raise SystemExit(f"{len(periods)} whole periods are too few: give it more seconds")
    triples = [(periods[i], (periods[i - 1] + periods[i + 1]) / 2) for i in range(2, len(periods) - 1, 2)]
    triples = triples or [(periods[0], periods[1])]
    slower = sorted(copied / quiet - 1 for copied, quiet in triples)
    table = ["| periods | ms a step, median | range |", "|---|---|---|"]
    table += [f"| with copies | {spread([one * 1e3 for one in periods[0::2]])} |"]
    table += [f"| without | {spread([one * 1e3 for one in periods[1::2]])} |"]
    notes = (
        f"A checkpoint of {args.megabytes:g} MB was saved every {args.every_s:g} s, and every second one was copied "
        "to the other host. A period is the time between two saves. In each period with a copy, the time of a step "
        "was compared with the mean of the periods before and after it: it differed by "
        f"{statistics.median(slower):+.1%} (median of {len(slower)} periods, {slower[0]:+.1%} to {slower[-1]:+.1%}). "
        f"The two agents together used {cpu_s:.1f} s of CPU time in {args.seconds:g} s. Both hosts were on this "
        "machine, so the training paid for sending and for receiving."
    )
    publish("copies", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
