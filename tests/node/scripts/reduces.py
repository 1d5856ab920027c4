"""One rank of a world that sums over gloo, takes a DDP step and loads data with workers by fork and by spawn."""

import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index * index))


def main():
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    loaded = [
        sum(DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=context), torch.zeros(4))
        for context in sys.argv[1:]
    ]
    print("sum", total.item(), "of", dist.get_world_size(), [batch.sum().item() for batch in loaded])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
