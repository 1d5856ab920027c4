"""Train a transformer on a text's bytes, or score a text with it: `python -m trainer.tasks.gpt --strategy fsdp`."""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.optim import AdamW, Optimizer

from trainer.checkpoint.models import put_weights, whole_weights
from trainer.errors import BadSettings
from trainer.loop.callbacks import Callback
from trainer.loop.progress import Training
from trainer.loop.settings import Settings, add_options
from trainer.loop.trainer import Trainer
from trainer.serving.service import Service
from trainer.strategies.mesh import mesh_of
from trainer.tasks.answers import Line
from trainer.tasks.command import add_prediction_options, add_schedule_options, run, schedule, settings_of
from trainer.tasks.predict import Prediction, predict
from trainer.tasks.text import Text, open_text
from trainer.tasks.text_service import text_service
from trainer.tasks.transformer import Shape, Transformer, continue_text, decay_groups

_NATS_PER_BIT = math.log(2)
_STEPS = 400  # if no end is given
_PREDICTED_AT_ONCE = 16


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Raises BadSettings for options that do not go together.
    """
    options = parse(argv)
    settings = settings_of(options, steps=_STEPS)
    shape = _shape(options)
    for name, size in (("heads", shape.heads), ("context", shape.context)) if settings.mesh else ():
        if size % (tp := mesh_of(settings.mesh).get("tp", 1)):
            raise BadSettings(f"--mesh: tp={tp} does not divide --{name}, {size}")
    if options.sample and mesh_of(settings.mesh).get("pp", 1) > 1:
        raise BadSettings("--sample: does not go with a mesh that has pp\nhint: sample from an export of the run")
    text = open_text(options.text, length=options.context)
    if options.predict is not None:
        return predict(_prediction(settings, shape, text), options.predict, options.checkpoint)
    last = LastWeights()
    code = Trainer(
        settings,
        model=lambda: Transformer(shape),
        loss=loss,
        data=text.train,
        validation=text.validation,
        optimizer=_optimizer(options),
        schedule=schedule(options.schedule, options.warmup_steps),
        callbacks=[last] if options.sample else [],
    ).fit()
    if last.weights:
        sys.stdout.write(sample(shape, last.weights, options.sample, settings.seed) + "\n")
    return code


def service(args: Sequence[str]) -> Service:
    """Return the service that `launch serve` runs for a model that was trained with these command-line arguments.

    It has the functions to load a checkpoint and to answer texts with it.
    """
    return text_service(_shape(parse(args)))


def _shape(options: argparse.Namespace) -> Shape:
    """Return the sizes of the transformer that the options give."""
    return Shape(
        context=options.context,
        layers=options.layers,
        heads=options.heads,
        width=options.width,
        dropout=options.dropout,
        tied=options.tied,
    )


class LastWeights(Callback):
    """A callback that gathers the whole weights at the end of the training, and keeps them on rank 0.

    They are gathered from the ranks while these still run, because without a shared disk no node may have a complete
    checkpoint to read them from.
    """

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def on_done(self, training: Training) -> None:
        """Gather the weights; only rank 0 keeps them."""
        self.weights = whole_weights(training.strategy.module, keep=training.world.is_first)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tasks.gpt",
        description=__doc__,
        epilog=f"It ends after {_STEPS} steps unless told otherwise.",
    )
    group = parser.add_argument_group("model and data")
    shape = Shape()
    group.add_argument("--text", type=Path, metavar="FILE", help="any file; left out: the sources of Python's library")
    for name, says in (
        ("context", "bytes that the model sees at once"),
        ("layers", "blocks"),
        ("heads", "of each block"),
        ("width", "numbers for each byte"),
    ):
        default = getattr(shape, name)
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{says} (default: {default})")
    group.add_argument("--dropout", type=float, default=shape.dropout, metavar="X", help="(default: 0)")
    group.add_argument(
        "--tied", action=argparse.BooleanOptionalAction, default=True, help="the head uses the embedding's weights"
    )
    group.add_argument("--sample", type=int, default=0, metavar="N", help="write so many bytes of its own at the end")
    add_schedule_options(parser, lr=4e-3, weight_decay=0.1, warmup=50)
    add_prediction_options(parser)
    add_options(parser, batch_size=16, seed=1, clip_norm=1.0, validation_batch_size=16)
    return parser.parse_args(argv)


def loss(model: nn.Module, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean cross entropy of each next byte, and a dict with the same in bits, `bits_per_byte`.

    `batch` has a window of bytes in each row.
    """
    nats = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())
    return nats, {"bits_per_byte": nats.detach() / _NATS_PER_BIT}


def answer(model: nn.Module, batch: Tensor) -> tuple[list[Line], list[float]]:
    """Score windows of text, one in each row of `batch`, by how well the model predicts each byte from those before.

    Return (for each window a dict with its `loss` and `bits_per_byte`, the list of the latter).
    """
    logits = model(batch[:, :-1]).flatten(0, 1).float()
    nats = F.cross_entropy(logits, batch[:, 1:].flatten(), reduction="none").view(len(batch), -1)
    losses = nats.mean(dim=1).tolist()
    bits = [each / _NATS_PER_BIT for each in losses]
    lines: list[Line] = [
        {"loss": round(nat, 6), "bits_per_byte": round(bit, 6)} for nat, bit in zip(losses, bits, strict=True)
    ]
    return lines, bits


def _optimizer(options: argparse.Namespace) -> Callable[[Any], Optimizer]:
    """Return a function that makes AdamW for given parameters, with the learning rate and weight decay of `options`."""

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return AdamW with weight decay for matrices only."""
        return AdamW(decay_groups(parameters, options.weight_decay), lr=options.lr, betas=(0.9, 0.95))

    return make


def _prediction(settings: Settings, shape: Shape, text: Text) -> Prediction:
    """Return the Prediction that scores each validation window of `text` with a transformer of this shape."""
    return Prediction(
        task=f"gpt {shape}",
        model=lambda: Transformer(shape),
        dataset=text.validation,
        data=text.describe(),
        answer=answer,
        mean="bits_per_byte",
        batch_size=settings.validation_batch_size or _PREDICTED_AT_ONCE,
        settings=settings,
    )


def sample(shape: Shape, weights: Mapping[str, Tensor], count: int, seed: int) -> str:
    """Return `count` bytes of text that the transformer generates after a line break, with `seed` for its draws.

    `shape` are its sizes, and `weights` its weights by name. Bytes that are no UTF-8 become replacement characters.
    """
    model = Transformer(shape).eval()
    put_weights(model, weights)
    generator = torch.Generator().manual_seed(seed)
    tokens = continue_text(model, torch.tensor([10]), count, context=shape.context, generator=generator)
    return bytes(tokens.tolist()).decode(errors="replace")


if __name__ == "__main__":
    sys.exit(run(main))
