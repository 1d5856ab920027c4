"""Where ranks are that divide the layers of a model among them."""

import pytest

from launcher.plan.placement import (
    crosses_nodes,
    groups_of_node,
    pipeline_parallel,
    stages_of_ranks,
    tensor_parallel,
)


@pytest.mark.parametrize(
    ("args", "tp"),
    [
        ((), 1),
        (("--mesh",), 1),
        (("--mesh", "tp=2"), 2),
        (("--mesh", "dp=4, tp=8"), 8),
        (("--mesh=dp=4,tp=8",), 8),
        (("--mesh", "tp=2", "--mesh=tp=4"), 4),
        (("--mesh=tp=2", "--mesh", "tp=4"), 4),
        (("--meshes=tp=2",), 1),
        (("--mesh", "tp=2", "--mesh", "dp=2"), 1),
        (("--mesh", "dp=2,xtp=4"), 1),
        (("--mesh", "tp=0"), 1),
        (("--other", "tp=2"), 1),
    ],
)
def test_what_a_training_is_told(args, tp):
    assert tensor_parallel(args) == tp


def test_stages_are_told_by_the_numbers_of_their_ranks():
    assert pipeline_parallel(("--mesh", "pp=4,tp=2")) == 4 and tensor_parallel(("--mesh", "pp=4,tp=2")) == 2
    assert pipeline_parallel(("--mesh", "tp=2")) == 1
    assert stages_of_ranks(2, 8) == "ranks 0-3 have the first of 2 stages of layers (pp 2), 4-7 the next"
    assert stages_of_ranks(3, 3) == "ranks 0 have the first of 3 stages of layers (pp 3), 1, 2 the next"
    assert stages_of_ranks(8, 8).endswith("(pp 8), 1, 2, ... the next")
    assert stages_of_ranks(3, 4) == "pp=3 does not divide 4 ranks: there is no such pipeline"


def test_groups_are_on_one_node_or_it_is_told():
    assert groups_of_node(2, 4) == "local ranks 0-1, 2-3 divide each layer (tp 2), on one node; dp goes across"
    assert groups_of_node(2, 64).startswith("local ranks 0-1, 2-3, 4-5, ... divide")
    assert not crosses_nodes(2, 4) and not crosses_nodes(1, 3)
    assert crosses_nodes(4, 2) == "tp=4 crosses nodes of 2 ranks: every layer waits for the network"
