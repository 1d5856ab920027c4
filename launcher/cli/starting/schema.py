"""`launch spec schema`: the JSON Schema that editors complete and check specs with."""

import argparse
import json

from launcher.cli.arguments import Arguments
from launcher.errors import Exit
from launcher.places.clusters_file import plugin_sections
from launcher.spec.fields import schema

EXAMPLES = """
  launch spec schema > job.schema.json
  # yaml-language-server: $schema=job.schema.json     as first line of a spec: the editor reads it
"""


def declare(arguments: Arguments) -> None:
    """It has no arguments."""


def run(_: argparse.Namespace) -> int:
    print(json.dumps(schema(plugin_sections()), indent=2))
    return Exit.OK
