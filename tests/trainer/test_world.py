import atexit
import contextlib
import datetime as dt
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, spawn_ranks, world_environment

from trainer.errors import BadSettings
from trainer.world import World, barrier, join, leave, membership


def meet():
    world = join()
    total = torch.ones(2) * (world.rank + 1)
    dist.all_reduce(total)
    said = [None] * world.size
    dist.all_gather_object(said, world.rank, group=world.control)
    answer = world, total.tolist(), said
    barrier(world)
    leave(world)
    assert not dist.is_initialized()
    (rank, size, local, device) = world.rank, world.size, (world.local_rank, world.local_size, world.node), world.device
    return rank, size, local, str(device), world.backend, world.is_first, *answer[1:]


def test_ranks_meet():
    results = spawn_ranks(meet, 4, local_size=2)
    for rank, result in enumerate(results):
        local = (rank % 2, 2, rank // 2)
        assert result == (rank, 4, local, "cpu", "gloo", rank == 0, [10.0, 10.0], [0, 1, 2, 3])


def listeners_of_this_process():
    world = join()
    barrier(world)
    if world.rank != 0:
        barrier(world)
        return []
    listed = subprocess.run(["ss", "-H", "-ltnp"], capture_output=True, text=True, check=True).stdout
    barrier(world)
    return [line.split()[3] for line in listed.splitlines() if f"pid={os.getpid()}," in line], os.environ["MASTER_PORT"]


def test_the_store_listens_on_its_own_address_alone():
    listeners, port = spawn_ranks(listeners_of_this_process, 2)[0]
    assert f"127.0.0.1:{port}" in listeners
    assert all(listener.startswith("127.0.0.1:") for listener in listeners)


def test_alone_there_is_no_group_unless_one_is_asked_for():
    assert join(environ={}) == World(0, 1, 0, 1, torch.device("cpu"))
    assert not dist.is_initialized()
    assert spawn_ranks(make_a_group_alone, 1) == [("gloo", 1, [1.0])]


def make_a_group_alone():
    world = join(group=True, environ={})
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    leave(world)
    return world.backend, world.size, tensor.tolist()


def use_a_group_that_is_there():
    dist.init_process_group("gloo")
    world = join()
    return world.rank == dist.get_rank(), world.size, world.control is not None, world.control is not dist.group.WORLD


def test_a_group_that_the_script_has_made_is_used():
    assert spawn_ranks(use_a_group_that_is_there, 2) == [(True, 2, True, True)] * 2


def be_a_new_process():
    """Behave as a new process at exit, and as to what a process knows of its parent."""
    atexit._clear()
    sys.last_value = None  # of a test that has failed


def take_part_twice():
    """Then the process exits, as far as what is done at exit goes."""
    be_a_new_process()
    groups = []
    for _ in range(2):
        with membership(group=False, device="cpu"):
            groups.append(dist.group.WORLD)
    with pytest.raises(BadSettings) as other, membership(group=False, device="meta"):
        pass
    same, there = groups[0] is groups[1], dist.is_initialized()
    atexit._run_exitfuncs()
    return same, there, dist.is_initialized(), str(other.value).partition("\n")[0]


def test_a_process_takes_part_in_one_group_until_it_exits():
    refused = "device: expected cpu, with which this process has connected to the other ranks, got meta"
    assert spawn_ranks(take_part_twice, 2) == [(True, True, False, refused)] * 2


def fail_in_the_midst():
    be_a_new_process()
    with contextlib.suppress(ZeroDivisionError), membership(group=False, device="cpu"):
        raise ZeroDivisionError
    atexit._run_exitfuncs()
    return dist.is_initialized()


def test_who_failed_waits_for_nobody_at_its_exit():
    assert spawn_ranks(fail_in_the_midst, 2) == [True, True]


def take_part_in_a_group_of_the_script():
    be_a_new_process()
    dist.init_process_group("gloo")
    with membership(group=False, device="cpu") as world:
        size = world.size
    atexit._run_exitfuncs()
    return size, dist.is_initialized()


def test_a_group_that_the_script_has_made_is_left_by_the_script():
    assert spawn_ranks(take_part_in_a_group_of_the_script, 2) == [(2, True)] * 2


def test_who_was_alone_may_fork_ranks():
    with membership(group=False, device="cpu") as world:
        assert world.size == 1
    assert spawn_ranks(meet_as_a_member, 2) == [2, 2]


def meet_as_a_member():
    with membership(group=False, device="cpu") as world:
        return world.size


def be_alone():
    """Run as a script that was started alone, without a port."""
    be_a_new_process()
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


def fork_ranks_from_a_group_of_one():
    be_alone()
    with membership(group=True, device="cpu"):
        group = dist.group.WORLD
    met = spawn_ranks(meet_in_a_group, 2)
    return met, dist.group.WORLD is group


def meet_in_a_group():
    with membership(group=True, device="cpu") as world:
        total = torch.ones(1)
        dist.all_reduce(total)
        return world.size, total.item()


def test_who_was_alone_in_a_group_may_fork_ranks():
    assert spawn_ranks(fork_ranks_from_a_group_of_one, 1) == [([(2, 2.0)] * 2, True)]


def fork_one_that_exits():
    be_alone()
    with membership(group=True, device="cpu"):
        pass
    return spawn_ranks(exit_with_the_group_of_the_parent, 1), dist.is_initialized()


def exit_with_the_group_of_the_parent():
    atexit._run_exitfuncs()
    return dist.is_initialized()


def test_a_forked_process_does_not_leave_for_the_one_it_was_forked_from():
    assert spawn_ranks(fork_one_that_exits, 1) == [([True], True)]


def take_part_on_another_device(alone):
    (be_alone if alone else be_a_new_process)()
    with membership(group=True, device="cpu"):
        group = dist.group.WORLD
    try:
        with membership(group=True, device="meta") as world:
            return world.device.type, dist.group.WORLD is group
    except BadSettings as error:
        return str(error).partition("\n")[0], dist.group.WORLD is group


def test_who_is_alone_makes_another_group_for_another_device_but_not_at_the_same_port():
    assert spawn_ranks(take_part_on_another_device, 1, True) == [("meta", False)]
    refused = "device: expected cpu, with which this process has connected to the other ranks, got meta"
    assert spawn_ranks(take_part_on_another_device, 1, False) == [(refused, True)]


def fail_between():
    be_a_new_process()
    with membership(group=False, device="cpu"):
        pass
    sys.last_value = ZeroDivisionError()  # as the interpreter does where nobody catches it, before what is done at exit
    atexit._run_exitfuncs()
    return dist.is_initialized()


def test_who_failed_between_two_trainings_waits_for_nobody_at_its_exit():
    assert spawn_ranks(fail_between, 2) == [True, True]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "environment: RANK, WORLD_SIZE without MASTER_ADDR, MASTER_PORT"),
        ({"MASTER_ADDR": "127.0.0.1"}, "environment: MASTER_ADDR without RANK, WORLD_SIZE, MASTER_PORT"),
        (
            {"RANK": "first", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "environment: RANK: expected a number, got 'first'",
        ),
    ],
)
def test_an_environment_that_is_half_set(environ, message):
    with pytest.raises(BadSettings, match=message):
        join(environ=environ)


