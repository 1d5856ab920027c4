"""A shipped task whose ranks share a GPU where there are too few for each to have its own.

    python shared_gpu.py gpt|resnet [words of the task]

NCCL refuses two ranks on one GPU, unless it takes them for ranks on two hosts: what it sends goes over the loopback
then. So what ranks make together, and how they part and meet again, can be tried on one GPU; how fast they are cannot.
"""

import os
import sys

import torch

from trainer import world
from trainer.tasks import gpt, resnet
from trainer.tasks.command import run

TASKS = {"gpt": gpt.main, "resnet": resnet.main}
usual = world._device


def share():
    """Let ranks share GPUs if there are fewer GPUs than ranks; call it before anything asks for a GPU."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # a job with more ranks than GPUs is shown none
    many = torch.cuda.device_count()
    if 0 < many < int(os.environ["LOCAL_WORLD_SIZE"]):
        os.environ |= {"NCCL_HOSTID": f"rank-{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo"}
        world._device = lambda rank, wanted: usual(rank % many, wanted)


def main():
    task, *words = sys.argv[1:]
    share()
    return TASKS[task](words)


if __name__ == "__main__":
    sys.exit(run(main))
