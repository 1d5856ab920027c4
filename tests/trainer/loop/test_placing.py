from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from trainer.loop.placing import Placing, placed


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


def _method(function):
    """Return a method that passes the tensor and its arguments on to the function."""

    def called(tensor, *args, **named):
        return function(tensor, *args, **named)

    return called


class Device:
    """A GPU's streams, as a list of what they are asked for."""

    def __init__(self, monkeypatch):
        self.said, self.now = [], "calculating"
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: "copying")
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch.Tensor, "to", _method(self.to))
        monkeypatch.setattr(torch.Tensor, "record_stream", _method(self.record))

    @contextmanager
    def stream(self, name):
        self.now = name
        yield
        self.now = "calculating"

    def to(self, tensor, device, non_blocking):
        assert non_blocking
        self.said.append(f"{self.now}: {len(tensor)} to {device.type}")
        return torch.empty(len(tensor), device="meta")

    def record(self, tensor, stream):
        assert tensor.is_meta, "the copy, not what is copied"
        self.said.append(f"{stream.now}: has a part in {len(tensor)}")

    def wait_stream(self, stream):
        self.said.append(f"{self.now}: waits for {stream}")


def test_a_gpu_gets_a_batch_on_a_stream_of_its_own_and_waits_for_it_once(monkeypatch):
    device = Device(monkeypatch)
    place = Placing(torch.device("cuda", 0))
    moved = place({"x": torch.zeros(2), "y": [torch.zeros(3), "text"], "there": torch.zeros(4, device="meta")})
    assert device.said == [
        "copying: 2 to cuda",
        "calculating: has a part in 2",
        "copying: 3 to cuda",
        "calculating: has a part in 3",
        "calculating: 4 to cuda",
        "calculating: waits for copying",
    ]
    assert moved["x"].is_meta and moved["y"][1] == "text"


def test_what_no_stream_can_keep_is_copied_by_the_one_that_calculates(monkeypatch):
    device = Device(monkeypatch)
    Placing(torch.device("cuda", 0))(torch.eye(2).to_sparse())
    assert device.said == ["calculating: 2 to cuda", "calculating: waits for copying"]


def test_a_processor_needs_no_stream():
    tensor = torch.zeros(3)
    assert Placing(torch.device("cpu"))([tensor])[0] is tensor
