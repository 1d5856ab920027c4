"""The common parts of the tasks' commands: options, the schedule, and the exit code."""

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from trainer.errors import TrainerError
from trainer.loop.settings import Settings, from_options

SCHEDULES = ("cosine", "constant")
_BAD_INPUT = 2


def run(main: Callable[[], int]) -> int:
    """Run `main` and return its exit code.

    A user's mistake (TrainerError) is printed as one message with exit code 2; under launch it is raised without a
    traceback.
    """
    try:
        return main()
    except TrainerError as error:
        if "LAUNCH_RUN_ID" in os.environ:
            raise error.with_traceback(None) from None  # the traceback says nothing about a user's mistake
        sys.stderr.write(f"error: {error}\n")
        return _BAD_INPUT


def number(text: str) -> float:
    """Return an option's text as a number.

    Raises ArgumentTypeError if it is negative, infinite or NaN, and ValueError if it is no number.
    """
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number that is not negative, got {text!r}")
    return value


def add_schedule_options(parser: argparse.ArgumentParser, *, lr: float, weight_decay: float, warmup: int) -> None:
    """Add the options of the optimizer and its schedule, with these defaults; `warmup` is a number of steps."""
    group = parser.add_argument_group("optimizer")
    group.add_argument("--lr", type=number, default=lr, metavar="X", help=f"learning rate (default: {lr})")
    group.add_argument(
        "--weight-decay", type=number, default=weight_decay, metavar="X", help=f"(default: {weight_decay})"
    )
    group.add_argument(
        "--schedule", choices=SCHEDULES, default="cosine", help="the learning rate after the warmup (default: cosine)"
    )
    group.add_argument(
        "--warmup-steps",
        type=int,
        default=warmup,
        metavar="N",
        help=f"steps in which it grows first (default: {warmup})",
    )


def settings_of(options: argparse.Namespace, *, steps: int) -> Settings:
    """Return the Settings that the options give; `steps` is `max_steps` if the options set no end of the training."""
    if options.max_steps is options.max_epochs is options.max_time_s is None:
        options.max_steps = steps
    return from_options(options)


def add_prediction_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--predict` and `--checkpoint`, which ask for a prediction instead of a training."""
    group = parser.add_argument_group("prediction, instead of training")
    group.add_argument("--predict", type=Path, metavar="OUT", help="write a line of JSON for each validation sample")
    group.add_argument(
        "--checkpoint",
        default="newest",
        metavar="FOLDER",
        help="where the weights are; FOLDER/best: the best ones there; newest: in the checkpoint folder (default)",
    )


def schedule(kind: str, warmup_steps: int) -> Callable[[Optimizer, int | None], LambdaLR]:
    """Return a function that makes a scheduler of an optimizer and the total number of steps (None: unknown).

    The rate rises linearly for `warmup_steps`. Then it stays if `kind` is "constant" or the total is unknown, and is
    lowered to 0 by half a cosine if `kind` is "cosine".
    """

    def make(optimizer: Optimizer, total_steps: int | None) -> LambdaLR:
        """Return the scheduler."""

        def factor(step: int) -> float:
            """Return the factor of the learning rate at this step."""
            if step < warmup_steps:
                return (step + 1) / warmup_steps
            if kind == "constant" or total_steps is None:
                return 1.0
            done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
            return 0.5 + 0.5 * math.cos(math.pi * min(1.0, done))

        return LambdaLR(optimizer, factor)

    return make
