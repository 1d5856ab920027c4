"""What `collectives` refuses before it starts a run."""

import pytest

from launcher.apps.collectives.measuring import collectives
from launcher.errors import BadInput


@pytest.mark.parametrize("nodes", [0, -2])
def test_a_number_of_nodes_that_cannot_be_is_refused(nodes):
    with pytest.raises(BadInput, match=f"--nodes: expected a number of at least 1, got {nodes}"):
        collectives(nodes=nodes)
