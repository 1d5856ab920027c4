"""`launch submit`: start a run, or show what would be started."""

import argparse
import sys

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.errors import BadInput, Exit

EXAMPLES = """
  launch submit job.yaml                                start it here; prints the run's id
  launch submit job.yaml --follow                       and show its log; ends with the run's exit code
  launch submit job.yaml --set resources.nodes=4        with a field of the spec overridden
  launch submit job.yaml --dry-run                      only show what would be done; starts and writes nothing
"""


def declare(arguments: Arguments) -> None:
    arguments.add_argument("spec", metavar="SPEC", help="the YAML file of the job")
    arguments.takes_place(default="local")
    arguments.add_argument("--dry-run", action="store_true", help="show the plan; start and write nothing")
    arguments.add_argument("--json", action="store_true", help="the run, or with --dry-run the whole plan, as JSON")
    arguments.add_argument("--follow", action="store_true", help="show its log; ends with the run's exit code")


def run(options: argparse.Namespace) -> int:
    if options.follow and (options.dry_run or options.json):
        raise BadInput(f"--follow does not go with {'--dry-run' if options.dry_run else '--json'}")
    if options.dry_run:
        return _dry_run(options)
    one = api.submit(options.spec, on=options.on, overrides=options.overrides)
    print(_json({"run": one.id, "run_dir": str(one.path)}) if options.json else one.id, flush=True)
    if options.follow:
        from launcher.cli.follow import follow  # late: only for --follow

        return follow(one)
    print(f"watch it: launch logs {one.id} -f", file=sys.stderr)
    return Exit.OK


def _dry_run(options: argparse.Namespace) -> int:
    from launcher.cli.plan_page import plan_page  # late: only for --dry-run

    plan, code = api.prepare(options.spec, on=options.on, overrides=options.overrides)
    if options.json:
        files = [{"path": _text(entry.path), "size": entry.size} for entry in code.files]
        print(_json({**msgspec.to_builtins(plan), "files": files}))
    else:
        print("\n".join(plan_page(plan, code)))
    return Exit.OK


def _text(path: str) -> str:
    """A name that is not UTF-8, as far as JSON can hold it."""
    return path.encode(errors="surrogateescape").decode(errors="replace")


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
