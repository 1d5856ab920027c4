"""Test which data are valid inputs, and which field of invalid ones is named."""

import msgspec
import pytest

from launcher.apps.serving.input_schema import Inputs, WrongInput
from launcher.errors import BadInput

ROWS = {"type": "array", "items": {"type": "number", "minimum": 0}}
SCHEMA = {
    "type": "object",
    "required": ["pixels"],
    "properties": {
        "pixels": {"type": "array", "minItems": 2, "maxItems": 2, "items": ROWS},
        "count": {"type": ["integer", "null"], "default": None, "minimum": 1},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "more": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^x"}}, "required": ["name"]},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["none"]},
        "free": {"type": "object"},
        "flag": {"type": "boolean"},
    },
}


def decoded(body):
    return msgspec.to_builtins(Inputs(SCHEMA).one(body))


def test_defaults_are_filled_in_and_what_is_left_out_stays_out():
    assert decoded(b'{"pixels": [[1], [2.5]]}') == {"pixels": [[1.0], [2.5]], "count": None, "tags": ["none"]}
    assert decoded(b'{"pixels": [[], []], "count": 3, "free": {"a": [1]}, "flag": true}')["free"] == {"a": [1]}


@pytest.mark.parametrize(
    ("body", "where", "why"),
    [
        (b"{}", ("pixels",), "missing"),
        (b'{"pixels": [[1], ["x"]]}', ("pixels", 1, 0), "expected `float`, got `str`"),
        (b'{"pixels": [[1], [-1]]}', ("pixels", 1, 0), "expected `float` >= 0.0"),
        (b'{"pixels": [[1]]}', ("pixels",), "expected `array` of length >= 2"),
        (b'{"pixels": [[1], [1], [1]]}', ("pixels",), "expected `array` of length <= 2"),
        (b'{"pixels": [[], []], "count": 0}', ("count",), "expected `int` >= 1"),
        (b'{"pixels": [[], []], "count": 1.5}', ("count",), "expected `int | null`, got `float`"),
        (b'{"pixels": [[], []], "kind": "c"}', ("kind",), "invalid enum value 'c'"),
        (b'{"pixels": [[], []], "more": {}}', ("more", "name"), "missing"),
        (b'{"pixels": [[], []], "more": {"name": "y"}}', ("more", "name"), "expected `str` matching regex '^x'"),
        (b'{"pixels": [[], []], "flag": 1}', ("flag",), "expected `bool`, got `int`"),
        (b'{"pixels": [[], []], "others": 1}', ("others",), "there is no such field"),
        (b"[]", (), "expected `object`, got `array`"),
    ],
)
def test_the_field_that_is_wrong_is_named(body, where, why):
    with pytest.raises(WrongInput) as told:
        decoded(body)
    assert (told.value.where, told.value.why) == (where, why)


def test_of_a_list_the_place_too():
    with pytest.raises(WrongInput) as told:
        Inputs(SCHEMA).many(b'[{"pixels": [[], []]}, {"pixels": 3}]')
    assert told.value.where == (1, "pixels")


@pytest.mark.parametrize("body", [b"", b"[", b"\xff", b'{"pixels": [[1], [NaN]]}', b"[" * 100_000, b'{"a": 1} x'])
def test_what_is_no_json_is_said(body):
    with pytest.raises(WrongInput):
        decoded(body)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"anyOf": [{"type": "string"}]}, "input: of JSON Schema `anyOf` is not known here"),
        ({"type": "object", "properties": {"a": {"$ref": "#/x"}}}, "input.a: of JSON Schema `$ref` is not known here"),
        ({"type": "array", "items": {"type": "text"}}, "input[]: expected a type of JSON, got 'text'"),
        ({"type": "object", "properties": {"a-b": {}}}, "input: expected names of fields such as `pixels`, got 'a-b'"),
        ({"type": "object", "properties": {"a": {"enum": [1.5]}}}, "expected strings or whole numbers in `enum`"),
        ({"type": "integer", "minLength": 3}, "Can only set `min_length`"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_at_the_start(schema, why):
    with pytest.raises(BadInput) as told:
        Inputs(schema)
    assert why in str(told.value)


def test_without_a_schema_anything_is_taken():
    assert Inputs({}).one(b'{"a": [1, null]}') == {"a": [1, None]}
