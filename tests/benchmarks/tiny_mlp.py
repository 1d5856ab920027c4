"""The model, the data and the optimizer that trainings of a tiny MLP share, whoever runs them."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH_SIZE = 32  # over all ranks
_INPUTS, _CLASSES, _SAMPLES = 32, 10, 8192


def model():
    return nn.Sequential(nn.Linear(_INPUTS, 64), nn.ReLU(), nn.Linear(64, _CLASSES))


def loss(model, batch):
    inputs, kinds = batch
    return nn.functional.cross_entropy(model(inputs), kinds)


def data():
    chance = torch.Generator().manual_seed(2)
    inputs = torch.randn(_SAMPLES, _INPUTS, generator=chance)
    return TensorDataset(inputs, torch.randint(0, _CLASSES, (_SAMPLES,), generator=chance))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