def as_the_first_of_two(address, port):
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("address", ["192.0.2.7", "no-such-host.invalid"])
def test_an_address_that_is_not_ours(address):
    with pytest.raises(BadSettings, match=f"MASTER_ADDR={address}, MASTER_PORT=.*: rank 0 cannot listen there: "):
        join(environ=as_the_first_of_two(address, 20_000))


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadSettings, match="Address already in use"):
            join(environ=as_the_first_of_two("127.0.0.1", port))


def wait_in_vain():
    started = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)tim(ed |e)out"):
        join(timeout_s=1.0)
    return time.monotonic() - started


@pytest.mark.parametrize("rank", ["0", "1"])
def test_who_waits_in_vain_gives_up_in_time(rank):
    (waited,) = spawn_ranks(wait_in_vain, 1, env={"WORLD_SIZE": "2", "RANK": rank})
    assert 0.5 < waited < 150


def lose_a_peer():
    world = join()
    barrier(world)
    if world.rank == 1:
        os._exit(1)
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1))
    return time.monotonic() - started < 150


def test_a_dead_peer_is_seen_at_once():
    (kind, soon), _ = Ranks(lose_a_peer, 2).outcomes()
    assert (kind, soon) == ("returned", True)


def outlast_the_timeout(gave_up, over):
    """The first rank stays where it is until the other one has given up waiting for it."""
    world = join()  # it bounds this too, which takes its time where the machine is busy
    bounds = [group._get_backend(world.device).options._timeout for group in (dist.group.WORLD, world.control)]
    dist.set_timeout(dt.timedelta(seconds=2), world.control)
    started = time.monotonic()
    if world.rank == 1:
        with pytest.raises(RuntimeError):
            barrier(world)
        os.write(over, b".")
    else:
        os.read(gave_up, 1)
    return bounds, time.monotonic() - started


def test_the_timeout_of_launch_bounds_every_wait():
    pipe = os.pipe()
    (_, _), (bounds, waited) = spawn_ranks(outlast_the_timeout, 2, *pipe, env={"LAUNCH_GROUP_TIMEOUT_S": "234"})
    for fd in pipe:
        os.close(fd)
    assert bounds == [dt.timedelta(seconds=234)] * 2
    assert 1.5 < waited < 150


def test_a_device_that_is_asked_for():
    assert join(device="meta", environ={}).device.type == "meta"
    if not torch.cuda.is_available():
        with pytest.raises(BadSettings, match="device: expected a GPU for cuda, found none"):
            join(device="cuda", environ={})


@pytest.mark.parametrize(("size", "late"), [(64, None), (65, "1")])
def test_many_ranks_are_connected_once_they_have_a_word_for_each_other(size, late, monkeypatch):
    """65 that had a connection each would be too many."""

    def meet(*_, **__):
        raise ConnectionAbortedError("this far and no further")

    monkeypatch.setattr(dist, "init_process_group", meet)
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "")  # so that it is as before afterwards
    monkeypatch.delenv("TORCH_GLOO_LAZY_INIT")
    threads = str(torch.get_num_threads())
    environ = world_environment(0, size, 20_000) | {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": threads}
    with pytest.raises(ConnectionAbortedError):
        join(environ=environ)
    assert os.environ.get("TORCH_GLOO_LAZY_INIT") == late
