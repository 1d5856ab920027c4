"""`launch debug-archive`: write one file with the records of a run that a bug report needs."""

import argparse
import sys
from pathlib import Path

import msgspec

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import columns, safe, to_json
from launcher.errors import Exit

EXAMPLES = """
  launch debug-archive last                     lists the files, then writes RUN-debug.tar.gz
  launch debug-archive last --list              only lists it
  launch debug-archive resnet -o FILE.tar.gz

It holds versions, plan and records, events, logs of launch itself, the last lines of ranks, and what `launch doctor`
found last; at most 20 MB. Values of `secrets:`, addresses of `notify:`, what is set for names such as API_KEY or
--token, names and addresses of hosts, users and e-mail addresses are redacted. Read it before you send it: what else a
script prints stays.
"""


class ListedMember(msgspec.Struct, frozen=True):
    """A file of the archive; `last_part` if only its end is in the archive."""

    name: str
    size_bytes: int
    last_part: bool  # only the end of the file is in the archive


class ListedArchive(msgspec.Struct, frozen=True):
    """The files in a debug archive, and a line of text for each item that was left out. `file` is None if the archive
    was only listed.
    """

    file: str | None  # None: nothing was written
    members: tuple[ListedMember, ...]
    left_out: tuple[str, ...]


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch debug-archive`."""
    arguments.takes_run()
    arguments.add_argument("-o", "--output", metavar="FILE", type=Path, help="the archive (default: RUN-debug.tar.gz)")
    arguments.add_argument("--list", action="store_true", help="list the files of the archive; write nothing")
    arguments.prints_json(lambda: {"": ListedArchive}, "what it holds, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch debug-archive` and return its exit code."""
    from launcher.apps.debug_archive import collect  # late: the help does without

    one = api.run(options.run)
    found = collect(one)
    file = None if options.list else options.output or Path(f"{one.id}-debug.tar.gz")
    members = tuple(ListedMember(member.name, len(member.data), member.cut) for member in found.members)
    if not options.json:
        rows = [(safe(one.name), figures.size(one.size_bytes), "the last part" * one.last_part) for one in members]
        print("\n".join(columns(rows)), file=sys.stdout if file is None else sys.stderr, flush=True)
        for line in found.left_out:
            print(f"left out: {safe(line)}", file=sys.stderr)
    if file is not None:
        found.write(file)
    if options.json:
        print(to_json(ListedArchive(None if file is None else str(file), members, found.left_out)))
    elif file is not None:
        print(safe(str(file)))
    return Exit.OK
