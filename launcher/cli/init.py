"""`launch init`: a commented spec to start from, with the schema that editors check it against."""

import argparse
import json
import sys
from pathlib import Path

from launcher.cli.arguments import Arguments
from launcher.cli.columns import columns
from launcher.cli.terminal import safe
from launcher.errors import BadInput, Exit
from launcher.rundir.durable import make_dir, write_bytes
from launcher.shipped import starter, starters
from launcher.spec import schema

EXAMPLES = """
  launch init                        writes job.yaml, the least a job needs
  launch init ddp --output big.yaml  another template, to another file
  launch init --list                 which templates there are
"""
_SCHEMA = Path(".launch") / "job.schema.json"


def declare(arguments: Arguments) -> None:
    arguments.add_argument(
        "template", metavar="TEMPLATE", nargs="?", default="minimal", help="which one (default: minimal)"
    )
    arguments.add_argument(
        "--output", "-o", metavar="FILE", type=Path, default=Path("job.yaml"), help="where to (default: job.yaml)"
    )
    arguments.add_argument("--list", action="store_true", help="show the templates; write nothing")


def run(options: argparse.Namespace) -> int:
    if options.list:
        print("\n".join(columns(list(starters().items()))))
        return Exit.OK
    file: Path = options.output
    text = starter(options.template).replace("{{schema}}", _SCHEMA.as_posix())
    _write_new(file, text)
    make_dir(file.parent / _SCHEMA.parent)
    write_bytes(file.parent / _SCHEMA, json.dumps(schema(), indent=2).encode() + b"\n")
    print(safe(str(file)))
    print(f"edit it, then: launch submit {safe(str(file))}", file=sys.stderr)
    return Exit.OK


def _write_new(file: Path, text: str) -> None:
    """Never over something that is there."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadInput(f"{file} exists already", "hint: `--output FILE` writes to another") from None
    except OSError as error:
        hint = "hint: its folder has to exist; `--output FILE` writes to another place"
        raise BadInput(f"cannot write {file}: {error.strerror}", hint) from None
