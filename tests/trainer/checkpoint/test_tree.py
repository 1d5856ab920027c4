import contextlib
import datetime as dt
import json
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import SCALE
from trainer.checkpoint.tree import dtype_name, dtype_of, from_json, to_json
from trainer.checkpoint_files.manifest import ITEM_BYTES
from trainer.errors import CheckpointDamaged, TrainerError

DTYPES = sorted(ITEM_BYTES)
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def there_and_back(value):
    beside = {}
    text = to_json(value, "state/x", beside)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    return from_json(text, beside.__getitem__)


def same(one, other):
    """Equal to the bit and the type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and raw(one) == raw(other)
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        if isinstance(one, OrderedDict) and list(one) != list(other):
            return False
        return [(type(key), key) for key in one] == [(type(key), key) for key in other] and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, deque):
        return one.maxlen == other.maxlen and same(list(one), list(other))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    return one == other


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = dtype_of(draw(st.sampled_from(DTYPES)))
    data = bytearray(draw(st.binary(min_size=16, max_size=16))) * (math.prod(shape) + 1)
    size = math.prod(shape) * ITEM_BYTES[dtype_name(dtype)]
    if dtype == torch.bool:
        data = bytearray(byte & 1 for byte in data)
    return torch.frombuffer(data, dtype=torch.uint8)[:size].clone().view(dtype).reshape(shape)


arrays = st.builds(
    lambda data, kind: np.array(data, dtype=kind),
    st.lists(st.integers(0, 100), max_size=4),
    st.sampled_from(["<f4", ">f8", "i2", "?", "<c16", "U3", "S2", "<M8[s]"]),
)
keys = st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
leaves = (
    st.none() | st.booleans() | st.integers() | st.integers(-(1 << 200), 1 << 200) | st.floats() | st.text()
    | st.binary() | st.complex_numbers() | st.sampled_from([torch.float32, torch.bfloat16, torch.bool])
    | tensors() | arrays | st.floats(width=32).map(np.float32) | st.integers(-9, 9).map(np.int64)
    | st.text("aé", min_size=1, max_size=2).map(np.str_) | st.frozensets(st.integers() | st.text(max_size=2))
    | st.sets(st.floats(allow_nan=False))
)  # fmt: skip
values: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["~", "v", "a"]), inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict)
        | st.builds(deque, st.lists(inner, max_size=3), st.integers(3, 5) | st.none())
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200 * SCALE)
@given(values)
def test_everything_comes_back_as_it_was(value):
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime.fromisoformat("2026-01-02T03:04:05.678901"),
        dt.datetime.fromisoformat("2026-01-02").replace(fold=1),
        dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, seconds=7))), dt.datetime.now(dt.UTC),
        dt.timedelta(days=-1, microseconds=5), Path("/x/ü"), Path(),
    ],
)  # fmt: skip
def test_times_and_paths_come_back(value):
    found = there_and_back({"at": value})["at"]
    assert same(found, value)
    assert getattr(found, "fold", 0) == getattr(value, "fold", 0)


def test_a_time_in_a_zone_of_rules_is_refused():
    with pytest.raises(TrainerError, match=r"state/x/at: a time in Europe/Berlin cannot be saved\nhint: .astimezone"):
        there_and_back({"at": dt.datetime.now(ZoneInfo("Europe/Berlin"))})


def test_a_counter_comes_back_as_one():
    value = Counter({3: 2, "x": 1})
    assert same(there_and_back(value), value)


class Best(NamedTuple):
    step: int
    value: Any = None


@pytest.mark.parametrize(
    "value",
    [
        Best(3, torch.arange(3)), Best(-1), [Best(1), "x"], range(5), range(7, -3, -2),
        defaultdict(int, {"a": 2, 3: 4}), defaultdict(list, {(1, 2): [1.5]}), defaultdict(None, {"a": Best(2)}),
    ],
)  # fmt: skip
def test_named_tuples_ranges_and_dicts_with_a_default_come_back(value):
    found = there_and_back({"here": value})["here"]
    assert same(found, value)
    assert getattr(found, "default_factory", None) is getattr(value, "default_factory", None)


def test_a_named_tuple_whose_class_is_gone_comes_back_with_its_fields():
    """As one that was made in a function, or renamed since: nothing is imported for it."""

    class Made(NamedTuple):
        x: int
        y: int

    found = there_and_back(Made(1, 2))
    assert (found, found._fields, type(found).__name__) == ((1, 2), ("x", "y"), "Made")
    text = json.dumps({"~": "named", "v": ["no.such.module", "Point", ["x"], [5]]}).encode()
    assert from_json(text, {}.__getitem__).x == 5


def test_the_code_of_a_named_tuple_does_not_run():
    text = json.dumps({"~": "named", "v": [__name__, "Loud", ["step", "value"], [5, 1]]}).encode()
    found = from_json(text, {}.__getitem__)
    assert (type(found), found.step) == (Loud, 5)


class Loud(Best):
    def __new__(cls, *_):
        raise AssertionError("it ran")

    def __init__(self, *_):
        raise AssertionError("it ran")


def test_a_huge_number_comes_back():
    for value in (10**6000, -(10**6000), 1 << 4096):
        assert there_and_back(value) == value


def test_the_state_of_python_s_own_generator_comes_back():
    state = random.Random(3).getstate()
    assert same(there_and_back(state), state)


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_of_tensor_inline_and_beside(name):
    dtype = dtype_of(name)
    small = torch.arange(6).reshape(2, 3).float().to(dtype)
    large = torch.arange(40_000).float().to(dtype).repeat(2)
    assert same(there_and_back(small), small)
    beside = {}
    text = to_json({"a": [small, large]}, "state/x", beside)
    assert len(text) < 1000 and list(beside) == ["state/x/a/1"]
    assert same(from_json(text, beside.__getitem__), {"a": [small, large]})


def test_views_are_kept_as_what_they_show():
    base = torch.arange(12.0).reshape(3, 4)
    wave = torch.view_as_complex(torch.arange(6.0).reshape(3, 2))
    for view in (base.t(), base[1:, ::2], base[0].expand(5, 4), wave.conj(), wave.conj().imag, base.requires_grad_()):
        got = there_and_back(view)
        assert torch.equal(got, view) and not got.requires_grad and not got.is_conj()


def test_tensors_whose_names_would_be_the_same_stay_two():
    one, other = torch.zeros(20_000), torch.ones(20_000)
    value = {1: one, "1": other}
    assert same(there_and_back(value), value)


class Thing:
    pass


class Attributed(Best):
    pass


def attributed():
    value = Attributed(1)
    value.more = 2
    return value


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lambda": (lambda: {"a": [1, lambda: 0]}, "state/x/a/1: a builtins.function"),
    "object": (lambda: {"deep": {"er": Thing()}}, "state/x/deep/er: a .*Thing cannot be saved"),
    "module": (lambda: torch.nn.Linear(1, 1), "Linear cannot be saved"),
    "subclass": (type("Mine", (dict,), {}), "Mine cannot be saved"),
    "objects in an array": (lambda: np.array([Thing()]), "array of object"),
    "an array with fields": (lambda: np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]), "array of"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo cannot be saved"),
    "default of its own": (lambda: defaultdict(Thing), r"a defaultdict whose default is made by .*Thing"),
    "attributes on a named tuple": (attributed, "Attributed cannot be saved"),
    "iterator": (lambda: {"i": iter(())}, "state/x/i: a builtins.tuple_iterator"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_data_is_refused_by_name(kind):
    make, message = REFUSED[kind]
    with pytest.raises(TrainerError, match=message):
        to_json(make(), "state/x", {})


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\xff", b'{"~": "object", "v": 1}', b'{"~": "tuple"}',
        b'{"~": "inline", "v": ["float32", [3], "AAAA"]}',
        b'{"~": "inline", "v": ["float99", [], ""]}', b'{"~": "array", "v": ["|O", [1], "AAAAAAAAAAA="]}',
        b'{"~": "bytes", "v": "%%%"}', b'{"~": "tensor", "v": "nowhere"}', b'{"~": "array", "v": ["no such", [], ""]}',
        b"[" * 100_000, b'{"~": "array", "v": ["i4,,", [1], ""]}',
        b'{"~": "deque", "v": [1208925819614629174706176, []]}',
        b'{"~": "array", "v": [{"names": ["a"], "formats": ["O"], "offsets": [0]}, [1], ""]}',
        b'{"~": "array", "v": [["O"], [1], "AAAAAAAAAAA="]}',
        b'{"~": "inline", "v": ["uint8", [1180591620717411303424], ""]}',
        b'{"~": "named", "v": ["x", "A", ["x; import os"], [1]]}', b'{"~": "default", "v": ["eval", []]}',
        b'{"~": "range", "v": [1, 2, 0]}', b'{"~": "named", "v": [["x"], "A", ["x"], [1]]}',
    ],
)  # fmt: skip
def test_what_this_version_has_not_written_is_damage(text):
    with pytest.raises(CheckpointDamaged):
        from_json(text, {}.__getitem__)


_TAGS = ["int", "float", "dict", "ordered", "counter", "default", "range", "named",
         "tuple", "set", "frozenset", "deque", "bytes", "complex",
         "dtype", "inline", "tensor", "array", "scalar", "?"]  # fmt: skip
_WORDS = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(
    ["float32", "uint8", "<f4", "|O", "<M8[ns]", "AAAA", "AAAAAAAA", "1e999", "i4,,", 1 << 70, -1, {}, []]
)  # fmt: skip
_DOCUMENTS = st.recursive(
    _WORDS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(lambda tag, value: {"~": tag, "v": value}, st.sampled_from(_TAGS), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=300 * SCALE, deadline=None)
@given(_DOCUMENTS)
def test_any_document_is_a_value_or_damage(document):
    with contextlib.suppress(CheckpointDamaged):
        from_json(json.dumps(document).encode(), {}.__getitem__)


def test_nothing_in_a_document_runs(tmp_path):
    canary = tmp_path / "canary"
    for text in (
        {"~": "array", "v": [f"__import__('os').mkdir('{canary}')", [1], "AAAA"]},
        {"~": "eval", "v": f"__import__('os').mkdir('{canary}')"},
        {"__reduce__": ["os.mkdir", [str(canary)]]},
        {"py/object": "os.mkdir", "py/newargs": [str(canary)]},
    ):
        try:
            from_json(json.dumps(text).encode(), {}.__getitem__)
        except CheckpointDamaged:
            continue
    assert not canary.exists()


def test_a_shortage_of_memory_is_no_damage():
    def tensor(_name):
        raise MemoryError

    with pytest.raises(MemoryError):
        from_json(b'{"~":"tensor","v":"model/w"}', tensor)
