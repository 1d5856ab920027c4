"""The image data sets for training a classifier, with the usual augmentation."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from trainer.errors import BadSettings
from trainer.tasks.image_files import read_cifar10, read_fashion_mnist
from trainer.tasks.stripes import CLASSES, Stripes

KINDS = ("generated", "cifar10", "fashion_mnist", "image_folder")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
_CIFAR10_NUMBERS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_FASHION_NUMBERS = ((0.2860,) * 3, (0.3530,) * 3)
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GREATEST = 30  # magnitude of RandAugment
_STRIPES = tuple(f"{colour}-{36 * angle}" for colour in ("warm", "cold") for angle in range(CLASSES // 2))
_GENERATED_PIXELS, _FOLDER_PIXELS = 32, 224
_VALIDATION_FOLDERS = ("val", "validation", "test")

Sample = tuple[Tensor, int]
Transform = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True)
class Images:
    """The training and validation images, the names of their classes, and their width and height in pixels."""

    train: Dataset[Sample]
    validation: Dataset[Sample]
    classes: tuple[str, ...]
    pixels: int


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The options that choose the images.

    `kind` is the name of the data set: generated, cifar10, fashion_mnist or image_folder. `root` is the folder of its
    files, which only generated images can do without, and `pixels` the images' width and height (None: that of the data
    set). `seed` and the two counts are for generated images. `rand_augment` is the magnitude of RandAugment (None:
    without).
    """

    kind: str = "generated"
    root: Path | None = None
    pixels: int | None = None  # None: as the set has them
    seed: int = 0
    train_images: int = 4096
    validation_images: int = 500
    rand_augment: int | None = None  # its magnitude


class Pictures(Dataset[Sample]):
    """A data set of images that are in memory as bytes.

    A sample is a pair: the image as `transform` returns it, and its label.
    """

    def __init__(self, images: Tensor, labels: Tensor, transform: Transform) -> None:
        self._images = images
        self._labels: list[int] = labels.tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Sample:
        return self._transform(self._images[index]), self._labels[index]


def open_images(wanted: ImageOptions) -> Images:
    """Return the training and validation images that the options choose, read from files or generated.

    Raises BadSettings if an option is impossible, or files are missing or not as expected.
    """
    more = _rand_augment(wanted)
    if wanted.kind == "generated":
        return _generated(wanted)
    if wanted.kind not in KINDS:
        raise BadSettings(f"--data: expected {', '.join(KINDS)}, got {wanted.kind!r}")
    root = wanted.root
    if root is None:
        raise BadSettings(f"--data {wanted.kind}: expected --root, the folder with its files; nothing is downloaded")
    if not root.is_dir():
        raise BadSettings(f"--root: expected a folder, found none at {root}")
    if wanted.kind == "image_folder":
        return _image_folder(root, wanted.pixels or _FOLDER_PIXELS, more)
    if wanted.kind == "cifar10":
        return _in_memory(read_cifar10, root, wanted.pixels, _CIFAR10, _CIFAR10_NUMBERS, more)
    return _in_memory(read_fashion_mnist, root, wanted.pixels, _FASHION, _FASHION_NUMBERS, more)


def _rand_augment(wanted: ImageOptions) -> list[Any]:
    """Return the transforms that augment colours and shapes, or an empty list if `rand_augment` is not set.

    Raises BadSettings for a magnitude out of range, or if the data set is the one of generated images, whose pixels are
    no bytes.
    """
    magnitude = wanted.rand_augment
    if magnitude is None:
        return []
    if not 0 <= magnitude <= _GREATEST:
        raise BadSettings(f"--rand-augment: expected a magnitude from 0 to {_GREATEST}, got {magnitude}")
    if wanted.kind == "generated":
        raise BadSettings(
            "--rand-augment: expected with images of files, got generated ones, which are no bytes\n"
            "hint: --data cifar10, fashion_mnist or image_folder"
        )
    return [v2.RandAugment(magnitude=magnitude)]


def _generated(wanted: ImageOptions) -> Images:
    """Return training and validation images of stripes, each generated when it is read.

    Raises BadSettings if either number of images that `wanted` asks for is below 1.
    """
    if min(wanted.train_images, wanted.validation_images) < 1:
        raise BadSettings("--train-images, --validation-images: expected at least 1")
    pixels, end = wanted.pixels or _GENERATED_PIXELS, wanted.train_images
    train = Stripes(end, seed=wanted.seed, pixels=pixels, augment=True)
    validation = Stripes(wanted.validation_images, seed=wanted.seed, begin=end, pixels=pixels)
    return Images(train, validation, _STRIPES, pixels)


Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def _in_memory(
    read: Callable[..., tuple[Tensor, Tensor]],
    root: Path,
    pixels: int | None,
    classes: tuple[str, ...],
    statistics: Statistics,
    more: list[Any],
) -> Images:
    """Return the training and validation images of a data set in the folder `root`, read into memory as a whole.

    `read(root, train=...)` returns the images and labels of one of the two. `pixels` is the width and height to resize
    images to (None: they keep their own). `statistics` are the mean and deviation of each colour. The training images
    are cropped and flipped at random, then get the transforms in `more`.
    """
    images, labels = read(root, train=True)
    unseen, their_labels = read(root, train=False)
    own = images.shape[-1]
    resize = [v2.Resize(pixels, antialias=True)] if pixels not in (None, own) else []
    crop = [v2.RandomCrop(own, padding=4), v2.RandomHorizontalFlip()]
    return Images(
        Pictures(images, labels, v2.Compose([*crop, *more, *resize, *_to_numbers(statistics)])),
        Pictures(unseen, their_labels, v2.Compose([*resize, *_to_numbers(statistics)])),
        classes,
        pixels or own,
    )


