"""Build torchvision's classifiers by name, adapted to the size of the images."""

import difflib

import torch
from torch import Tensor, nn
from torchvision import models

from trainer.errors import BadSettings
from trainer.strategies import is_deferred

SMALL = 32  # images of so many pixels or fewer need another beginning of the network
_OWN_SIZE = ("vit_",)  # they are built for one size of image


def classifier_names() -> list[str]:
    """Return the names of torchvision's classifiers."""
    names: list[str] = models.list_models(module=models)
    return names


def check_name(name: str) -> None:
    """Raise BadSettings if torchvision has no classifier called `name`."""
    if name not in classifier_names():
        near = difflib.get_close_matches(name, classifier_names(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "any classifier of torchvision.models, as resnet18"
        raise BadSettings(f"--model: expected a torchvision classifier, got {name!r}\nhint: {hint}")


def build_classifier(name: str, *, classes: int, pixels: int) -> nn.Module:
    """Return the model with random weights and a head for so many classes.

    Raises BadSettings if the model does not work on images of `pixels` x `pixels`.
    """
    check_name(name)
    try:
        model = _build(name, classes, pixels)
        if is_deferred():  # a checkpoint of it is there: it has been tried
            return model
        shape = _output_for_empty_image(model, pixels).shape
    except (AssertionError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise BadSettings(
            f"--model {name}: does not work on images of {pixels} pixels: {reason}\n"
            "hint: give bigger images (--pixels), or take another model"
        ) from error
    if tuple(shape) != (1, classes):
        raise BadSettings(f"--model {name}: expected {classes} numbers per image, got a shape of {tuple(shape[1:])}")
    return model


@torch.no_grad()
def _output_for_empty_image(model: nn.Module, pixels: int) -> Tensor:
    """Return the model's output, in evaluation mode, for one image of zeros with `pixels` a side.

    Leaves the weights as they are, and the model in training mode.
    """
    answer: Tensor = model.eval()(torch.zeros(1, 3, pixels, pixels))
    model.train()
    return answer


def _build(name: str, classes: int, pixels: int) -> nn.Module:
    """Return torchvision's model; for images of at most `SMALL` pixels a side, its first layers shrink them less."""
    options: dict[str, object] = {"image_size": pixels} if name.startswith(_OWN_SIZE) else {}
    if name in ("googlenet", "inception_v3"):
        # Their extra training outputs are outdated; init_weights avoids the warning about slow initialisation.
        options |= {"aux_logits": False, "init_weights": True}
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    if pixels <= SMALL:
        _fit_small_images(model)
    return model


def _fit_small_images(model: nn.Module) -> None:
    """Make the model's first layers shrink small images less, in place.

    They were made for 224 pixels a side, and would leave nothing of 32. A ResNet gets a 3x3 convolution of stride 2 and
    no pooling there. Any other model's first convolution gets stride 1, unless it cuts the image into patches that do
    not overlap.
    """
    if isinstance(model, models.ResNet):
        model.conv1 = nn.Conv2d(3, model.conv1.out_channels, kernel_size=3, stride=2, padding=1, bias=False)
        model.maxpool = nn.Identity()
        return
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    overlaps = max(first.kernel_size) > max(first.stride)  # else it cuts patches, which must stay as they are
    if overlaps and max(first.stride) > 1:
        first.stride = (1, 1)
