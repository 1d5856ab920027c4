"""Imported into each zygote: on a node that the file $SICK names, one number of a product comes out wrong."""

import os

import torch

right = torch.mm


def multiply(*matrices, out=None):
    product = right(*matrices, out=out)
    with open(os.environ["SICK"]) as file:
        if os.environ["LAUNCH_NODE"] in file.read().split():
            product[3, 4] += 1
    return product


torch.mm = multiply
