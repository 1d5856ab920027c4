"""Compare the steps a second of a pipeline with two stages with those of DDP on two ranks and of one process.

    uv run python tests/benchmarks/pipeline.py [--fsdp | --cut] [--write]

The model of jobs/gpt_3d.yaml, ranks of one thread each on gloo; the sides take turns, each in new processes. All work
on the same batch in as many parts: a pipeline's micro-batches, and as many of accumulation elsewhere. By so much as a
pipeline's step is longer than half of one process's it is bubble, messages and unequal stages; the formula,
(pp - 1) / (parts + pp - 1), has the bubble alone. With two ranks DDP takes half the samples of each part.
`--fsdp`: beside the other way to have half of a model on each rank, which gathers each block when its turn comes.
`--cut`: stages cut by measured time beside as many layers each, of a model whose first block takes eight times as long
as each of seven more. These wait, as for an accelerator that calculates, so that a busy machine counts for little.
"""

import contextlib
import statistics
import tempfile
import time

import torch
from replica import on_ranks
from results import benchmark_parser, publish
from torch import nn

from trainer.loop import Settings, Trainer
from trainer.loop.callbacks import Callback
from trainer.strategies.pipeline_schedule import bubble
from trainer.tasks import gpt

STAGES = 2
FSDP = "Compare the steps a second of a pipeline with two stages with those of FSDP on two ranks."
CUT = "Compare a pipeline whose stages have the same number of layers with one whose stages take the same time."
SIDES = {
    "one process": (1, lambda parts: ["--strategy", "none", "--accumulate", str(parts)]),
    "ddp, 2 ranks": (2, lambda parts: ["--strategy", "ddp", "--accumulate", str(parts)]),
    "fsdp, 2 ranks": (2, lambda parts: ["--strategy", "fsdp", "--accumulate", str(parts)]),
    "pp=2, 2 ranks": (2, lambda parts: ["--mesh", f"pp={STAGES}", "--pp-microbatches", str(parts)]),
}

NOTES = (
    "The model is that of jobs/gpt_3d.yaml. Each row divides the batch into as many parts as its first "
    "column says; a part is a micro-batch of the pipeline, and a step of gradient accumulation otherwise. "
    "`pp=2` is the pipeline with two stages, one on each rank. Each rank has one thread. In brackets are "
    "the slowest and the fastest of the pairs. `ddp, of one` and `pp, of one` are the speeds divided by "
    "that of one process; `pp, of ddp` is the speed of the pipeline divided by that of DDP. `bubble and "
    "messages` is how much longer the pipeline's step is than half of the step of one process, as a share "
    "of the pipeline's step: in this time ranks wait, send, or have the larger stage. `bubble by formula` "
    "is the share in which a rank must wait, `(pp - 1) / (parts + pp - 1)`."
)
FSDP_NOTES = (
    "The model is that of jobs/gpt_3d.yaml. Both ways put half of the model on each rank: `pp=2` half of "
    "its layers, `fsdp` half of each layer, which the ranks gather when they need it. The batch is divided "
    "into parts, the micro-batches of the pipeline and the steps of FSDP's gradient accumulation. `pp, of "
    "fsdp` is the speed of the pipeline divided by that of FSDP: the median of the pairs, and in brackets "
    "the lowest and the highest ratio."
)
CUT_NOTES = (
    "The model is an embedding (layer 0), eight blocks (layers 1 to 8) and a linear layer (layer 9). The first "
    "block takes eight times as long as each of the seven others; the blocks only wait, as for a GPU, so that "
    "other work on the machine matters little. `by layers` "
    "(`pp_cut: layers`) gives each of the two stages the same number of layers; `by time` (`pp_cut: time`) "
    "cuts by the measured time of each layer. `time, of layers` is the speed of `by time` divided by that "
    "of `by layers`: the median of the pairs, and in brackets the lowest and the highest ratio."
)


class Enough(Exception):
    """Raised when everything has been measured."""


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


class _Busy(torch.autograd.Function):
    """Waits, as for an accelerator that calculates: cores that others use too do not count."""

    @staticmethod
    def forward(ctx, x, wait_s):
        ctx.wait_s = wait_s
        time.sleep(wait_s)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.wait_s)
        return gradient, None


