"""Whether what a command has printed with `--json` is what its documented schema says, and nothing more."""

import json
from functools import cache

import jsonschema

from launcher.cli.answers import schema_of
from launcher.cli.arguments import arguments_of
from launcher.cli.commands import ALSO, COMMANDS


def check(words, stdout):
    """Raise an error if the command line has `--json` and its output does not fit the documented schema."""
    command = command_of(words)
    if "--json" not in words or command is None or not stdout:
        return
    by_line, validator = _documented(command)
    for document in stdout.splitlines() if by_line else [stdout]:
        validator.validate(json.loads(document))


def command_of(words):
    """Return the command that this command line calls, by its newest name, or None if it is not documented."""
    named = [ALSO.get(name, name) for name in (" ".join(words[:2]), *words[:1])]
    return next((name for name in named if name in COMMANDS), None)


@cache
def _documented(command):
    arguments = arguments_of(command)
    schema = _closed(schema_of(arguments.answers()))
    return arguments.answers_by_line, jsonschema.Draft202012Validator(schema)


def _closed(schema):
    """A field that is not documented is a mistake, though a reader is to expect that more may come."""
    if isinstance(schema, list):
        return [*map(_closed, schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return {**closed, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else closed
