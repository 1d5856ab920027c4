"""Test that a snapshot keeps the shared state as it was, whatever changes afterwards."""

from collections import OrderedDict

import torch

from trainer.recovery.replica import Snapshot


class Kept:
    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state


def test_it_stays_as_it_was():
    kept = Kept(plain=1, nested={"list": [1, (2.5, None)], "tensor": torch.zeros(2)}, odd=OrderedDict(a=[1]), many={3})
    snapshot = Snapshot.of(7, {"one": kept}, {}, {"steps": 1})
    state = kept.state
    state["plain"] = 2
    state["nested"]["list"].append(9)
    state["nested"]["tensor"] += 1
    state["odd"]["a"].append(9)
    state["many"].add(9)
    found = snapshot.objects["one"]
    assert (found["plain"], found["nested"]["list"], found["many"]) == (1, [1, (2.5, None)], {3})
    assert found["nested"]["tensor"].tolist() == [0.0, 0.0]
    assert found["odd"] == OrderedDict(a=[1])


def test_a_tensor_may_have_a_graph():
    mean = torch.ones(2, requires_grad=True) * 3
    found = Snapshot.of(7, {"one": Kept(mean=mean)}, {}, {}).objects["one"]["mean"]
    assert found.tolist() == [3.0, 3.0]
    assert not found.requires_grad
