"""Write weights as safetensors or for torch.load, piece by piece, without torch."""

import json
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import IO

from trainer.checkpoint_files import pickle_writer as pickled
from trainer.checkpoint_files.manifest import ITEM_BYTES
from trainer.checkpoint_files.weights import Weight, Weights
from trainer.errors import TrainerError

SAFE = {
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
_ZIP64_FROM = 1 << 30  # zip has another format for sizes of more than 4 GB, chosen beforehand
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of an archive: the same weights are the same bytes


def write_safetensors(
    file: IO[bytes], weights: Weights, notes: Mapping[str, str], names: Iterable[str] | None = None
) -> None:
    """Write a safetensors file with all tensors, or only those in `names`, and with `notes` in its metadata.

    Raises TrainerError for a type that the format does not have.
    """
    for one in weights.tensors.values():
        if one.dtype not in SAFE:
            raise TrainerError(f"{one.name}: safetensors has no {one.dtype}\nhint: -o FILE.pt")
    wanted = [weights.tensors[name] for name in (weights.tensors if names is None else names)]
    ordered = sorted(wanted, key=lambda one: (-ITEM_BYTES[one.dtype], one.name))
    file.write(_header(ordered, {"format": "pt", **weights.tied, **notes}))
    for one in ordered:
        file.writelines(weights.data(one.name))


def _header(ordered: Iterable[Weight], notes: Mapping[str, str]) -> bytes:
    """Return the header of a safetensors file: its length and JSON, padded to a multiple of eight bytes.

    The tensors in `ordered` follow it in this order. `notes` go into its metadata.
    """
    opcodes: dict[str, object] = {"__metadata__": dict(notes)}
    at = 0
    for one in ordered:
        opcodes[one.name] = {"dtype": SAFE[one.dtype], "shape": one.shape, "data_offsets": [at, at + one.size]}
        at += one.size
    text = json.dumps(opcodes, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def split(tensors: Iterable[Weight], most_bytes: int) -> list[list[str]]:
    """Return the tensors' names in groups, one for each file, of at most `most_bytes` each.

    A larger tensor has a file of its own.
    """
    files: list[list[str]] = []
    held = 0
    for one in tensors:
        if not files or held + one.size > most_bytes:
            files.append([])
            held = 0
        files[-1].append(one.name)
        held += one.size
    return files


def index(files: Mapping[str, Sequence[str]], weights: Weights) -> bytes:
    """Return the JSON index of several safetensors files, as transformers reads it.

    `files` has the names of the tensors in each file, by file name; `weights` are all tensors, for the total size.
    """
    size = sum(one.size for one in weights.tensors.values())
    homes = {tensor: file for file, names in files.items() for tensor in names}
    opcodes = {"metadata": {"total_size": size}, "weight_map": dict(sorted(homes.items()))}
    return json.dumps(opcodes, indent=2, ensure_ascii=False).encode() + b"\n"


def write_torch(file: IO[bytes], weights: Weights, *, zip64_from: int = _ZIP64_FROM) -> None:
    """Write a dict of tensors by name, as torch.save does; torch.load(weights_only=True) reads it.

    Tensors of at least `zip64_from` bytes are declared in zip's format for sizes of more than 4 GB.
    """
    keys = {tensor: str(number) for number, tensor in enumerate(weights.tensors)}
    named = {**{tensor: tensor for tensor in weights.tensors}, **weights.tied}
    opcodes = pickled.table(
        (pickled.text(alias), _tensor(weights.tensors[one], keys[one])) for alias, one in named.items()
    )
    _write_archive(file, opcodes, weights, keys, zip64_from)


def write_torch_tensor(file: IO[bytes], weights: Weights, name: str) -> None:
    """Write a file with the single tensor `name`, as torch.save does."""
    _write_archive(file, _tensor(weights.tensors[name], "0"), weights, {name: "0"}, _ZIP64_FROM)


def _write_archive(file: IO[bytes], opcodes: bytes, weights: Weights, keys: Mapping[str, str], zip64_from: int) -> None:
    """Write the zip archive of torch.save: the pickle (`opcodes`), and the bytes of each tensor.

    `keys` gives the name in the archive of each tensor. Entries of at least `zip64_from` bytes are declared in zip's
    format for large sizes.
    """
    opcodes = pickled.PROTOCOL + opcodes + pickled.STOP
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        put = partial(_put, archive, zip64_from)
        put("data.pkl", [opcodes], len(opcodes))
        for entry, text in ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little")):
            put(entry, [text], len(text))
        for tensor, key in keys.items():
            put(f"data/{key}", weights.data(tensor), weights.tensors[tensor].size)
        put("version", [b"3\n"], 2)


def _put(archive: zipfile.ZipFile, zip64_from: int, name: str, pieces: Iterable[bytes], size: int) -> None:
    """Write the entry `name`, of `size` bytes, so that its bytes begin at a multiple of 64 and can be memory-mapped.

    From `zip64_from` bytes on it is declared in zip's format for sizes of more than 4 GB.
    """
    entry, large = zipfile.ZipInfo(f"weights/{name}", _EPOCH), size >= zip64_from
    entry.external_attr, entry.file_size = 0o600 << 16, size
    before = 30 + len(entry.filename.encode()) + (20 if large else 0) + 4
    begins = before + (archive.fp.tell() if archive.fp is not None else 0)
    padding = -begins % _ALIGNED
    entry.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    with archive.open(entry, "w", force_zip64=large) as out:
        for piece in pieces:
            out.write(piece)


def strides(shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of a contiguous tensor of this shape."""
    found = [1]
    for length in reversed(shape[1:]):
        found.insert(0, found[0] * max(1, length))
    return found[: len(shape)]


def _tensor(one: Weight, key: str) -> bytes:
    """Return the pickled opcodes that rebuild one tensor from the archive's entry `key`."""
    classic = one.dtype in _STORAGES
    kind = ("torch", _STORAGES[one.dtype]) if classic else ("torch.storage", "UntypedStorage")
    count = one.size // (ITEM_BYTES[one.dtype] if classic else 1)
    storage = pickled.row(
        pickled.text("storage"), pickled.name_of(*kind), pickled.text(key), pickled.text("cpu"), pickled.number(count)
    )
    no_hooks = pickled.called(pickled.name_of("collections", "OrderedDict"))
    shape, steps = pickled.numbers(one.shape), pickled.numbers(strides(one.shape))
    parts = [storage + b"Q", pickled.number(0), shape, steps, pickled.NO, no_hooks]
    if classic:
        return pickled.called(pickled.name_of("torch._utils", "_rebuild_tensor_v2"), *parts)
    return pickled.called(
        pickled.name_of("torch._utils", "_rebuild_tensor_v3"), *parts, pickled.name_of("torch", one.dtype)
    )
