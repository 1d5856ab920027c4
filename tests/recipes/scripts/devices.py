"""Lightning with as many devices as there are ranks, said to be on one node."""

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.utilities import prints

noted = f"noted {rank_zero_only.rank} and {prints.rank_zero_only.rank}"


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch):
        return self.net(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = L.Trainer(max_steps=3, accelerator="cpu", devices=4, num_nodes=1, strategy="ddp", **quiet)
trainer.fit(Model(), data)
kind = type(trainer.strategy.cluster_environment).__name__
print(f"rank {trainer.global_rank} of {trainer.world_size}, {trainer.local_rank} here: {kind}, {noted}")
