"""Convert a spec that a program has made, a dict or an object with the fields of a spec, to the text that is read and
stored.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from launcher.errors import BadInput


def written(spec: object) -> str:
    """Return a spec as JSON, which is valid YAML. Fields that are None are left out and so have their defaults.

    Raise BadInput if it is neither a mapping nor an object with fields, or has a value that no spec can have.
    """
    try:
        plain = msgspec.to_builtins(spec, str_keys=True, enc_hook=_plain)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise BadInput(f"spec: cannot be written down: {error}", "hint: a dict, as it would stand in YAML") from error
    if not isinstance(plain, dict):
        kind = type(spec).__name__
        raise BadInput(f"spec: expected the path of a file, a dict or an object with its fields, got {kind}")
    return json.dumps(_without_none(plain), indent=2) + "\n"


def _plain(value: Any) -> object:
    """Return plain data for a value that msgspec cannot convert: the text of a path, a dict for another mapping, or a
    Python number for a number of numpy or torch. Raise TypeError for all other values.
    """
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    if isinstance(value, Mapping):
        return dict(value)
    if callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _without_none(value: Any) -> Any:
    """Return the value without the entries that are None, at every depth."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [*map(_without_none, value)] if isinstance(value, list) else value
