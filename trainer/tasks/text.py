"""Cut the bytes of a text into windows for training."""

import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.utils.data import Dataset

from trainer.checkpoint.staging import bytes_of
from trainer.errors import BadSettings

_DEFAULT_BYTES = 4_000_000
_VALIDATION_SHARE = 10  # one byte of so many, the last ones,
_MOST_VALIDATION_BYTES = 200_000  # but no more than these


class Windows(Dataset[Tensor]):
    """A data set of windows of a text: window i is bytes i * length to (i + 1) * length inclusive.

    Neighbours share one byte, so that each byte except the first is predicted once. Bytes at the end that do not fill a
    window are left out.
    """

    def __init__(self, text: Tensor, length: int) -> None:
        self._text = text
        self._length = length

    def __str__(self) -> str:
        """Return a text that identifies the windows and their content."""
        digest = xxhash.xxh3_128(bytes_of(self._text)).hexdigest()
        return f"windows of {self._length} bytes, xxh3 {digest}"

    def __len__(self) -> int:
        return max(0, (len(self._text) - 1) // self._length)

    def __getitem__(self, index: int) -> Tensor:
        begin = index * self._length
        return self._text[begin : begin + self._length + 1].long()

    def __getitems__(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the windows of a whole batch at once; torch's loaders call this if it exists."""
        places = torch.tensor(indices)[:, None] * self._length + torch.arange(self._length + 1)
        return list(self._text[places].long())


@dataclass(frozen=True, slots=True)
class Text:
    """The windows to train on, and those at the text's end, which are only validated on."""

    train: Windows
    validation: Windows

    def describe(self) -> str:
        """Return a text that identifies the validation windows: their number, length and a checksum of their bytes."""
        return f"{len(self.validation)} {self.validation}"


def open_text(path: Path | None, *, length: int) -> Text:
    """Return windows of the file at `path`, for training and, from the file's end, for validation.

    Each has `length` bytes to predict, and one byte before these. With None the text is the sources of Python's own
    library. Raises BadSettings if there is too little text.
    """
    text = python_library() if path is None else _file(path)
    end = len(text) - min(len(text) // _VALIDATION_SHARE, _MOST_VALIDATION_BYTES)
    windows = Text(Windows(text[:end], length), Windows(text[end:], length))
    if not len(windows.validation):
        least = (length + 1) * _VALIDATION_SHARE
        raise BadSettings(f"--text {path}: expected at least {least} bytes for a context of {length}, got {len(text)}")
    return windows


def python_library(limit: int = _DEFAULT_BYTES) -> Tensor:
    """Return the sources of the modules that come with this Python as bytes, in the order of their names.

    At most `limit` bytes are returned. Raises BadSettings if there are no sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    parts: list[bytes] = []
    size = 0
    for path in sorted(folder.glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= limit:
            break
    if not parts:
        raise BadSettings(f"expected Python's own sources in {folder}, found none\nhint: give a text, --text FILE")
    return torch.frombuffer(bytearray(b"".join(parts)[:limit]), dtype=torch.uint8)


def _file(path: Path) -> Tensor:
    """Return the bytes of a file as a uint8 tensor, mapped into memory rather than read.

    Raises BadSettings if the file cannot be opened or is empty.
    """
    try:
        size = os.path.getsize(path)
        if path.is_dir() or not size:
            raise BadSettings(
                f"--text: expected a file with text, got {'a folder' if path.is_dir() else 'nothing'} at {path}"
            )
        # Mapped, not read: the ranks of a node share the pages, and a text may be bigger than the memory.
        return torch.from_numpy(np.memmap(path, np.uint8, mode="c"))
    except OSError as error:
        raise BadSettings(f"--text: expected a file with text, {path}: {error.strerror}") from error
