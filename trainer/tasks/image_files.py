"""Read the files of CIFAR-10 and FashionMNIST as their authors publish them, executing nothing in them."""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.errors import BadSettings
from trainer.plain_pickle import Built, NotPlain, expect, read_plain

_CIFAR_FOLDER = "cifar-10-batches-py"
_CIFAR_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_FASHION_FOLDERS = ("", "FashionMNIST/raw", "fashion", "raw")  # as published, as torchvision lays it out
_IDX_BYTES = 0x08  # the only type of numbers in these files: unsigned bytes


def read_cifar10(root: Path, *, train: bool) -> tuple[Tensor, Tensor]:
    """Return images as bytes (n, 3, 32, 32), and labels, for training with `train`, else for validation.

    Raises BadSettings if a file is missing or not as expected.
    """
    names = _CIFAR_TRAIN if train else ["test_batch"]
    folder = root / _CIFAR_FOLDER if (root / _CIFAR_FOLDER).is_dir() else root
    hint = f"unpack cifar-10-python.tar.gz in {root}; nothing is downloaded"
    batches = [_cifar_batch(_existing(folder, name, "cifar10", hint)) for name in names]
    images = torch.cat([images for images, _ in batches])
    return images, torch.cat([labels for _, labels in batches])


def read_fashion_mnist(root: Path, *, train: bool) -> tuple[Tensor, Tensor]:
    """Return images as bytes (n, 1, 28, 28), and labels, for training with `train`, else for validation.

    Raises BadSettings if a file is missing or not as expected.
    """
    kind = "train" if train else "t10k"
    names = (f"{kind}-images-idx3-ubyte", f"{kind}-labels-idx1-ubyte")
    hint = f"put the four idx files, with or without .gz, in {root}; nothing is downloaded"
    folder = next((root / name for name in _FASHION_FOLDERS if _idx_path(root / name, names[0]) is not None), root)
    paths = [_idx_path(folder, name) or _existing(folder, f"{name}.gz", "fashion_mnist", hint) for name in names]
    images, labels = _read_idx(paths[0], 3), _read_idx(paths[1], 1)
    if len(images) != len(labels):
        raise BadSettings(f"{paths[0]}: expected {len(labels)} images, as there are labels, got {len(images)}")
    return images[:, None], labels.long()


def _existing(folder: Path, name: str, data: str, hint: str) -> Path:
    """Return the path of the file `name` in `folder`. Raises BadSettings, with `hint`, if there is none.

    `data` is the name of the data set, for the message.
    """
    path = folder / name
    if not path.is_file():
        raise BadSettings(f"--data {data}: expected the file {path}, found none\nhint: {hint}")
    return path


def _cifar_batch(path: Path) -> tuple[Tensor, Tensor]:
    """Return (images as bytes, N x 3 x 32 x 32; their N labels, 0 to 9) of one batch file.

    Raises BadSettings if its contents are not as expected.
    """
    try:
        batch = read_pickled_bytes(path.read_bytes())
    except NotPlain as error:
        raise BadSettings(f"{path}: expected a CIFAR-10 batch: {error}") from error
    if not isinstance(batch, dict):
        raise BadSettings(f"{path}: expected a CIFAR-10 batch, got a {type(batch).__name__}")
    pixels, labels = batch.get(b"data", batch.get("data")), batch.get(b"labels", batch.get("labels"))
    if not (isinstance(pixels, PickledArray) and pixels.shape[1:] == (3 * 32 * 32,)):
        raise BadSettings(f"{path}: expected data of 3072 bytes per image")
    count = pixels.shape[0]
    if not (
        isinstance(labels, Sequence)
        and len(labels) == count
        and all(isinstance(label, int) and 0 <= label < 10 for label in labels)
    ):
        raise BadSettings(f"{path}: expected {count} labels from 0 to 9")
    images = torch.from_numpy(np.frombuffer(pixels.data, np.uint8).copy())
    return images.view(count, 3, 32, 32), torch.tensor(labels, dtype=torch.int64)


def _idx_path(folder: Path, name: str) -> Path | None:
    """Return the file of this name, or the same with `.gz`; None if there is neither."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the array in a file of MNIST's idx format: two zeros, type, number of dimensions, the sizes, the bytes.

    Raises BadSettings for other contents, or if it has not `dimensions` dimensions.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError, zlib.error) as error:
        raise BadSettings(f"{path}: {error}") from error
    header = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, _IDX_BYTES, dimensions]) or len(data) < header:
        raise BadSettings(f"{path}: expected an idx file of bytes in {dimensions} dimensions")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4)]
    array = np.frombuffer(data, np.uint8, offset=header)
    if array.size != int(np.prod(shape)):
        raise BadSettings(f"{path}: expected {int(np.prod(shape))} bytes for a shape of {shape}, got {array.size}")
    return torch.from_numpy(array.reshape(shape).copy())


_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")


class PickledArray(Built):
    """A NumPy array of bytes, as a pickle describes it: its shape, and its bytes in order of rows.

    The reader of the pickle makes it empty, and `fill` sets both.
    """

    shape: tuple[int, ...] = ()
    data = b""

    def fill(self, state: Any) -> None:
        """Set shape and data from the pickled state. Raises NotPlain for anything but an array of bytes."""
        _, shape, kind, by_columns, data = state
        if not (isinstance(kind, _Type) and kind.name in ("u1", b"u1") and by_columns in (0, False)):
            raise NotPlain("an array of something else than bytes in rows")
        if not all(type(size) is int and size >= 0 for size in shape) or len(data) != math.prod(shape):
            raise NotPlain("an array that is longer or shorter than its shape says")
        self.shape, self.data = tuple(shape), bytes(data)


class _Type(Built):
    """A NumPy type as a pickle describes it, of which only the name is used.

    The byte order is ignored, because arrays of single bytes have none.
    """

    def __init__(self, name: object) -> None:
        self.name = name


def read_pickled_bytes(data: bytes) -> object:
    """Return the object that a pickle describes, without running code.

    Raises NotPlain for anything but numbers, text, lists, dicts and arrays of bytes.
    """
    return read_plain(data, _made)


def _made(name: str, arguments: tuple[Any, ...]) -> Any:
    """Return the object that stands for the result of a call in a pickle, which is not carried out.

    `name` is the module and the function, with a space between, such as `numpy dtype`; `arguments` are those of the
    call. The object is an empty array to be filled, a NumPy type or bytes. Raises NotPlain for any other function.
    """
    if name in _RECONSTRUCT:
        return PickledArray()
    if name == "numpy dtype":
        return _Type(arguments[0])
    if name == "_codecs encode":  # how Python 3 writes bytes in the old protocol
        return expect(str, arguments[0]).encode("latin-1")
    raise NotPlain(f"it asks for {name[:100].replace(' ', '.')}, which is no data")
