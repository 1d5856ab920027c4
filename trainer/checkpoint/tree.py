"""Convert nested values to JSON and back exactly; values that would need pickle are refused by name."""

import base64
import datetime as dt
import json
import math
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.checkpoint_files.manifest import ITEM_BYTES
from trainer.errors import CheckpointDamaged, TrainerError

_TAG = "~"
_PLAIN_BITS = 4096
_INLINE_BYTES = 1 << 16  # larger tensors go beside the model's, where copying and hashing is quick
# No MemoryError: it is not the checkpoint's fault.
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, SyntaxError)
_ARRAY_TYPE = re.compile(r"[<>|=][biufcmMSUV][0-9]{0,9}(\[[0-9]{0,9}[a-zA-Zμ]{1,2}\])?")  # as numpy itself names them
_FACTORIES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, set, dict)}
_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype in a manifest, such as `bfloat16`. Raises TrainerError if it cannot be saved."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise TrainerError(f"checkpoint: a tensor of type {name} cannot be saved")
    return name


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of this name in a manifest. Raises KeyError if torch has no such type."""
    dtype: torch.dtype = _DTYPES[name]
    return dtype


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the tensor is a DTensor, of which each rank has a part."""
    return hasattr(tensor, "to_local")


def to_json(value: Any, where: str, tensors: dict[str, Tensor]) -> bytes:
    """Return the value as JSON; tensors that are sharded or over 64 KiB are added to `tensors` and only referred to.

    `where` is the name of the document: it begins the tensors' names, which continue with the path to each. Raises
    TrainerError, with the path, for types that cannot be saved.
    """
    return json.dumps(_encode(value, where, tensors), separators=(",", ":"), allow_nan=False).encode()


def from_json(data: bytes, tensor: Callable[[str], Tensor]) -> Any:
    """Return the value that `to_json` wrote. Raises CheckpointDamaged for other data.

    `tensor` is called with the name of each tensor that the JSON refers to, and returns it.
    """
    try:
        return _decode(json.loads(data), tensor)
    except _NOT_OURS as error:
        raise CheckpointDamaged(f"state: not written by this version: {error!r}") from error


def tensor_of(encoded: dict[str, Any]) -> str | None:
    """Return the name of the tensor that a JSON object refers to, or None if it refers to none."""
    return encoded["v"] if encoded.get(_TAG) == "tensor" else None


