"""Writes small data sets in the formats of CIFAR-10, FashionMNIST and ImageFolder."""

import gzip
import pickle
from pathlib import Path

import numpy as np
from PIL import Image


def write_cifar10(root: Path, rows: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """`rows` images in each of the six files; what is in them, by the file's name."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    written: dict[str, np.ndarray] = {}
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        data = random.integers(0, 256, (rows, 3072), dtype=np.uint8)
        labels = [(7 * number + len(written)) % 10 for number in range(rows)]
        batch = {b"batch_label": b"batch", b"labels": labels, b"data": data, b"filenames": [b"a.png"] * rows}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        written[name] = data
    return written


def write_idx(path: Path, array: np.ndarray, *, zipped: bool) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    data = header + array.astype(np.uint8).tobytes()
    path.with_name(path.name + (".gz" if zipped else "")).write_bytes(gzip.compress(data) if zipped else data)


def write_fashion_mnist(folder: Path, *, zipped: bool, rows: int = 6) -> np.ndarray:
    """The four files; the images for training."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (rows, 28, 28))
    write_idx(folder / "train-images-idx3-ubyte", images, zipped=zipped)
    write_idx(folder / "train-labels-idx1-ubyte", np.arange(rows) % 10, zipped=zipped)
    write_idx(folder / "t10k-images-idx3-ubyte", images[:3], zipped=zipped)
    write_idx(folder / "t10k-labels-idx1-ubyte", np.arange(3), zipped=zipped)
    return images


def write_image_folder(root: Path, splits: tuple[str, ...] = ("train", "val"), rows: int = 3) -> None:
    """Red ones and blue ones, of different sizes."""
    for split in splits:
        for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(rows):
                Image.new("RGB", (40 + 8 * number, 50), colour).save(folder / f"{number}.png")
