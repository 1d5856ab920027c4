"""Check inputs against the JSON Schema that the service declares, before a worker gets them. A part of JSON Schema is
supported: a key that only describes is passed on to the OpenAPI page, and an unsupported one, such as `anyOf`, is
refused when the server starts.

Supported are `type` (one, or a list with "null"), `properties`, `required`, `default`, `items`, `enum` of strings or
whole numbers, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, pattern, minItems
and maxItems. Objects allow no other fields.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from launcher.decoding import decoder_of
from launcher.errors import BadInput

Location = tuple[str | int, ...]
_BOUNDS = {
    "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt", "multipleOf": "multiple_of",
    "minLength": "min_length", "maxLength": "max_length", "minItems": "min_length", "maxItems": "max_length",
    "pattern": "pattern",
}  # fmt: skip
_DECIDING = {
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "additionalProperties",
    "patternProperties", "propertyNames", "prefixItems", "contains", "uniqueItems", "dependentRequired",
    "minProperties", "maxProperties",
}  # fmt: skip
_PLAIN: dict[str, Any] = {"string": str, "number": float, "integer": int, "boolean": bool, "null": None}
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_AT = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (missing required|contains unknown) field `(.*)`")


class WrongInput(Exception):
    """Raised if a client's data is not a valid input, with where and why."""

    def __init__(self, where: Location, why: str) -> None:
        super().__init__(why)
        self.where, self.why = where, why


class Inputs:
    """A decoder and checker of request bodies, which have one input or a list of them, built from the schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            kind = _type_of(schema, "input")
            self._one = decoder_of(kind)
            self._many = decoder_of(list[kind])  # type: ignore[valid-type]
        except TypeError as error:  # bounds that fit no such type
            raise BadInput(f"the schema of the service's input: {error}") from error

    def one(self, body: bytes) -> Any:
        """Return the input in a request body that is one input; raise WrongInput if it does not fit the schema."""
        return _decoded(self._one, body)

    def many(self, body: bytes) -> list[Any]:
        """Return the inputs in a request body that is a list of them; raise WrongInput if one does not fit the
        schema.
        """
        found: list[Any] = _decoded(self._many, body)
        return found


def location_of(path: str) -> Location:
    """Return the keys and indexes of a path such as `.pixels[0][3]`.

    `[...]`, which msgspec writes for an unknown element, is left out.
    """
    steps = (found[1] or found[2] for found in _STEP.finditer(path))
    return tuple(int(step) if step.isdigit() else step for step in steps if step != "...")


def _decoded(decoder: Any, body: bytes) -> Any:
    """Return the decoded request body; raise WrongInput if it does not fit the schema."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise WrongInput(*_location_and_reason(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongInput((), f"expected JSON: {error}") from error


def _location_and_reason(text: str) -> tuple[Location, str]:
    """Return (where an input is wrong, what is wrong), taken from msgspec's error message."""
    found = _AT.fullmatch(text)
    why, path = (found[1], found[2] or "") if found is not None else (text, "")
    where = location_of(path)
    if named := _NAMED.fullmatch(why):
        return (*where, named[2]), "missing" if named[1].startswith("missing") else "there is no such field"
    return where, f"{why[:1].lower()}{why[1:]}"


def _type_of(schema: Mapping[str, Any], where: str) -> Any:
    """Return the msgspec type for a schema; raise BadInput, which names the part `where` of the schema, for an
    unsupported key.
    """
    if unknown := sorted(_DECIDING & schema.keys()):
        _refuse(where, f"of JSON Schema `{unknown[0]}` is not known here")
    if "enum" in schema:
        return _one_of(schema["enum"], where)
    kind = schema.get("type")
    if isinstance(kind, list):
        found = None
        for one in kind:
            part = _type_of({**schema, "type": one}, where)
            found = part if found is None and part is not None else found | part if found is not None else part
        return found
    if kind == "object":
        return _object(schema, where)
    if kind == "array":
        return _bounded(list[_type_of(schema.get("items", {}), f"{where}[]")], schema, where)  # type: ignore[misc]
    if kind is None:
        return Any
    if kind not in _PLAIN:
        _refuse(where, f"expected a type of JSON, got {kind!r}")
    return _PLAIN[kind] if _PLAIN[kind] in (None, bool) else _bounded(_PLAIN[kind], schema, where)


def _object(schema: Mapping[str, Any], where: str) -> Any:
    """Return the msgspec type for an object with the schema's properties, which refuses any other property; without
    `properties` every object fits.

    Raise BadInput, which calls this part of the schema `where`, if a property is not supported.
    """
    if "properties" not in schema:
        return dict[str, Any]
    required = set(schema.get("required", ()))
    fields: list[Any] = []
    for name, inner in schema["properties"].items():
        if not name.isidentifier():
            _refuse(where, f"expected names of fields such as `pixels`, got {name!r}")
        kind = _type_of(inner, f"{where}.{name}")
        if "default" in inner:
            fields.append((name, kind, _usual(inner["default"])))
        elif name in required:
            fields.append((name, kind))
        else:
            fields.append((name, kind | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct("ServedInput", fields, kw_only=True, frozen=True, forbid_unknown_fields=True)


def _usual(value: Any) -> Any:
    """Return what msgspec needs as the default of a field whose default in the schema is `value`: a factory for a list
    or object, and any other value itself.
    """
    return msgspec.field(default_factory=lambda: value) if isinstance(value, list | dict) else value


def _one_of(values: Any, where: str) -> Any:
    """Return the msgspec type for `values`, the list under a schema's `enum`. Raise BadInput, which names the part
    `where` of the schema, unless it is a list of strings and whole numbers that is not empty.
    """
    if not isinstance(values, list) or not values or not all(isinstance(one, str | int) for one in values):
        _refuse(where, "expected strings or whole numbers in `enum`")
    return Literal[tuple(values)]


def _bounded(kind: Any, schema: Mapping[str, Any], where: str) -> Any:
    """Return the type `kind` with the schema's limits, such as minimum; raise BadInput, which names the part `where` of
    the schema, for limits that are not supported.
    """
    bounds = {ours: schema[theirs] for theirs, ours in _BOUNDS.items() if theirs in schema}
    try:
        return Annotated[kind, msgspec.Meta(**bounds)] if bounds else kind
    except (TypeError, ValueError) as error:
        raise BadInput(f"the schema of the service's input: {where}: {error}") from error


def _refuse(where: str, why: str) -> NoReturn:
    """Raise BadInput about the part `where` of the schema, with the reason `why`."""
    raise BadInput(f"the schema of the service's input: {where}: {why}")
