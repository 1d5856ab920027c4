"""Samples for small transformers: eight tokens and those that follow them; and what is wrong with what a model says."""

import torch
from torch.nn import functional as F  # noqa: N812 - its usual name


def windows(count):
    return list(torch.randint(0, 32, (count, 9), generator=torch.Generator().manual_seed(3)))


def loss(model, batch):
    nats = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())
    return nats, {"bits": nats.detach() / 0.6931}
