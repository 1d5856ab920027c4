"""`launch export`: write the weights of a run as files for other libraries."""

import argparse
import sys
from pathlib import Path

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.looking.checkpoints import noted_text
from launcher.cli.terminal import is_terminal, safe, show_news, to_json
from launcher.errors import Exit
from launcher.spec.kinds.leaf import Unfit
from launcher.spec.kinds.numbers import Size
from launcher.spec.tree import FROM_COMMAND_LINE, Scalar
from launcher.submission.exporting import Exported
from trainer.checkpoint_files.float_types import FLOATS

EXAMPLES = """
  launch export last                                   the newest checkpoint's weights, as RUN.safetensors
  launch export resnet --best -o model.safetensors     those with the best monitored value
  launch export resnet --step 1200 -o model.pt         for torch.load(weights_only=True): tensors by name
  launch export gpt --dtype bfloat16 -o gpt            a folder, as Hugging Face's from_pretrained reads it
  launch export gpt -o gpt.dcp                         for torch.distributed.checkpoint

Parameters and buffers by the names that the model has, whole, whatever ranks had parts of them; no optimizer. Every
byte of the checkpoint is compared first. Needs no torch. Of a run on other machines the checkpoint is fetched first.
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch export`."""
    arguments.takes_run()
    which = arguments.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the best checkpoint")
    which.add_argument(
        "--step", metavar="STEP", type=_step, help="the checkpoint of this step (default: the newest complete one)"
    )
    arguments.add_argument(
        "-o", "--output", metavar="FILE", type=Path,
        help="ends with .safetensors, .pt, .pth or, a folder, .dcp; without an ending it is a folder of safetensors "
        "(default: RUN.safetensors)",
    )  # fmt: skip
    arguments.add_argument("--model", metavar="NAME", help="the model, if the checkpoint has several")
    arguments.add_argument(
        "--dtype", choices=FLOATS, help="the type of floating-point tensors in the file (default: as saved)"
    )
    arguments.add_argument(
        "--shard-size",
        metavar="SIZE",
        type=_size,
        help="largest file in a folder of safetensors (default: 5GB)",
    )
    arguments.add_argument("--force", action="store_true", help="overwrite an existing file")
    arguments.prints_json(lambda: {"": Exported}, "what was written, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch export` and return its exit code."""
    show_news()
    one = api.run(options.run)
    file = options.output or Path(f"{one.id}.safetensors")
    if is_terminal(sys.stderr):
        print("reading every byte of the checkpoint ...", file=sys.stderr, flush=True)
    found = one.export(
        file, step=options.step, best=options.best, model=options.model, dtype=options.dtype,
        most_bytes_per_file=options.shard_size, overwrite=options.force,
    )  # fmt: skip
    for words in found.passed_over:
        print(f"warning: passed over {safe(words)}", file=sys.stderr)
    if options.json:
        print(to_json(found))
        return Exit.OK
    print(safe(found.file))
    print(_export_line(found), file=sys.stderr)
    return Exit.OK


def _export_line(found: Exported) -> str:
    """Return the line about an export: `step 1200, the best by val_loss 0.2931: 62 tensors, 44.7 MB, float32`."""
    noted = noted_text(found.info)
    best = f", the best{f' by {safe(noted)}' if noted else ''}" if found.kind == "best" else ""
    what = f"{figures.count(found.tensors, 'tensor')}, {figures.size(found.size_bytes)}, {', '.join(found.dtypes)}"
    return f"step {found.step}{best}: {what}"


def _step(text: str) -> int:
    """Return the step in an option's text; raise ArgumentTypeError for any other text."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a step such as 1200, got {text!r}")


def _size(text: str) -> int:
    """Return the number of bytes that an option's text, such as 5GB, stands for; raise ArgumentTypeError for any other
    text.
    """
    try:
        return Size().convert(Scalar(text, plain=True, mark=FROM_COMMAND_LINE))
    except Unfit as error:
        raise argparse.ArgumentTypeError(f"expected {Size.WORDS}, got {text!r}") from error
