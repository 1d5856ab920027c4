"""Where ranks are that divide the layers of a model among them."""

import pytest

from launcher.plan.placement import crosses_nodes, groups_of_node, tensor_parallel


@pytest.mark.parametrize(
    ("args", "tp"),
    [
        ((), 1),
        (("--mesh",), 1),
        (("--mesh", "tp=2"), 2),
        (("--mesh", "dp=4, tp=8"), 8),
        (("--mesh", "tp=2", "--mesh", "dp=2"), 1),
        (("--mesh", "dp=2,xtp=4"), 1),
        (("--mesh", "tp=0"), 1),
        (("--other", "tp=2"), 1),
    ],
)
def test_what_a_training_is_told(args, tp):
    assert tensor_parallel(args) == tp


def test_groups_are_on_one_node_or_it_is_told():
    assert groups_of_node(2, 4) == "local ranks 0-1, 2-3 divide each layer (tp 2), on one node; dp goes across"
    assert groups_of_node(2, 64).startswith("local ranks 0-1, 2-3, 4-5, ... divide")
    assert not crosses_nodes(2, 4) and not crosses_nodes(1, 3)
    assert crosses_nodes(4, 2) == "tp=4 crosses nodes of 2 ranks: every layer waits for the network"
