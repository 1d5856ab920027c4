"""What one step cannot read of another, all of it at once."""

from types import SimpleNamespace

import pytest

from launcher.errors import BadInput
from launcher.spec.graph.reading import read_graph
from launcher.submission.graphs import refuse_unreadable_outputs

STEPS = """\
name: two
run: {script: train.py}
steps:
  train: {}
  test:
    needs: train
    run:
      args: {weights: "${steps.train.best_checkpoint}", folder: "${steps.train.run_dir}"}
  export:
    needs: train
    run: {args: {weights: "${steps.train.checkpoints}"}}
"""


def test_all_outputs_that_cannot_be_read_are_named(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(STEPS)
    on = {"train": "hpc", "test": "pool", "export": "pool"}
    wishes = {
        name: SimpleNamespace(file=file, on=place, cluster=SimpleNamespace(remote=True)) for name, place in on.items()
    }
    with pytest.raises(BadInput) as told:
        refuse_unreadable_outputs(read_graph(file), wishes)
    named = [line.partition(": run: ")[2].partition(":")[0] for line in told.value.lines]
    assert [one for one in named if one] == [
        "${steps.train.best_checkpoint}", "${steps.train.run_dir}", "${steps.train.checkpoints}",
    ]  # fmt: skip
