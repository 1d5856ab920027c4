"""Ranks that wait for each other leave at once when one of them cuts its connections."""

import os
import time

import torch
import torch.distributed as dist
from ranks import Ranks

from trainer.connections import made_here
from trainer.world import cpu_group, join


def cut_while_another_waits():
    os.environ["LAUNCH_CONTROL"] = "/there"
    world = join()
    group = cpu_group()
    dist.barrier(world.control)
    if world.rank == 0:
        time.sleep(0.2)  # the other one is about to wait
        made_here.cut()
    said = []
    for each in (None, world.control, group):
        try:
            dist.all_reduce(torch.ones(3), group=each)
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_cut_connections_end_every_operation_of_every_group():
    for said in Ranks(cut_while_another_waits, 2, stay=True).results():
        assert all("gloo" in one for one in said), said


def not_under_launch():
    os.environ.pop("LAUNCH_CONTROL", None)
    join()
    made_here.cut()
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def test_without_launch_nothing_is_noted_and_nothing_cut():
    assert Ranks(not_under_launch, 2, stay=True).results() == [2.0, 2.0]
