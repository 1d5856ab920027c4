"""torchvision's classifiers for images of any size."""

import pytest
import torch
from torch import nn

from trainer.errors import BadSettings
from trainer.tasks.classifiers import build_classifier


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5"])
def test_small_images_get_a_stem_that_keeps_them(name):
    model = build_classifier(name, classes=7, pixels=32)
    sizes = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(lambda _module, _args, answer: sizes.append(answer.shape[-1]))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert model.training and sizes[0] >= 16


def test_big_images_get_the_usual_stem():
    model = build_classifier("resnet18", classes=5, pixels=64)
    assert model.conv1.kernel_size == (7, 7) and isinstance(model.maxpool, nn.MaxPool2d)


def test_the_seed_decides_the_weights_and_the_trial_leaves_no_trace():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build_classifier("resnet18", classes=10, pixels=32).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert states[0]["bn1.num_batches_tracked"] == 0
    assert torch.equal(states[0]["bn1.running_mean"], torch.zeros(64))


def test_an_unknown_name_is_refused_with_near_ones():
    with pytest.raises(
        BadSettings, match=r"--model: expected a torchvision classifier, got 'resnt18'\nhint: .*resnet18"
    ):
        build_classifier("resnt18", classes=10, pixels=32)


def test_a_model_that_cannot_take_such_images_is_refused():
    with pytest.raises(BadSettings, match="--model inception_v3: does not work on images of 32 pixels"):
        build_classifier("inception_v3", classes=10, pixels=32)
