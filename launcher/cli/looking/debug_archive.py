"""`launch debug-archive`: what a bug report needs of a run, as one file."""

import argparse
import sys
from pathlib import Path

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import columns, safe
from launcher.errors import Exit

EXAMPLES = """
  launch debug-archive last                     lists what it holds, then writes RUN-debug.tar.gz
  launch debug-archive last --list              only lists it
  launch debug-archive resnet -o FILE.tar.gz

It holds versions, plan and records, events, logs of launch itself, the last lines of ranks, and what `launch doctor`
found last; at most 20 MB. Values of `secrets:`, addresses of `notify:`, what is set for names such as API_KEY or
--token, names and addresses of hosts, users and e-mail addresses are redacted. Read it before you send it: what else a
script prints stays.
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    arguments.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to (default: RUN-debug.tar.gz)")
    arguments.add_argument("--list", action="store_true", help="only list what it would hold")


def run(options: argparse.Namespace) -> int:
    from launcher.apps.debug_archive import collect  # late: the help does without

    one = api.run(options.run)
    found = collect(one)
    listed = [
        (safe(member.name), figures.size(len(member.data)), "the last part" if member.cut else "")
        for member in found.members
    ]
    where = sys.stdout if options.list else sys.stderr
    print("\n".join(line.rstrip() for line in columns(listed)), file=where, flush=True)
    for line in found.left_out:
        print(f"left out: {safe(line)}", file=sys.stderr)
    if not options.list:
        file = options.output or Path(f"{one.id}-debug.tar.gz")
        found.write(file)
        print(safe(str(file)))
    return Exit.OK
