"""`launch spec schema`: print the JSON Schema of a spec, for editors, or that of a command's JSON output."""

import argparse
import json

from launcher.cli.answers import schema_of
from launcher.cli.arguments import Arguments, arguments_of
from launcher.cli.commands import ALSO, COMMANDS, WITHOUT_JSON
from launcher.errors import BadInput, Exit
from launcher.places.clusters_file import plugin_sections
from launcher.spec.fields import schema

EXAMPLES = """
  launch spec schema > job.schema.json
  # yaml-language-server: $schema=job.schema.json     as first line of a spec: the editor reads it
  launch spec schema status                         of what `launch status --json` prints; `nodes list` is two words
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch spec schema`."""
    arguments.add_argument(
        "command", metavar="COMMAND", nargs="*", help="the schema of what this command prints with --json"
    )


def run(options: argparse.Namespace) -> int:
    """Run `launch spec schema` and return its exit code."""
    named = " ".join(options.command)
    command = ALSO.get(named, named)
    if command and command not in COMMANDS:
        raise BadInput(f"no such command: {named[:100]!r}", "hint: `launch --help` shows all commands")
    if command in WITHOUT_JSON:
        raise BadInput(f"launch {command} has no --json: it {WITHOUT_JSON[command]}", "hint: `launch help json`")
    print(json.dumps(schema_of(arguments_of(command).answers()) if command else schema(plugin_sections()), indent=2))
    return Exit.OK
