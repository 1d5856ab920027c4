"""The drawn images: decided by (seed, index) alone."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.tasks.stripes import CLASSES, Stripes


def stacked(samples):
    return torch.stack([image for image, _ in samples]), [label for _, label in samples]


def test_the_same_whatever_the_order_and_the_company():
    stripes = Stripes(200, seed=3)
    images, labels = stacked(stripes.__getitems__(list(range(40))))
    turned, their_labels = stacked(stripes.__getitems__(list(range(39, -1, -1))))
    assert torch.equal(images, turned.flip(0)) and labels == their_labels[::-1]
    for index in (0, 17, 39):
        alone, label = stripes[index]
        assert torch.equal(alone, images[index]) and label == labels[index]


def test_another_seed_or_index_is_another_image():
    first = Stripes(10, seed=1)
    images, _ = stacked(first.__getitems__(list(range(10))) + Stripes(10, seed=2).__getitems__(list(range(10))))
    flat = images.flatten(1)
    apart = torch.corrcoef(flat - flat.mean(1, keepdim=True)).fill_diagonal_(0).abs().max()
    assert apart < 0.95
    assert len({tuple(row[:8].tolist()) for row in flat}) == 20


def test_validation_images_begin_where_those_for_training_end():
    whole = Stripes(30, seed=1)
    later = Stripes(10, seed=1, begin=20)
    assert torch.equal(later[0][0], whole[20][0]) and later[3][1] == whole[23][1]


def test_every_class_comes_equally_often():
    labels = stacked(Stripes(100).__getitems__(list(range(100))))[1]
    assert all(labels.count(label) == 10 for label in range(CLASSES))


def test_noise_of_training_comes_from_the_global_generator_alone():
    plain, training = Stripes(20, seed=1), Stripes(20, seed=1, augment=True)
    torch.manual_seed(5)
    once = training[4][0]
    again = training[4][0]
    torch.manual_seed(5)
    assert torch.equal(training[4][0], once) and not torch.equal(once, again)
    assert 0.15 < (once - plain[4][0]).std() < 0.25
    state = torch.get_rng_state()
    plain.__getitems__([1, 2, 3])
    assert torch.equal(torch.get_rng_state(), state), "without noise no generator may move"


def test_the_noise_of_an_image_is_noise():
    images, labels = Stripes(400, seed=7).draw(torch.arange(400))
    dark = images - images.mean(0)
    assert abs(images.mean()) < 0.01 and 0.8 < images.std() < 1.05
    neighbours = (dark[:, :, :, 1:] * dark[:, :, :, :-1]).mean() / dark.pow(2).mean()
    assert neighbours < 0.5
    assert labels.tolist() == [index % CLASSES for index in range(400)]


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(size):
    stripes = Stripes(1000, augment=True)
    with Operations() as counted:
        stripes.__getitems__(list(range(size)))
    return counted.count


def test_a_batch_is_drawn_at_once():
    assert operations(64) == operations(2) > 10