def _image_folder(root: Path, pixels: int, more: list[Any]) -> Images:
    """Return the images in `root/train/CLASS/*` and `root/val/CLASS/*`, the layout of ImageNet.

    They are cut to `pixels` by `pixels`. The folder `val` may also be called `validation` or `test`. `more` are further
    transforms for training. Raises BadSettings if a folder is missing, or the two differ in their classes.
    """
    crop = [v2.ToImage(), v2.RandomResizedCrop(pixels), v2.RandomHorizontalFlip()]
    seen = v2.Compose([*crop, *more, *_to_numbers(_IMAGENET)])
    whole = _whole(pixels)
    validation_folder = next((root / name for name in _VALIDATION_FOLDERS if (root / name).is_dir()), root / "val")
    train = _open_folder(root / "train", seen)
    validation = _open_folder(validation_folder, whole)
    if train.classes != validation.classes:
        different = ", ".join(sorted(set(train.classes) ^ set(validation.classes)))
        raise BadSettings(f"--root {root}: train and {validation_folder.name} differ in their classes: {different}")
    return Images(train, validation, tuple(train.classes), pixels)


def _whole(pixels: int) -> Transform:
    """Return the transform for validation and requests: it resizes a picture of any size and crops its middle.

    The result is normalised and has `pixels` rows and columns.
    """
    steps = [v2.ToImage(), v2.Resize(round(pixels * 256 / 224)), v2.CenterCrop(pixels), *_to_numbers(_IMAGENET)]
    transform: Transform = v2.Compose(steps)
    return transform


@dataclass(frozen=True, slots=True)
class ServedInputs:
    """The form of a served model's inputs: picture files of any size, or three colours of `pixels` x `pixels` numbers.

    `from_picture` turns a picture into the model's input. If it is None, the model was trained on generated images, and
    an input is numbers.
    """

    classes: tuple[str, ...]  # their names
    pixels: int  # width and height of the images on which the model works
    from_picture: Transform | None  # None: generated images are no pictures


def served_inputs(wanted: ImageOptions) -> ServedInputs:
    """Return the form of a served model's inputs, without reading images.

    For a folder of images the folders of its classes name the classes. Raises BadSettings if they are missing.
    """
    pixels, root = wanted.pixels, wanted.root
    if wanted.kind == "generated":
        return ServedInputs(_STRIPES, pixels or _GENERATED_PIXELS, None)
    if wanted.kind == "image_folder":
        folder = (root or Path()) / "train"
        if not folder.is_dir():
            raise BadSettings(f"--root: expected the folder with the classes of the training, found none at {folder}")
        classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
        return ServedInputs(classes, pixels or _FOLDER_PIXELS, _whole(pixels or _FOLDER_PIXELS))
    kinds = {"cifar10": (_CIFAR10, _CIFAR10_NUMBERS, 32), "fashion_mnist": (_FASHION, _FASHION_NUMBERS, 28)}
    classes, statistics, own = kinds[wanted.kind]
    size = pixels or own
    resize = v2.Resize((size, size), antialias=True)
    return ServedInputs(classes, size, v2.Compose([v2.ToImage(), resize, *_to_numbers(statistics)]))


def _open_folder(folder: Path, transform: Transform) -> Any:
    """Return the data set of a folder with one folder of images per class. Raises BadSettings if there is none."""
    try:
        return ImageFolder(str(folder), transform=transform)
    except FileNotFoundError as error:
        raise BadSettings(
            f"--data image_folder: expected a folder of images for each class in {folder}: {error}\n"
            "hint: root/train/CLASS/*.jpg and root/val/CLASS/*.jpg"
        ) from error


def _to_numbers(statistics: Statistics) -> list[Any]:
    """Return the transforms (of torchvision) from an image of bytes to normalised float32 in three channels.

    `statistics` are (mean, deviation) of each channel.
    """
    mean, std = statistics
    return [v2.ToDtype(torch.float32, scale=True), v2.RGB(), v2.Normalize(mean, std)]
