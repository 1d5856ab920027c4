"""Train an image classifier of torchvision, or have it predict: `python -m trainer.tasks.resnet --strategy ddp`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset, default_collate
from torchvision.transforms import v2

from trainer.errors import BadSettings
from trainer.loop.settings import Settings, add_options
from trainer.loop.trainer import Trainer
from trainer.serving.service import Service
from trainer.tasks.answers import Line
from trainer.tasks.classifier_service import classifier_service
from trainer.tasks.classifiers import build_classifier, check_name
from trainer.tasks.command import add_prediction_options, add_schedule_options, number, run, schedule, settings_of
from trainer.tasks.images import KINDS, ImageOptions, Images, open_images, served_inputs
from trainer.tasks.predict import Prediction, predict

Pair = tuple[Tensor, Tensor]  # images and labels
_STEPS = 140  # if no end is given
_PREDICTED_AT_ONCE = 50


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parse(argv)
    settings = settings_of(options, steps=_STEPS)
    check_name(options.model)
    images = open_images(_wanted(options, settings.seed))
    loss = loss_with(options.label_smoothing)

    def model() -> nn.Module:
        """Return the model with random weights."""
        return build_classifier(options.model, classes=len(images.classes), pixels=images.pixels)

    if options.predict is not None:
        return predict(_prediction(options, settings, images, model), options.predict, options.checkpoint)
    return Trainer(
        settings,
        model=model,
        loss=loss,
        data=_mixed(images, options.mixup, options.cutmix),
        validation=images.validation,
        optimizer=_optimizer(options),
        schedule=schedule(options.schedule, options.warmup_steps),
    ).fit()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tasks.resnet",
        description=__doc__,
        epilog=f"It ends after {_STEPS} steps unless told otherwise.",
    )
    group = parser.add_argument_group("model and data")
    group.add_argument("--model", default="resnet18", metavar="NAME", help="any classifier of torchvision.models")
    group.add_argument("--data", choices=KINDS, default="generated", help="generated: images that are drawn (default)")
    group.add_argument("--root", type=Path, metavar="DIR", help="where the files are; nothing is downloaded")
    group.add_argument("--pixels", type=int, metavar="N", help="width and height of the images; left out: as they are")
    group.add_argument("--train-images", type=int, default=4096, metavar="N", help="how many are drawn for an epoch")
    group.add_argument("--validation-images", type=int, default=500, metavar="N", help="how many more are drawn")
    group = parser.add_argument_group("regularisation, in training only")
    group.add_argument(
        "--label-smoothing", type=number, default=0.0, metavar="X", help="share of a label given to all classes, as 0.1"
    )
    group.add_argument("--mixup", type=number, default=0.0, metavar="ALPHA", help="mix images and labels, as 0.2")
    group.add_argument("--cutmix", type=number, default=0.0, metavar="ALPHA", help="paste parts of others, as 1.0")
    group.add_argument(
        "--rand-augment", type=int, metavar="N", help="change colours and shapes, at a magnitude of 0 to 30, as 9"
    )
    add_schedule_options(parser, lr=0.01, weight_decay=5e-4, warmup=0)
    parser.add_argument("--momentum", type=number, default=0.9, metavar="X", help="(default: 0.9)")
    add_prediction_options(parser)
    add_options(parser, batch_size=32, seed=1, validation_batch_size=100)
    return parser.parse_args(argv)


def service(args: Sequence[str]) -> Service:
    """Return the service that `launch serve` runs for a model that was trained with these arguments."""
    options = parse(args)
    return classifier_service(options.model, served_inputs(_wanted(options, options.seed)))


def _wanted(options: argparse.Namespace, seed: int) -> ImageOptions:
    """Return the description of the images that the options choose."""
    return ImageOptions(
        options.data,
        options.root,
        options.pixels,
        seed,
        options.train_images,
        options.validation_images,
        options.rand_augment,
    )


def loss_with(smoothing: float) -> Callable[[nn.Module, Pair], tuple[Tensor, dict[str, Tensor]]]:
    """Return a loss function: cross entropy with label smoothing, and the accuracy.

    A mixed label counts as its larger part. Labels are smoothed in training only, so that validations can be compared
    with other trainings. Raises BadSettings for a `smoothing` of 1 or more.
    """
    if smoothing >= 1:
        raise BadSettings(f"--label-smoothing: expected a share below 1, got {smoothing:g}")

    def loss(model: nn.Module, batch: Pair) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross entropy of a batch, and its accuracy."""
        images, labels = batch
        logits = model(images)
        found = F.cross_entropy(logits, labels, label_smoothing=smoothing if model.training else 0.0)
        wanted = labels.argmax(dim=1) if labels.ndim > 1 else labels
        return found, {"accuracy": (logits.argmax(dim=1) == wanted).float().mean()}

    return loss


