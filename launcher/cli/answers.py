"""The types of JSON output that several commands share, and the JSON Schema of what a command prints with `--json`."""

from collections.abc import Mapping
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from launcher.api import Run


class StartedRun(msgspec.Struct, frozen=True):
    """The id and the folder of a run that was started or resumed."""

    run: str  # its id
    run_dir: str  # its folder


class StartedGraph(msgspec.Struct, frozen=True):
    """The runs that were started for one file with `steps:`, a graph."""

    graph: str  # its id
    graph_dir: str  # its folder
    runs: tuple[StartedRun, ...]


def started(run: "Run") -> StartedRun:
    """Return a started run in the form in which `--json` prints it."""
    return StartedRun(run.id, str(run.path))


def merged(name: str, *structs: type[msgspec.Struct], **more: Any) -> Any:
    """Return a msgspec struct type called `name` that requires the fields of all `structs`, and has the fields `more`.

    A field of `more` whose type allows UNSET may be absent.
    """
    fields = {field.name: field.type for struct in structs for field in msgspec.structs.fields(struct)} | more
    absent = [key for key, kind in more.items() if msgspec.UnsetType in getattr(kind, "__args__", ())]
    named: list[Any] = [(key, kind) for key, kind in fields.items() if key not in absent]
    doc = {"__doc__": structs[0].__doc__} if structs else None
    return msgspec.defstruct(name, [*named, *((key, fields[key], msgspec.UNSET) for key in absent)], namespace=doc)


def list_of(kind: Any) -> Any:
    """Return the type `list[kind]`, made at run time because `kind`, a type made by `merged`, cannot stand in an
    annotation.
    """
    return GenericAlias(list, (kind,))


def schema_of(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a command's output: of its only document, or of each line if it prints one document per
    line.

    `answers` maps a text that says when a form of output is printed, or "", to the type of that form.
    """
    schemas, types = msgspec.json.schema_components([*answers.values()], ref_template="#/$defs/{name}")
    each = [{"description": when, **one} if when else one for when, one in zip(answers, schemas, strict=True)]
    return {**(each[0] if len(each) == 1 else {"anyOf": each}), **({"$defs": types} if types else {})}
