"""Compare two measures of communication time: by profiler traces, and by how much shorter a step is without
communication.

    uv run python tests/benchmarks/traced.py [--write]

Two gloo ranks of one thread train a stack of linear layers with DDP: blocks of steps with all-reduce, blocks with the
same computation under `no_sync`, and blocks with all-reduce that are traced as `profile` does, in turns. What the first
take longer than the second is communication in the open and waiting for the slower rank, measured without any trace;
beside it stands what the third's traces say of both, as a share of a traced step. Also: what a trace, and its marks
alone, cost a step.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from replica import on_ranks
from results import benchmark_parser, publish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from trainer.loop.phases import HostPhases
from trainer.loop.profiling import MarkedPhases
from trainer.loop.trace_summary import merged, traced

STEPS = 5  # of a block
WIDTHS = {"much to compute": (256, 256, 256), "much to send": (512, 512, 8)}  # layers wide, in, samples of a rank


class Side:
    """A model, and its blocks of steps."""

    def __init__(self, kind):
        width, inputs, samples = WIDTHS[kind]
        torch.manual_seed(1)
        layers = [
            nn.Linear(inputs, width),
            nn.ReLU(),
            *(nn.Linear(width, width) for _ in range(6)),
            nn.Linear(width, 1),
        ]
        self.model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(samples, inputs)

    def step(self, phases):
        loss = self.model(self.batch).square().mean()
        phases.lap("forward")
        loss.backward()
        phases.lap("backward")
        self.optimizer.step()
        self.optimizer.zero_grad()
        phases.lap("optimizer")

    def block(self, phases):
        """Seconds of a step."""
        dist.barrier()
        began = time.perf_counter()
        for _ in range(STEPS):
            self.step(phases)
        return (time.perf_counter() - began) / STEPS

    def alone(self, phases):
        with self.model.no_sync():
            return self.block(phases)

    def traced(self, phases, path):
        """Seconds of a step, and what the traces of all ranks say of it."""
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            phases.lap("other")
            took = self.block(phases)
        seen.export_chrome_trace(str(path))
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, traced(json.loads(path.read_bytes())["traceEvents"]))
        return took, merged(found, STEPS)


def on_rank(_, kind, pairs):
    """Return for each pair the seconds with and without, with marks alone and traced, and the exposed share of the
    trace.
    """
    side, plain = Side(kind), HostPhases()
    marked = MarkedPhases(plain)
    for _ in range(2):
        side.block(plain)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(pairs):
            together, alone, with_marks = side.block(plain), side.alone(plain), side.block(marked)
            took, found = side.traced(marked, Path(folder) / f"{number}-{dist.get_rank()}.json")
            share = (found["communication"] + found["straggler"]) / found["step"]
            rows.append((together, alone, with_marks, took, share))
    return rows


def table(pairs, kinds):
    lines = [
        "| | step | in the open, by difference | by traces | quarters of both | step with marks | step with a trace |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        rows = on_ranks(on_rank, 2, kind, pairs)
        by_difference = [(one - other) / one for one, other, *_ in rows]
        by_trace = [row[4] for row in rows]
        marks = statistics.median(row[2] / row[0] for row in rows)
        cost = statistics.median(row[3] / row[0] for row in rows)
        lines.append(
            f"| {kind} | {statistics.median(row[0] for row in rows) * 1000:.1f} ms "
            f"| {statistics.median(by_difference):.0%} | {statistics.median(by_trace):.0%} "
            f"| {quarters(by_difference)}; {quarters(by_trace)} | {marks:.2f} | {cost:.2f} |"
        )
    return "\n".join(lines)


def quarters(values):
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 4]:.0%} to {ordered[-1 - len(ordered) // 4]:.0%}"


NOTES = (
    "Two ranks trained a stack of linear layers by DDP on gloo, with one thread each. The two rows are a "
    "model with much computation and one with many gradients. `step` is the time of one step. The next two "
    "columns have the share of a step that is communication `in the open`: ranks only communicate, or wait "
    "for the slower rank, and compute nothing. `by difference` is measured without a profiler, as the "
    "difference between a step and a step under DDP's `no_sync`. `by traces` is computed from profiler "
    "traces, in the same way as `Trainer` summarises a trace. `quarters of both` has the first and third "
    "quartile of each of the two shares. The last two columns have the time of a step divided by that in "
    "`step`: with the marks that `Trainer` sets around its phases, and with marks and profiler."
)


def main():
    parser = benchmark_parser(__doc__.partition("\n")[0], pairs=11)
    parser.add_argument("--kinds", nargs="*", default=[*WIDTHS])
    options = parser.parse_args()
    publish("traced", f"{table(options.pairs, options.kinds)}\n\n{NOTES}", write=options.write)


if __name__ == "__main__":
    main()