def _encode(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """Return the value as plain JSON values; types that JSON lacks become objects with a tag.

    `where` is the value's path. Tensors that are sharded or over 64 KiB are added to `tensors` under it. Raises
    TrainerError, with the path, for types that cannot be saved.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:  # JSON has no limit, but Python refuses to write out thousands of decimal digits
        return value if value.bit_length() <= _PLAIN_BITS else _tagged("int", hex(value))
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind is dict and _TAG not in value and all(type(key) is str for key in value):
        return {key: _encode(item, f"{where}/{key}", tensors) for key, item in value.items()}
    if kind is list:
        return _items(value, where, tensors)
    encode = _ENCODERS.get(kind)
    if encode is not None:
        return encode(value, where, tensors)
    if isinstance(value, Tensor):
        return _encode_tensor(value, where, tensors)
    if isinstance(value, np.generic):
        return _tagged("scalar", _encode_array(np.asarray(value)))
    if isinstance(value, tuple) and hasattr(kind, "_fields") and not getattr(value, "__dict__", None):
        words = [kind.__module__, kind.__qualname__, list(kind._fields)]
        return _tagged("named", [*words, _items(value, where, tensors)])
    raise TrainerError(
        f"checkpoint: {where}: a {kind.__module__}.{kind.__qualname__} cannot be saved\n"
        "hint: state_dict() may hold numbers, text, bytes, times, paths, tensors, NumPy arrays, and lists, tuples, "
        "sets, dicts and named tuples of them; of an Enum keep its name"
    )


def _items(value: Any, where: str, tensors: dict[str, Tensor]) -> list[Any]:
    """Return the items of a sequence, each encoded as plain JSON values, in order; `where` is the sequence's path.

    Large and sharded tensors in them are added to `tensors`. Raises TrainerError for types that cannot be saved.
    """
    return [_encode(item, f"{where}/{place}", tensors) for place, item in enumerate(value)]


def _pairs(value: Mapping[Any, Any], where: str, tensors: dict[str, Tensor]) -> list[Any]:
    """Return a dict as a list of pairs of key and value, both encoded as plain JSON values; `where` is the dict's path.

    Large and sharded tensors in it are added to `tensors`. Raises TrainerError for types that cannot be saved.
    """
    return [
        [_encode(key, f"{where}/key", tensors), _encode(item, f"{where}/{key}", tensors)] for key, item in value.items()
    ]


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    """Return the JSON object for a value of a type that JSON lacks; `tag` names the type, `value` is encoded."""
    return {_TAG: tag, "v": value}


def _encode_tensor(value: Tensor, where: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return a tensor inline, or a reference to one that is sharded or over 64 KiB, which is added to `tensors`.

    `where` is its path in the state, and becomes its name. Raises TrainerError for a layout or type that cannot be
    saved.
    """
    if value.layout is not torch.strided:
        raise TrainerError(f"checkpoint: {where}: a tensor of layout {value.layout} cannot be saved")
    tensor = value.detach().resolve_conj().resolve_neg()
    if is_sharded(tensor) or tensor.numel() * tensor.element_size() > _INLINE_BYTES:
        name = where
        while name in tensors:  # {1: a, "1": b}
            name += "#"
        tensors[name] = tensor
        return _tagged("tensor", name)
    flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
    words = [dtype_name(tensor.dtype), list(tensor.shape), base64.b64encode(flat.numpy().tobytes()).decode()]
    return _tagged("inline", words)


def _encode_default(value: defaultdict[Any, Any], where: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return a defaultdict encoded as plain JSON values, with the name of its factory; `where` is its path.

    Large and sharded tensors in it are added to `tensors`. Raises TrainerError if its factory cannot be saved by name.
    """
    factory: Any = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(name or "") is not factory:
        raise TrainerError(
            f"checkpoint: {where}: a defaultdict whose default is made by {factory!r} cannot be saved\n"
            f"hint: dict(...) of it, or a default of {', '.join(_FACTORIES)}"
        )
    return _tagged("default", [name, _pairs(value, where, tensors)])


def _moment(value: dt.datetime, where: str) -> str:
    """Return a datetime, with or without an offset from UTC, as text. Raises TrainerError for any other time zone.

    `where` is its place in the state, for the message.
    """
    if value.tzinfo is not None and type(value.tzinfo) is not dt.timezone:
        raise TrainerError(
            f"checkpoint: {where}: a time in {value.tzinfo} cannot be saved\nhint: .astimezone(timezone.utc)"
        )
    return value.isoformat() + ("~" if value.fold else "")


def _encode_array(array: np.ndarray[Any, Any]) -> list[Any]:
    """Return [type, shape, data] of a NumPy array: the type as in `<f4`, and the bytes in C order as base64.

    Raises TrainerError for object and record arrays.
    """
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TrainerError(f"checkpoint: a NumPy array of {array.dtype} cannot be saved")
    return [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]


_ENCODERS: dict[type, Callable[[Any, str, dict[str, Tensor]], Any]] = {
    dict: lambda value, where, tensors: _tagged("dict", _pairs(value, where, tensors)),
    OrderedDict: lambda value, where, tensors: _tagged("ordered", _pairs(value, where, tensors)),
    Counter: lambda value, where, tensors: _tagged("counter", _pairs(value, where, tensors)),
    defaultdict: _encode_default,
    range: lambda value, *_: _tagged("range", [value.start, value.stop, value.step]),
    tuple: lambda value, where, tensors: _tagged("tuple", _items(value, where, tensors)),
    torch.Size: lambda value, where, tensors: _tagged("tuple", _items(value, where, tensors)),
    set: lambda value, where, tensors: _tagged("set", _items(sorted(value, key=repr), where, tensors)),
    frozenset: lambda value, where, tensors: _tagged("frozenset", _items(sorted(value, key=repr), where, tensors)),
    deque: lambda value, where, tensors: _tagged("deque", [value.maxlen, _items(value, where, tensors)]),
    bytes: lambda value, *_: _tagged("bytes", base64.b64encode(value).decode()),
    complex: lambda value, *_: _tagged("complex", [repr(value.real), repr(value.imag)]),
    type(Path()): lambda value, *_: _tagged("path", str(value)),
    dt.datetime: lambda value, where, _: _tagged("datetime", _moment(value, where)),
    dt.timedelta: lambda value, *_: _tagged("timedelta", [value.days, value.seconds, value.microseconds]),
    torch.dtype: lambda value, *_: _tagged("dtype", dtype_name(value)),
    np.ndarray: lambda value, *_: _tagged("array", _encode_array(value)),
}


def _decode(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Return the value that `_encode` encoded; `tensor` returns by name each tensor that is kept outside the JSON."""
    if isinstance(value, list):
        return [_decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _decode(item, tensor) for key, item in value.items()}
    return _DECODERS[value[_TAG]](value["v"], tensor)


def _decode_pairs(value: Any, tensor: Callable[[str], Tensor]) -> list[tuple[Any, Any]]:
    """Return the decoded keys and values of `value`, a list of encoded pairs.

    `tensor` returns by name each tensor that is kept outside the JSON.
    """
    return [(_decode(key, tensor), _decode(item, tensor)) for key, item in value]


def _decode_items(value: Any, tensor: Callable[[str], Tensor]) -> list[Any]:
    """Return the decoded items of `value`, a list of encoded ones.

    `tensor` returns by name each tensor that is kept outside the JSON.
    """
    return [_decode(item, tensor) for item in value]


def _decode_inline(value: Any) -> Tensor:
    """Return a tensor from `value`, [type, shape, base64 text], as it was stored inside the JSON document."""
    dtype, shape, text = value
    data = bytearray(base64.b64decode(text, validate=True))
    if not data:
        return torch.empty(shape, dtype=dtype_of(dtype))
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype_of(dtype)).reshape(shape)


def _decode_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array from `value`, [type, shape, base64 text], as it was stored inside the JSON document.

    Raises CheckpointDamaged for a type that is neither numbers nor text.
    """
    dtype, shape, text = value
    if not _ARRAY_TYPE.fullmatch(dtype):
        raise CheckpointDamaged(f"state: an array of {str(dtype)[:40]!r}, which is no type of numbers or text")
    kind = np.dtype(dtype)
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=kind).reshape(shape).copy()


def _named_tuple(module: str, name: str, fields: list[str]) -> type[tuple[Any, ...]]:
    """Return the class of a named tuple; if its module is not loaded, a new class with the same fields.

    No module is imported and no code of the class runs.
    """
    kind = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if isinstance(kind, type) and issubclass(kind, tuple) and getattr(kind, "_fields", None) == tuple(fields):
        return kind
    return namedtuple(name.rpartition(".")[2], fields)  # noqa: PYI024 - its fields are known only now


_DECODERS: dict[str, Callable[[Any, Callable[[str], Tensor]], Any]] = {
    "int": lambda value, _: int(value, 16),
    "float": lambda value, _: float(value),
    "dict": lambda value, tensor: dict(_decode_pairs(value, tensor)),
    "ordered": lambda value, tensor: OrderedDict(_decode_pairs(value, tensor)),
    "counter": lambda value, tensor: Counter(dict(_decode_pairs(value, tensor))),
    "default": lambda value, tensor: defaultdict(
        None if value[0] is None else _FACTORIES[value[0]], _decode_pairs(value[1], tensor)
    ),
    "range": lambda value, _: range(*value),
    "named": lambda value, tensor: tuple.__new__(_named_tuple(*value[:3]), _decode_items(value[3], tensor)),
    "tuple": lambda value, tensor: tuple(_decode_items(value, tensor)),
    "set": lambda value, tensor: set(_decode_items(value, tensor)),
    "frozenset": lambda value, tensor: frozenset(_decode_items(value, tensor)),
    "deque": lambda value, tensor: deque(_decode_items(value[1], tensor), maxlen=value[0]),
    "bytes": lambda value, _: base64.b64decode(value, validate=True),
    "complex": lambda value, _: complex(float(value[0]), float(value[1])),
    "path": lambda value, _: Path(value),
    "datetime": lambda value, _: dt.datetime.fromisoformat(value.removesuffix("~")).replace(fold=value.endswith("~")),
    "timedelta": lambda value, _: dt.timedelta(*value),
    "dtype": lambda value, _: dtype_of(value),
    "inline": lambda value, _: _decode_inline(value),
    "tensor": lambda value, tensor: tensor(value),
    "array": lambda value, _: _decode_array(value),
    "scalar": lambda value, _: _decode_array(value)[()],
}