def _mixed(images: Images, mixup: float, cutmix: float) -> Dataset[Any]:
    """Return the training images, mixed in pairs if an alpha (`mixup` or `cutmix`) is not 0.

    If both are not 0, one of the two methods is drawn for each batch.
    """
    if not mixup and not cutmix:
        return images.train
    return Mixed(images.train, classes=len(images.classes), mixup=mixup, cutmix=cutmix)


def answer(model: nn.Module, batch: Pair) -> tuple[list[Line], list[float]]:
    """Predict the class of each image of a batch; return (a dict for each image, a number for each image).

    The dict has its `label`, `prediction` and `probability`; the number is 1 for a right prediction, else 0.
    """
    images, labels = batch
    probabilities, predictions = model(images).float().softmax(dim=1).max(dim=1)
    found = zip(labels.tolist(), predictions.tolist(), probabilities.tolist(), strict=True)
    lines = [
        {"label": label, "prediction": prediction, "probability": round(probability, 6)}
        for label, prediction, probability in found
    ]
    return list(lines), [float(line["label"] == line["prediction"]) for line in lines]


def _optimizer(options: argparse.Namespace) -> Callable[[Any], Optimizer]:
    """Return a function that makes the optimizer of given parameters: SGD, with the options of the command line."""

    def make(parameters: Any) -> Optimizer:
        """Return SGD with momentum."""
        return SGD(parameters, lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay)

    return make


def _prediction(
    options: argparse.Namespace, settings: Settings, images: Images, model: Callable[[], nn.Module]
) -> Prediction:
    """Return the Prediction of the class of each validation image, by the model that `model` makes."""
    where = f" {options.root.resolve()}" if options.root else f" seed {settings.seed} from {options.train_images}"
    return Prediction(
        task=f"resnet {options.model}",
        model=model,
        dataset=images.validation,
        data=f"{options.data}{where}, {images.pixels} pixels",
        answer=answer,
        mean="accuracy",
        batch_size=settings.validation_batch_size or _PREDICTED_AT_ONCE,
        settings=settings,
    )


class Mixed(Dataset[tuple[Tensor, Tensor]]):
    """A data set in which each image is mixed with the previous one of its batch (the first with the last).

    Whether by MixUp or by CutMix, and in which ratio, is drawn for each batch.
    The random numbers come from torch's own generator, which the trainer seeds for each batch of each rank.
    """

    def __init__(self, dataset: Any, *, classes: int, mixup: float, cutmix: float) -> None:
        """Take each way's alpha, 0 to leave it out; large values mix half and half, small ones hardly at all."""
        ways = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
        self._dataset = dataset
        self._mix = v2.RandomChoice([way(alpha=alpha, num_classes=classes) for way, alpha in ways if alpha])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the samples of a whole batch at once; torch's loaders call this if it exists."""
        many = getattr(self._dataset, "__getitems__", None)
        samples = many(indices) if callable(many) else [self._dataset[index] for index in indices]
        images, labels = self._mix(*default_collate(samples))
        return list(zip(images, labels, strict=True))


if __name__ == "__main__":
    sys.exit(run(main))
