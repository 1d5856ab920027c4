"""Messages of a peer that knows the token and lies: any value in any field, as far as the type lets it cross."""

import enum
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 7, 99_999, 2**31, 2**53, 2**63 - 1]) | st.integers(0, 4)
TEXTS = st.sampled_from(["", "host0", "host1", "../../x", "/etc/passwd", "a\0b", "\u202e", "x" * 5000, "[1-", "state"])
FLOATS = st.sampled_from([-1.0, 0.0, 0.5, 5e-324, 1e18, 1e308])


def lies(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, whatever bounds it may have."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return lies(inner[0])
    if origin in (Union, types.UnionType):
        return st.one_of(*map(lies, inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        return st.lists(lies(inner[0]), max_size=4).map(tuple)
    if origin is dict:
        return st.dictionaries(lies(inner[0]), lies(inner[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields, how = msgspec.structs.fields(kind), kind.__struct_config__
        if how.array_like:
            return st.tuples(*(lies(field.type) for field in fields))
        tag = {how.tag_field: st.just(how.tag)} if how.tag_field else {}
        return st.fixed_dictionaries(tag | {field.encode_name: lies(field.type) for field in fields})
    if isinstance(kind, enum.EnumMeta):
        return st.sampled_from(list(kind))
    simple = {int: NUMBERS, str: TEXTS, float: FLOATS, bool: st.booleans(), type(None): st.none()}
    return simple[kind]


def lines(union: Any) -> st.SearchStrategy[bytes]:
    """Generate a line for each kind of message of a protocol, in turn."""
    return st.one_of(*(lies(kind) for kind in get_args(union))).map(msgspec.json.encode)
