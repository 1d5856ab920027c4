"""`launch edit`: change a run's tags, note and name."""

import argparse

import msgspec

from launcher.cli.arguments import Arguments
from launcher.cli.keeping.note import checked_note
from launcher.cli.keeping.rename import checked_name
from launcher.cli.keeping.tag import tag_word
from launcher.cli.looking.selection import runs_like
from launcher.cli.terminal import columns, safe, to_json
from launcher.errors import BadInput, Exit

EXAMPLES = """
  launch edit last --tag baseline --note "warm-up was too short"
  launch edit resnet-4ykr --name baseline       `launch logs baseline` shows its log from now on
  launch edit 'lr-*' --tag paper --untag old    several runs, by a pattern; quote it from the shell
  launch edit last                              lists the templates
"""


class RunLabels(msgspec.Struct, frozen=True):
    """The name, tags and note that users gave a run."""

    run: str  # its id
    name: str
    tags: tuple[str, ...]
    note: str


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch edit`."""
    arguments.takes_runs(patterns=True)
    arguments.add_argument(
        "--tag", metavar="TAG", action="append", default=[], type=tag_word, help="add this tag; may be repeated"
    )
    arguments.add_argument(
        "--untag", metavar="TAG", action="append", default=[], help="remove this tag; may be repeated"
    )
    arguments.add_argument("--note", metavar="TEXT", help='set the note; "" removes it')
    arguments.add_argument("--name", metavar="NAME", help='set the name, of a-z, 0-9, _ and -; "" removes it')
    arguments.prints_json(lambda: {"": list[RunLabels]}, "what there is then, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch edit` and return its exit code."""
    runs = runs_like(options.runs)
    if options.name and len(runs) > 1:
        raise BadInput("--name is the name of one run", f"hint: launch edit {runs[0].id} --name {options.name}")
    checked_note(options.note)
    for one in runs:
        checked_name(one, options.name)
    labels = [one.label(add=options.tag, remove=options.untag, note=options.note, name=options.name) for one in runs]
    if options.json:
        print(
            to_json(
                [RunLabels(one.id, said.name, said.tags, said.note) for one, said in zip(runs, labels, strict=True)]
            )
        )
        return Exit.OK
    for one, said in zip(runs, labels, strict=True):
        facts = [("name", said.name), ("tags", ", ".join(said.tags)), ("note", " ".join(said.note.split()))]
        print(safe(str(one.id)))
        print("\n".join(columns([(key, safe(value) or "-") for key, value in facts], indent="  ")))
    return Exit.OK
