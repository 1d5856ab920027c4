"""Weights as files that others read: safetensors, and what torch.load takes. Written piece by piece, without torch."""

import json
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from trainer.checkpoint_files.manifest import ITEM_BYTES
from trainer.checkpoint_files.weights import Weight, Weights
from trainer.errors import TrainerError

_SAFE = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "complex64": "C64",
}  # fmt: skip
# The types that torch had before it kept a tensor's type beside its bytes.
_STORAGES = {
    "bool": "BoolStorage", "uint8": "ByteStorage", "int8": "CharStorage", "int16": "ShortStorage",
    "int32": "IntStorage", "int64": "LongStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage", "float64": "DoubleStorage", "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}  # fmt: skip
_ALIGNED = 64
_ZIP64_FROM = 1 << 30  # a zip says sizes of more than 4 GB in another way, and has to know beforehand
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of an archive: the same weights are the same bytes


def write_safetensors(file: BinaryIO, weights: Weights, notes: Mapping[str, str]) -> None:
    """`notes`: text that goes into the file's metadata. Raises TrainerError for a type that the format has not."""
    for one in weights.tensors.values():
        if one.dtype not in _SAFE:
            raise TrainerError(f"{one.name}: safetensors has no {one.dtype}\nhint: -o FILE.pt")
    ordered = sorted(weights.tensors.values(), key=lambda one: (-ITEM_BYTES[one.dtype], one.name))
    file.write(_header(ordered, {"format": "pt", **weights.tied, **notes}))
    for one in ordered:
        file.writelines(weights.data(one.name))


def _header(ordered: Iterable[Weight], notes: Mapping[str, str]) -> bytes:
    """Its length, then JSON; filled up with spaces, so that the tensors begin at a multiple of eight."""
    words: dict[str, object] = {"__metadata__": dict(notes)}
    at = 0
    for one in ordered:
        words[one.name] = {"dtype": _SAFE[one.dtype], "shape": one.shape, "data_offsets": [at, at + one.size]}
        at += one.size
    text = json.dumps(words, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_torch(file: BinaryIO, weights: Weights, name: str = "weights") -> None:
    """A dict of tensors by name, as torch.save writes one; torch.load(weights_only=True) reads it."""
    keys = {tensor: str(number) for number, tensor in enumerate(weights.tensors)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        named = {**{tensor: tensor for tensor in weights.tensors}, **weights.tied}
        pickled = b"".join(
            [
                b"\x80\x02}(",
                *(_text(alias) + _tensor(weights.tensors[one], keys[one]) for alias, one in named.items()),
                b"u.",
            ]
        )
        _put(archive, f"{name}/data.pkl", [pickled], len(pickled))
        for entry, text in ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little")):
            _put(archive, f"{name}/{entry}", [text], len(text))
        for tensor, key in keys.items():
            _put(archive, f"{name}/data/{key}", weights.data(tensor), weights.tensors[tensor].size)
        _put(archive, f"{name}/version", [b"3\n"], 2)


def _put(archive: zipfile.ZipFile, name: str, pieces: Iterable[bytes], size: int) -> None:
    """An entry whose bytes begin at a multiple of 64, so that they can be mapped into memory as they lie."""
    entry, large = zipfile.ZipInfo(name, _EPOCH), size >= _ZIP64_FROM
    entry.external_attr, entry.file_size = 0o600 << 16, size
    begins = archive.fp.tell() + 30 + len(name.encode()) + (20 if large else 0) + 4 if archive.fp is not None else 0
    padding = -begins % _ALIGNED
    entry.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    with archive.open(entry, "w", force_zip64=large) as out:
        for piece in pieces:
            out.write(piece)


# -- the few words of pickle that a dict of tensors needs: names of things to put together, numbers and text


def _tensor(one: Weight, key: str) -> bytes:
    strides = [1]
    for length in reversed(one.shape[1:]):
        strides.insert(0, strides[0] * max(1, length))
    classic = one.dtype in _STORAGES
    kind = _global("torch", _STORAGES[one.dtype]) if classic else _global("torch.storage", "UntypedStorage")
    count = one.size // (ITEM_BYTES[one.dtype] if classic else 1)
    storage = _tuple(_text("storage"), kind, _text(key), _text("cpu"), _number(count)) + b"Q"
    shape, stride = _tuple(*map(_number, one.shape)), _tuple(*map(_number, strides[: len(one.shape)]))
    parts = [storage, _number(0), shape, stride, b"\x89", _global("collections", "OrderedDict") + b")R"]
    if classic:
        return _global("torch._utils", "_rebuild_tensor_v2") + _tuple(*parts) + b"R"
    return _global("torch._utils", "_rebuild_tensor_v3") + _tuple(*parts, _global("torch", one.dtype)) + b"R"


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _tuple(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _number(number: int) -> bytes:
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data
