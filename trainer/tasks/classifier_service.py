"""Serve an image classifier: for a picture, or a generated image's numbers, it returns the likeliest classes."""

import base64
import binascii
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

from trainer.checkpoint.models import load_model
from trainer.serving.service import Rejected, Schema, Service
from trainer.tasks.classifiers import build_classifier
from trainer.tasks.images import ServedInputs, Transform

_FORMATS = ("PNG", "JPEG")
_MOST_PIXELS = 1 << 26  # of a picture: a file of a few kilobytes can claim any size
_LIKELIEST = 5
_ANSWER: Schema = {
    "type": "object",
    "required": ["label", "probability", "likeliest"],
    "properties": {
        "label": {"type": "string", "description": "the likeliest class"},
        "probability": {"type": "number"},
        "likeliest": {
            "type": "array",
            "description": "the likeliest classes, the first one first",
            "items": {
                "type": "object",
                "properties": {"label": {"type": "string"}, "probability": {"type": "number"}},
            },
        },
    },
}


def classifier_service(name: str, images: ServedInputs) -> Service:
    """Return the Service by which `launch serve` loads torchvision's classifier `name` and answers requests.

    The classifier was trained on the images that `images` describes.
    """

    def load(checkpoint: Path) -> nn.Module:
        """Return the model with the checkpoint's weights."""
        model = build_classifier(name, classes=len(images.classes), pixels=images.pixels)
        load_model(model, checkpoint)
        return model.eval()

    read = _reader(images.from_picture)

    def predict(model: nn.Module, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the likeliest classes for each input."""
        device = next(model.parameters()).device
        batch = torch.stack([read(one) for one in inputs]).to(device)
        probabilities, found = model(batch).float().softmax(dim=1).topk(min(_LIKELIEST, len(images.classes)))
        return [_answer(images.classes, *row) for row in zip(probabilities.tolist(), found.tolist(), strict=True)]

    return Service(load, predict, _input_schema(images), _ANSWER, _example(images))


def _input_schema(images: ServedInputs) -> Schema:
    """Return the JSON schema of an input: a picture, or the numbers of a generated image."""
    if images.from_picture is not None:
        field = {"image": {"type": "string", "description": "a PNG or JPEG file, in base64", "minLength": 1}}
    else:
        rows = {"type": "array", "items": {"type": "number"}, **_exactly(images.pixels)}
        colour = {"type": "array", "items": rows, **_exactly(images.pixels)}
        what = f"three colours of {images.pixels} rows of {images.pixels} numbers, as the training drew them"
        field = {"pixels": {"type": "array", "description": what, "items": colour, **_exactly(3)}}
    return {"type": "object", "required": [*field], "properties": field}


def _exactly(count: int) -> Schema:
    """Return the schema's limits for an array of exactly this length."""
    return {"minItems": count, "maxItems": count}


def _reader(from_picture: Transform | None) -> Callable[[dict[str, Any]], Tensor]:
    """Return a function that makes a tensor of a request's input.

    The input is the picture under `image` (a PNG or JPEG file as base64), of which `from_picture` makes the tensor, or,
    if `from_picture` is None, the numbers under `pixels`. The function raises Rejected if `image` has no picture, or
    one with too many pixels.
    """
    if from_picture is None:
        return lambda one: torch.tensor(one["pixels"], dtype=torch.float32)
    return lambda one: from_picture(_picture(one["image"]))


def _picture(text: str) -> Image.Image:
    """Return the picture in base64 text. Raises Rejected for no picture, or one of more than 67 million pixels."""
    try:
        data = base64.b64decode(text, validate=True)
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
        if picture.width * picture.height > _MOST_PIXELS:
            raise Rejected("image", f"expected at most {_MOST_PIXELS} pixels, got {picture.width} x {picture.height}")
        return picture.convert("RGB")
    except (binascii.Error, ValueError) as error:
        raise Rejected("image", f"expected base64: {error}") from error
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise Rejected("image", f"expected a PNG or JPEG file: {type(error).__name__}") from error


def _answer(classes: Sequence[str], probabilities: Sequence[float], found: Sequence[int]) -> dict[str, Any]:
    """Return the answer for one input, a dict to be sent as JSON.

    It has the `label` (name) and `probability` of the likeliest class, and as `likeliest` a list of dicts with these
    two for each class, the likeliest first. `found` are the numbers of these classes, in this order, and
    `probabilities` theirs.
    """
    likeliest = [
        {"label": classes[one], "probability": round(probability, 6)}
        for one, probability in zip(found, probabilities, strict=True)
    ]
    return {**likeliest[0], "likeliest": likeliest}


def _example(images: ServedInputs) -> Any:
    """Return an example of an input, which `launch serve` uses to try the model."""
    if images.from_picture is None:
        return {"pixels": torch.zeros(3, images.pixels, images.pixels).tolist()}
    file = io.BytesIO()
    Image.new("RGB", (images.pixels, images.pixels)).save(file, "PNG")
    return {"image": base64.b64encode(file.getvalue()).decode()}
