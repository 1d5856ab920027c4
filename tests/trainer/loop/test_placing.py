from typing import Any, NamedTuple

import torch

from trainer.loop.placing import placed


class Pair(NamedTuple):
    image: Any
    label: Any


class Graph:
    def __init__(self, device):
        self.device = device

    def to(self, device):
        return Graph(device)


def test_tensors_in_any_nesting_go_to_the_device():
    meta = torch.device("meta")
    data = {
        "pair": Pair(torch.zeros(2), torch.ones(1)),
        "list": [torch.zeros(1), "text"],
        "graph": Graph("cpu"),
        "n": 3,
    }
    moved = placed(data, meta)
    assert isinstance(moved["pair"], Pair)
    assert {moved["pair"].image.device, moved["pair"].label.device, moved["list"][0].device} == {meta}
    assert moved["list"][1] == "text"
    assert moved["graph"].device == meta
    assert moved["n"] == 3


def test_what_is_there_already_is_not_copied():
    tensor = torch.zeros(3)
    assert placed((tensor,), torch.device("cpu"))[0] is tensor
