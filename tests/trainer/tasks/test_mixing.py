"""MixUp, CutMix, RandAugment and smoothed labels: what they make, and that a resumed training draws the same."""

import pytest
import torch
from picture_files import write_cifar10
from ranks import spawn_ranks
from torch.nn import functional as F  # noqa: N812 - its usual name

from trainer.checkpoint.fingerprint import fingerprint
from trainer.checkpoint_files import catalog
from trainer.errors import BadSettings
from trainer.tasks import resnet
from trainer.tasks.images import ImageOptions, open_images
from trainer.tasks.resnet import Mixed

ALIKE = [(torch.full((3, 8, 8), float(number)), number) for number in range(4)]


def batch_of(seed=1, **alphas):
    torch.manual_seed(seed)
    mixed = Mixed(ALIKE, classes=4, **{"mixup": 0.0, "cutmix": 0.0, **alphas})
    images, labels = zip(*mixed.__getitems__([0, 1, 2, 3]), strict=True)
    return torch.stack(images), torch.stack(labels)


@pytest.mark.parametrize("alphas", [{"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 0.7}])
def test_a_label_says_how_much_of_each_image_is_in_it(alphas):
    images, labels = batch_of(**alphas)
    torch.testing.assert_close(images.mean((1, 2, 3)), labels @ torch.arange(4.0))
    torch.testing.assert_close(labels.sum(1), torch.ones(4))
    assert ((labels > 0).sum(1) == 2).all(), "two images in each"


def test_one_is_a_mixture_of_colours_and_the_other_of_places():
    blended, _ = batch_of(mixup=1.0)
    assert len(blended[0].unique()) == 1
    pasted, _ = batch_of(cutmix=1.0)
    assert pasted[0].unique().tolist() == [0.0, 3.0]


def test_the_same_seed_draws_the_same():
    one, other, third = batch_of(mixup=1.0), batch_of(mixup=1.0), batch_of(2, mixup=1.0)
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert not torch.equal(one[1], third[1])


def test_images_of_files_are_changed_in_training_alone(tmp_path):
    write_cifar10(tmp_path)
    plain, more = (open_images(ImageOptions("cifar10", tmp_path, rand_augment=one)) for one in (None, 15))

    def seen(images):
        torch.manual_seed(1)
        return torch.stack([images.train[number][0] for number in range(8)])

    assert torch.equal(seen(more), seen(more))
    assert not torch.equal(seen(more), seen(plain))
    assert torch.equal(more.validation[0][0], plain.validation[0][0])


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(BadSettings, match="--rand-augment: expected with images of files, got generated ones"):
        open_images(ImageOptions(rand_augment=9))
    with pytest.raises(BadSettings, match="--rand-augment: expected a magnitude from 0 to 30, got 31"):
        open_images(ImageOptions("cifar10", tmp_path, rand_augment=31))
    with pytest.raises(BadSettings, match="--label-smoothing: expected a share below 1, got 1"):
        resnet.loss_with(1.0)


def test_labels_are_smoothed_in_training_only():
    model, images = torch.nn.Linear(5, 4), torch.randn(6, 5)
    for labels in (torch.arange(6) % 4, torch.eye(4)[torch.arange(6) % 4]):
        smoothed, more = resnet.loss_with(0.2)(model.train(), (images, labels))
        plain, _ = resnet.loss_with(0.2)(model.eval(), (images, labels))
        assert smoothed == F.cross_entropy(model(images), labels, label_smoothing=0.2)
        assert plain == F.cross_entropy(model(images), labels)
        assert more["accuracy"] == (model(images).argmax(1) == torch.arange(6) % 4).float().mean()


def train(folder, *steps):
    """Train in several starts, each a few steps further, and return the fingerprint of the end."""
    for last in steps:
        assert resnet.main([
            *("--model", "shufflenet_v2_x0_5", "--pixels", "16", "--train-images", "40", "--validation-images", "4"),
            *("--mixup", "0.3", "--cutmix", "1", "--label-smoothing", "0.1", "--batch-size", "8"),
            *("--schedule", "constant", "--checkpoint-dir", str(folder), "--out", str(folder / "metrics")),
            *("--max-steps", str(last), "--deterministic"),
        ]) == 0  # fmt: skip
    return fingerprint(catalog.entries(folder)[-1])


def _stopped_and_not(folder):
    return train(folder / "alone", 7), train(folder / "twice", 3, 7)


def test_who_goes_on_draws_what_he_would_have_drawn(tmp_path):
    [(alone, twice)] = spawn_ranks(_stopped_and_not, 1, tmp_path)
    assert alone == twice


def test_nothing_of_it_is_on_by_itself():
    options = resnet.parse([])
    assert (options.label_smoothing, options.mixup, options.cutmix, options.rand_augment) == (0, 0, 0, None)
