"""Write weights as a checkpoint of torch.distributed.checkpoint (DCP), piece by piece, without torch."""

from pathlib import Path
from typing import IO, cast

from trainer.checkpoint_files import pickle_writer as pickled
from trainer.checkpoint_files.weight_files import strides, write_torch_tensor
from trainer.checkpoint_files.weights import Weight, Weights

METADATA = ".metadata"
_DATA = "__0_0.distcp"
_WORDS = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"


def write_dcp(folder: Path, weights: Weights) -> None:
    """Write each tensor as one chunk, of which a loading rank takes its part; tied tensors keep all their names."""
    places = {}
    with (folder / _DATA).open("xb") as file:
        for name in weights.tensors:
            begin = file.tell()
            write_torch_tensor(cast("IO[bytes]", _FromHere(file)), weights, name)
            places[name] = (begin, file.tell() - begin)
    (folder / METADATA).write_bytes(pickled.PROTOCOL + _metadata(weights, places) + pickled.STOP)


class _FromHere:
    """A view of a file from its current position on as a file of its own, to write a zip archive into its middle."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._begin = file, file.tell()
        self.write, self.flush = file.write, file.flush

    def tell(self) -> int:
        """Return the position, counted from where this view begins."""
        return self._file.tell() - self._begin

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position counted from where this view begins, and return it."""
        return self._file.seek(offset + (self._begin if whence == 0 else 0), whence) - self._begin


def _metadata(weights: Weights, places: dict[str, tuple[int, int]]) -> bytes:
    """Return the pickled metadata: all tensors, and where the bytes of each are.

    `places` gives each tensor's (offset, size) in the one data file, by name. Tied tensors are listed under all names.
    """
    named = {**{name: name for name in weights.tensors}, **weights.tied}
    tensors = ((pickled.text(alias), _described(weights.tensors[name])) for alias, name in named.items())
    paths = ((pickled.text(alias), pickled.row(pickled.text(alias))) for alias in named)
    stored = ((_part_of(alias, weights.tensors[name]), _place(*places[name])) for alias, name in named.items())
    return pickled.record(
        pickled.name_of(_WORDS, "Metadata"),
        {
            "state_dict_metadata": pickled.table(tensors),
            "planner_data": pickled.table(paths),
            "storage_data": pickled.table(stored),
        },
    )


def _described(one: Weight) -> bytes:
    """Return the pickled TensorStorageMetadata of one tensor, with a single chunk."""
    layout = pickled.called(pickled.name_of("torch.serialization", "_get_layout"), pickled.text("torch.strided"))
    contiguous = pickled.called(pickled.name_of(_WORDS, "_MEM_FORMAT_ENCODING"), pickled.number(0))
    of_type = pickled.name_of("torch", one.dtype)
    steps = pickled.numbers(strides(one.shape))
    properties = pickled.row(of_type, layout, pickled.NO, contiguous, pickled.NO, steps)
    part = {"offsets": _size([0] * len(one.shape)), "sizes": _size(one.shape)}
    return pickled.record(
        pickled.name_of(_WORDS, "TensorStorageMetadata"),
        {
            "properties": pickled.made(pickled.name_of(_WORDS, "TensorProperties"), properties),
            "size": _size(one.shape),
            "chunks": pickled.sequence([pickled.record(pickled.name_of(_WORDS, "ChunkStorageMetadata"), part)]),
        },
    )


def _part_of(alias: str, one: Weight) -> bytes:
    """Return the pickled MetadataIndex of the only chunk of the tensor `one`, under the name `alias`.

    DCP finds by it where the chunk is stored. A tied tensor has several names, each of which is written.
    """
    fields = {"fqn": pickled.text(alias), "index": pickled.number(0), "offset": _size([0] * len(one.shape))}
    return pickled.record(pickled.name_of(_WORDS, "MetadataIndex"), fields)


def _place(at: int, size: int) -> bytes:
    """Return the pickled position of a tensor in the data file: `size` bytes from offset `at` on."""
    fields = {"relative_path": pickled.text(_DATA), "offset": pickled.number(at), "length": pickled.number(size)}
    return pickled.record(pickled.name_of(_FILES, "_StorageInfo"), fields)


def _size(shape: "tuple[int, ...] | list[int]") -> bytes:
    """Return a pickled torch.Size of this shape."""
    return pickled.called(pickled.name_of("torch", "Size"), pickled.numbers(shape))