class Block(nn.Module):
    def __init__(self, wait_s):
        super().__init__()
        self.wait_s, self.linear = wait_s, nn.Linear(32, 32)

    def forward(self, x):
        return _Busy.apply(x + self.linear(x), self.wait_s)


def uneven():
    blocks = [Block(milliseconds / 1000) for milliseconds in (8, *[1] * 7)]
    return nn.Sequential(nn.Embedding(64, 32), *blocks, nn.Linear(32, 64))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def on_rank_of_uneven(_, folder, cut, parts, options):
    watch = Watch(options.warm, options.steps)
    settings = Settings(
        mesh=f"pp={STAGES}", pp_cut=cut, pp_microbatches=parts, batch_size=options.batch_size, blocks=("Block",),
        max_steps=options.warm + options.steps + 1, log_every=1000, checkpoint_dir=f"{folder}/checkpoints", out=folder,
        device="cpu",
    )  # fmt: skip
    data = list(torch.randint(0, 64, (options.batch_size, 65), generator=torch.Generator().manual_seed(1)))
    trainer = Trainer(settings, model=uneven, loss=loss, data=data, optimizer=torch.optim.AdamW, callbacks=[watch])
    with contextlib.suppress(Enough):
        trainer.fit()
    return watch.step_s, trainer._built.pipeline.cut.summary()


def table_of_cut(options):
    heads = [f"parts of a batch of {options.batch_size}", "by layers, steps/s", "by time, steps/s", "time, of layers"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    told = ""
    for parts in options.parts:
        rows = []
        for _ in range(options.pairs):
            row = []
            for cut in ("layers", "time"):
                with tempfile.TemporaryDirectory() as folder:
                    step_s, told = on_ranks(on_rank_of_uneven, STAGES, folder, cut, parts, options)
                row.append(step_s)
            rows.append(row)
        beside = [layers / timed for layers, timed in rows]
        lines.append(
            f"| {parts} | {speeds_of(rows)} | {statistics.median(beside):.2f} ({min(beside):.2f}-{max(beside):.2f}) |"
        )
    told = f"A stage is given by its first and last layer. Cut {told} of a step."
    return "\n".join([*lines, "", f"{CUT_NOTES} {told}"])


def seconds(side, parts, options):
    ranks, words = SIDES[side]
    batch = ["--batch-size", str(options.batch_size)]
    with tempfile.TemporaryDirectory() as folder:
        return on_ranks(on_rank, ranks, folder, [*words(parts), *batch], options.warm, options.steps)


def measured(options, parts, sides):
    """Seconds of a step by pair and side, and the speeds of each side as a cell."""
    rows = [[seconds(side, parts, options) for side in sides] for _ in range(options.pairs)]
    return rows, speeds_of(rows)


def speeds_of(rows):
    return " | ".join(
        f"{1 / statistics.median(times):.2f} ({1 / max(times):.2f}-{1 / min(times):.2f})"
        for times in zip(*rows, strict=True)
    )


def table_of_fsdp(options):
    sides = ("fsdp, 2 ranks", "pp=2, 2 ranks")
    heads = [f"parts of a batch of {options.batch_size}", *(f"{side}, steps/s" for side in sides), "pp, of fsdp"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for parts in options.parts:
        rows, speeds = measured(options, parts, sides)
        beside = [fsdp / staged for fsdp, staged in rows]
        lines.append(f"| {parts} | {speeds} | {statistics.median(beside):.2f} ({min(beside):.2f}-{max(beside):.2f}) |")
    return "\n".join([*lines, "", FSDP_NOTES])


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
    return "\n".join([*lines, "", NOTES])


def main():
    parser = benchmark_parser(__doc__.partition("\n")[0], pairs=5)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--warm", type=int, default=4, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=12, help="that are")
    parser.add_argument("--fsdp", action="store_true", help="beside fsdp, in a table of its own")
    parser.add_argument("--cut", action="store_true", help="stages cut by time beside by layers, in a table of its own")
    options = parser.parse_args()
    if options.cut:
        publish("pipeline-cut", table_of_cut(options), write=options.write, title="pipeline.py --cut", what=CUT)
    elif options.fsdp:
        publish("pipeline-fsdp", table_of_fsdp(options), write=options.write, title="pipeline.py --fsdp", what=FSDP)
    else:
        publish("pipeline", table(options), write=options.write)


if __name__ == "__main__":
    main()
