"""Serve the transformer on bytes: for a text it returns bits per byte and a continuation."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from trainer.checkpoint.models import load_model
from trainer.serving.service import Schema, Service
from trainer.tasks.transformer import Shape, Transformer

_MOST_MORE = 256
_MOST_TEXT = 1 << 16
_ANSWER: Schema = {
    "type": "object",
    "required": ["bits_per_byte", "continuation"],
    "properties": {
        "bits_per_byte": {
            "type": ["number", "null"],
            "description": "of the part of the text that the model sees at once; null of a single byte",
        },
        "continuation": {"type": "string", "description": "the likeliest next byte, again and again"},
    },
}


def text_service(shape: Shape) -> Service:
    """Return the Service by which `launch serve` loads a transformer of this shape and answers requests with it."""

    def load(checkpoint: Path) -> nn.Module:
        """Return the model with the checkpoint's weights."""
        model = Transformer(shape)
        load_model(model, checkpoint)
        return model.eval()

    def predict(model: nn.Module, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return bits per byte and continuation for each input."""
        device = next(model.parameters()).device
        rows = [[*one["text"].encode("utf-8", "surrogatepass")][-shape.context - 1 :] for one in inputs]
        bits = bits_per_byte(model, rows, device)
        more = continued(model, rows, [one["bytes"] for one in inputs], shape.context, device)
        return [
            {"bits_per_byte": bit, "continuation": bytes(new).decode(errors="replace")}
            for bit, new in zip(bits, more, strict=True)
        ]

    asked = {
        "text": {"type": "string", "minLength": 1, "maxLength": _MOST_TEXT, "description": "what stands before"},
        "bytes": {"type": "integer", "minimum": 0, "maximum": _MOST_MORE, "default": 0, "description": "how many more"},
    }
    schema = {"type": "object", "required": ["text"], "properties": asked}
    return Service(load, predict, schema, _ANSWER, {"text": "import os", "bytes": 0})


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return the rows as one tensor, the shorter ones padded with zeros at the end.

    The model is causal, so this does not change its output at the positions before the padding.
    """
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)


def bits_per_byte(model: nn.Module, rows: Sequence[Sequence[int]], device: torch.device) -> list[float | None]:
    """Return the mean bits per byte of each row (its first byte is not predicted); None for a single byte."""
    if max(len(row) for row in rows) == 1:
        return [None] * len(rows)
    tokens = _padded(rows, device)
    logits = model(tokens[:, :-1]).float()
    nats = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(len(rows), -1)
    found = zip(rows, nats.double().cpu(), strict=True)
    return [
        round(float(row_nats[: len(row) - 1].mean()) / math.log(2), 6) if len(row) > 1 else None
        for row, row_nats in found
    ]


def continued(
    model: nn.Module, rows: Sequence[Sequence[int]], counts: Sequence[int], context: int, device: torch.device
) -> list[list[int]]:
    """Return for each row of bytes the likeliest next bytes, as many as `counts` gives for the row.

    The model sees at most the last `context` bytes; a finished row is no longer computed.
    """
    texts = [list(row) for row in rows]
    while going := [n for n, text in enumerate(texts) if len(text) < len(rows[n]) + counts[n]]:
        seen = [texts[n][-context:] for n in going]
        logits = model(_padded(seen, device))
        last = torch.tensor([len(row) - 1 for row in seen], device=device)
        likeliest = logits[torch.arange(len(going), device=device), last].argmax(dim=1).tolist()
        for n, byte in zip(going, likeliest, strict=True):
            texts[n].append(byte)
    return [text[len(row) :] for text, row in zip(texts, rows, strict=True)]
