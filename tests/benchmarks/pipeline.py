"""A pipeline of two stages beside two copies and one process: steps a second, and the bubble beside its formula.

    uv run python tests/benchmarks/pipeline.py [--fsdp] [--write]

The model of jobs/gpt_3d.yaml, ranks of one thread each on gloo; the sides take turns, each in new processes. All work
on the same batch in as many parts: a pipeline's micro-batches, and as many of accumulation elsewhere. By so much as a
pipeline's step is longer than half of one process's it is bubble, messages and unequal stages; the formula,
(pp - 1) / (parts + pp - 1), has the bubble alone. With two ranks DDP takes half the samples of each part.
`--fsdp`: beside the other way to have half of a model on each rank, which gathers each block when its turn comes.
"""

import argparse
import contextlib
import statistics
import tempfile
import time

from replica import on_ranks
from results import publish

from trainer.loop import Trainer
from trainer.loop.callbacks import Callback
from trainer.strategies.stages import bubble
from trainer.tasks import gpt

STAGES = 2
SIDES = {
    "one process": (1, lambda parts: ["--strategy", "none", "--accumulate", str(parts)]),
    "ddp, 2 ranks": (2, lambda parts: ["--strategy", "ddp", "--accumulate", str(parts)]),
    "fsdp, 2 ranks": (2, lambda parts: ["--strategy", "fsdp", "--accumulate", str(parts)]),
    "pp=2, 2 ranks": (2, lambda parts: ["--mesh", f"pp={STAGES}", "--pp-microbatches", str(parts)]),
}


class Enough(Exception):
    """All that was to be measured is measured."""


class Watch(Callback):
    """Seconds of a step after the first ones; then it ends the training, on all ranks at the same step."""

    def __init__(self, warm, steps):
        self._warm, self._last = warm, warm + steps
        self.step_s = self._began = 0.0

    def on_step(self, training):
        if training.step == self._warm:
            self._began = time.perf_counter()
        elif training.step == self._last:
            self.step_s = (time.perf_counter() - self._began) / (self._last - self._warm)
            raise Enough


def on_rank(_, folder, words, warm, steps):
    watch = Watch(warm, steps)
    gpt.Trainer = lambda *parts, **named: Trainer(*parts, **{**named, "callbacks": [watch]})
    with contextlib.suppress(Enough):
        gpt.main(
            [
                *("--layers", "4", "--width", "128", "--context", "128", "--lr", "0.004", "--seed", "1"),
                *("--max-steps", str(warm + steps + 1), "--validate-every", "never", "--log-every", "1000"),
                *("--checkpoint-dir", f"{folder}/checkpoints", "--out", folder, "--device", "cpu", *words),
            ]
        )
    return watch.step_s


def seconds(side, parts, options):
    ranks, words = SIDES[side]
    batch = ["--batch-size", str(options.batch_size)]
    with tempfile.TemporaryDirectory() as folder:
        return on_ranks(on_rank, ranks, folder, [*words(parts), *batch], options.warm, options.steps)


def measured(options, parts, sides):
    """Seconds of a step by pair and side, and the speeds of each side as a cell."""
    rows = [[seconds(side, parts, options) for side in sides] for _ in range(options.pairs)]
    cells = " | ".join(
        f"{1 / statistics.median(times):.2f} ({1 / max(times):.2f}-{1 / min(times):.2f})"
        for times in zip(*rows, strict=True)
    )
    return rows, cells


def table_of_fsdp(options):
    sides = ("fsdp, 2 ranks", "pp=2, 2 ranks")
    heads = [f"parts of a batch of {options.batch_size}", *(f"{side}, steps/s" for side in sides), "pp, of fsdp"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for parts in options.parts:
        rows, speeds = measured(options, parts, sides)
        beside = [fsdp / staged for fsdp, staged in rows]
        lines.append(f"| {parts} | {speeds} | {statistics.median(beside):.2f} ({min(beside):.2f}-{max(beside):.2f}) |")
    return "\n".join(lines)


def table(options):
    sides = ("one process", "ddp, 2 ranks", "pp=2, 2 ranks")
    heads = [
        f"parts of a batch of {options.batch_size}", *(f"{side}, steps/s" for side in sides),
        "ddp, of one", "pp, of one", "pp, of ddp", "bubble and messages", "bubble by formula",
    ]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for parts in options.parts:
        rows, speeds = measured(options, parts, sides)
        ddp, staged = (statistics.median(row[0] / row[side] for row in rows) for side in (1, 2))
        beside = statistics.median(row[1] / row[2] for row in rows)
        lost = statistics.median(1 - row[0] / STAGES / row[2] for row in rows)
        formula = bubble("1f1b", STAGES, parts)
        lines.append(f"| {parts} | {speeds} | {ddp:.2f} | {staged:.2f} | {beside:.2f} | {lost:.0%} | {formula:.0%} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--warm", type=int, default=4, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=12, help="that are")
    parser.add_argument("--fsdp", action="store_true", help="beside fsdp, in a table of its own")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    options = parser.parse_args()
    if options.fsdp:
        publish("pipeline-fsdp", table_of_fsdp(options), write=options.write, title="pipeline.py --fsdp")
    else:
        publish("pipeline", table(options), write=options.write)


if __name__ == "__main__":
    main()
