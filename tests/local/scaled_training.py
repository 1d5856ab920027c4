"""A training with the trainer's options that `launch scale` measures, wherever it runs."""

import json

SCRIPT = """
import argparse, sys
import torch
from torch.utils.data import TensorDataset
from trainer.loop import Trainer, add_options, from_options

parser = argparse.ArgumentParser()
add_options(parser, batch_size=64, max_epochs=3, keep_best=True)
options = parser.parse_args()
inputs = torch.randn(512, 64, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
trainer = Trainer(
    from_options(options),
    model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)),
    loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]),
    data=data,
    validation=data,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.001),
)
sys.exit(trainer.fit())
"""
SPEC = "name: tiny\nrun: {script: train.py}\nresources: {ranks_per_node: 2, gpus_per_node: 0, cpus_per_rank: 1}\n"


def measured(desk, *words):
    """Return the JSON of `launch scale`."""
    desk.script("train.py", SCRIPT)
    return json.loads(desk.launch("scale", desk.spec(SPEC), *words, "--json", timeout=280).stdout)


def check_on_nodes(desk, *words):
    """Train with one rank and with two, each on a node, and check that nothing of the runs is left."""
    report = measured(desk, "--ranks", "1,2", "--per-node", "1", "--strong", "--steps", "12", *words)
    one, two = report["points"]
    assert [(point["ranks"], point["nodes"], point["why"]) for point in (one, two)] == [(1, 1, ""), (2, 2, "")]
    assert all(len(point["rates"]) == 6 and point["memory_gb"] > 0 for point in (one, two)), "2 steps a line"
    assert one["parts"]["messages"] < two["parts"]["messages"] and two["parts"]["bytes"] > 64 * 256 * 4
    assert two["says"].startswith("2 ranks are ") and " times as fast as one " in two["says"]
    assert json.loads(desk.launch("status", "--json").stdout) == []
