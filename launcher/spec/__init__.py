"""YAML to JobSpec. Importing this is cheap, because every command does that to read a plan; reading a spec is not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.spec.model import JobSpec

if TYPE_CHECKING:
    from launcher.spec.kinds.sections import Section

# Imported when called, to keep PyYAML and the table of options off the path of `launch status`.


def read_spec(path: Path, overrides: Sequence[str] = (), job: "Section | None" = None) -> JobSpec:
    """The spec in a file, with `--set` overrides. Raises BadInput with every problem of both.

    `job` is the table of options, where it is not the usual one.
    """
    from launcher.spec import fields, read

    return read.read_spec(path, overrides, job or fields.JOB)


def parse_spec(text: str, file: str, overrides: Sequence[str] = ()) -> JobSpec:
    """The spec in a text; `file` is what problems are said to be in."""
    from launcher.spec import read

    return read.parse_spec(text, file, overrides)


def position(text: str, key: str) -> tuple[int, int]:
    """Line and column of a key path such as run.script in a spec's text, for problems that are found later."""
    from launcher.spec import read

    return read.position(text, key)


def schema(plugins: "Mapping[str, Section] | None" = None) -> dict[str, Any]:
    """The JSON Schema of a spec, for editors; `plugins` are the sections of kinds that other packages bring."""
    from launcher.spec import fields, json_schema

    return json_schema.schema(fields.with_plugins(plugins or {}))
