"""Samples for small transformers: eight tokens and those that follow them; and what is wrong with what a model says."""

import torch
from torch.nn import functional as F  # noqa: N812 - its usual name


def windows(count):
    return list(torch.randint(0, 32, (count, 9), generator=torch.Generator().manual_seed(3)))


def loss(model, batch):
    nats = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())
    return nats, {"bits": nats.detach() / 0.6931}


def loss_by_token(model, batch):
    """A sum and its count: what is not to be seen differs from window to window."""
    known = batch[:, 1:] % 3 > 0
    logits = model(batch[:, :-1]).flatten(0, 1).float()
    targets = torch.where(known, batch[:, 1:], -100).flatten()
    total = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    return total, known.sum(), {"seen": (batch[:, 1:] * known).sum() / known.sum()}
