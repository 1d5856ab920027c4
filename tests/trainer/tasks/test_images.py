"""Data sets from folders, and what is said of folders that are none."""

import pickle

import numpy as np
import pytest
import torch
from picture_files import write_cifar10, write_fashion_mnist, write_idx, write_image_folder

from trainer.errors import BadSettings
from trainer.tasks.images import ImageOptions, open_images


def test_cifar10(tmp_path):
    written = write_cifar10(tmp_path)
    images = open_images(ImageOptions("cifar10", tmp_path))
    assert (len(images.train), len(images.validation), images.pixels) == (20, 4, 32)
    assert images.classes[:2] == ("airplane", "automobile")
    image, label = images.validation[1]
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    back = (image * std[:, None, None] + mean[:, None, None]) * 255
    assert np.array_equal(back.round().numpy().astype(np.uint8).reshape(-1), written["test_batch"][1])
    assert label == (7 + 5) % 10


def test_cifar10_in_the_folder_itself(tmp_path):
    write_cifar10(tmp_path)
    assert len(open_images(ImageOptions("cifar10", tmp_path / "cifar-10-batches-py")).train) == 20


def test_augmentation_is_drawn_from_the_global_generator(tmp_path):
    write_cifar10(tmp_path)
    images = open_images(ImageOptions("cifar10", tmp_path))
    torch.manual_seed(1)
    first = [images.train[3][0] for _ in range(6)]
    torch.manual_seed(1)
    assert all(torch.equal(images.train[3][0], seen) for seen in first)
    assert len({tuple(seen[0, :, 5].tolist()) for seen in first}) > 1
    assert torch.equal(images.validation[0][0], images.validation[0][0])


@pytest.mark.parametrize("place", ["", "FashionMNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist(tmp_path, place, zipped):
    written = write_fashion_mnist(tmp_path / place, zipped=zipped)
    images = open_images(ImageOptions("fashion_mnist", tmp_path))
    assert (len(images.train), len(images.validation), images.pixels) == (6, 3, 28)
    image, label = images.validation[2]
    assert image.shape == (3, 28, 28) and label == 2
    back = ((image[0] * 0.3530 + 0.2860) * 255).round().numpy().astype(np.uint8)
    assert np.array_equal(back, written[2].astype(np.uint8))


def test_image_folder(tmp_path):
    write_image_folder(tmp_path)
    images = open_images(ImageOptions("image_folder", tmp_path, pixels=48))
    assert images.classes == ("blue", "red") and images.pixels == 48
    assert (len(images.train), len(images.validation)) == (6, 6)
    image, label = images.validation[5]
    assert image.shape == (3, 48, 48) and label == 1
    assert image[0].min() > 2 and image[2].max() < -1, "a red image is red everywhere"
    assert images.train[0][0].shape == (3, 48, 48)


def test_images_can_be_made_bigger(tmp_path):
    write_cifar10(tmp_path)
    images = open_images(ImageOptions("cifar10", tmp_path, pixels=64))
    assert images.train[0][0].shape == images.validation[0][0].shape == (3, 64, 64)


@pytest.mark.parametrize("kind", ["cifar10", "fashion_mnist", "image_folder"])
def test_missing_files_are_named(tmp_path, kind):
    with pytest.raises(BadSettings, match=f"--data {kind}: expected --root"):
        open_images(ImageOptions(kind))
    with pytest.raises(BadSettings, match=r"--root: expected a folder, found none at .*/nowhere"):
        open_images(ImageOptions(kind, tmp_path / "nowhere"))
    with pytest.raises(BadSettings, match=rf"--data {kind}: expected .*{tmp_path}(.|\n)*hint: "):
        open_images(ImageOptions(kind, tmp_path))


def test_half_of_fashion_mnist_is_missing(tmp_path):
    write_fashion_mnist(tmp_path, zipped=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(BadSettings, match="t10k-labels-idx1-ubyte"):
        open_images(ImageOptions("fashion_mnist", tmp_path))


def test_classes_have_to_be_the_same(tmp_path):
    write_image_folder(tmp_path)
    (tmp_path / "val" / "red").rename(tmp_path / "val" / "green")
    with pytest.raises(BadSettings, match="differ in their classes: green, red"):
        open_images(ImageOptions("image_folder", tmp_path))


class Payload:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path('canary').touch()",))


def test_nothing_in_a_batch_of_cifar10_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path)
    payload = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0], b"x": Payload()}
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(payload))
    with pytest.raises(BadSettings, match=r"test_batch: expected a CIFAR-10 batch: it asks for builtins.exec"):
        open_images(ImageOptions("cifar10", tmp_path))
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        {},
        {b"data": np.zeros((2, 100), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072)), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]},
    ],
)
def test_what_is_no_batch_is_refused(tmp_path, batch):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(BadSettings, match="data_batch_3: expected"):
        open_images(ImageOptions("cifar10", tmp_path))


def test_damaged_files_are_named(tmp_path):
    write_cifar10(tmp_path / "c")
    path = tmp_path / "c" / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(BadSettings, match="data_batch_2"):
        open_images(ImageOptions("cifar10", tmp_path / "c"))
    write_fashion_mnist(tmp_path / "f", zipped=True)
    path = tmp_path / "f" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadSettings, match="train-images-idx3-ubyte"):
        open_images(ImageOptions("fashion_mnist", tmp_path / "f"))
    write_idx(path.with_suffix(""), np.zeros((4, 28, 28)), zipped=True)
    with pytest.raises(BadSettings, match="expected 6 images, as there are labels, got 4"):
        open_images(ImageOptions("fashion_mnist", tmp_path / "f"))


def test_an_unknown_kind_is_refused():
    with pytest.raises(BadSettings, match="--data: expected generated, cifar10"):
        open_images(ImageOptions("mnist"))
