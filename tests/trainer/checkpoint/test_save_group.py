"""Words that go along a tree of ranks."""

import os
import pickle
import time

import pytest
from ranks import Ranks, spawn_ranks

from trainer.checkpoint.save_group import SaveGroup
from trainer.world import barrier, cpu_group, join


def sockets():
    folder = "/proc/self/fd"
    links = [f"{folder}/{name}" for name in os.listdir(folder)]
    return sum(os.path.lexists(link) and os.readlink(link).startswith("socket:") for link in links)


def speak(late):
    if late:  # as `join` has it where there are many ranks
        os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    world = join()
    save_group = SaveGroup(cpu_group(), tuple(range(world.size)), world.rank, fan=2)
    word = {"rank": world.rank, "long": "x" * 500 * world.rank}
    said = save_group.all_gather(word)
    told = save_group.broadcast([world.rank, "y" * 5000])
    most = save_group.maximum(world.rank, -world.rank, 3)
    whole = save_group.reduce(
        pickle.dumps([world.rank]), lambda words: pickle.dumps([pickle.loads(one) for one in words])
    )
    barrier(world)
    return said, told, most, whole and pickle.loads(whole), sockets()


@pytest.fixture(scope="module")
def found():
    return {late: spawn_ranks(speak, 7, late) for late in (True, False)}


@pytest.mark.parametrize("late", [True, False])
def test_all_hear_what_each_one_says(found, late):
    for rank, (said, told, most, whole, _) in enumerate(found[late]):
        assert said == [{"rank": each, "long": "x" * 500 * each} for each in range(7)]
        assert told == [0, "y" * 5000]
        assert most == [6, 0, 3]
        # 4 stands for the places from 4 on, 6 for itself alone.
        assert whole == ([[[[0], [1]], [[2], [3]]], [[[4], [5]], [6]]] if rank == 0 else None)


def test_many_ranks_have_fewer_connections(found):
    """Where there are more than a mesh takes, two ranks are connected once one has a word for the other."""
    connected = {late: [sockets for *_, sockets in results] for late, results in found.items()}
    assert sum(connected[True]) < sum(connected[False])


def lose(who):
    """Let one rank leave in the middle of a message, and return what the others receive."""
    world = join()
    save_group = SaveGroup(cpu_group(), tuple(range(world.size)), world.rank, fan=2)
    save_group.all_gather(None)
    if world.rank == who:
        os._exit(1)
    try:
        save_group.all_gather(None)
    except RuntimeError:
        return "lost"


@pytest.mark.parametrize("who", [0, 2, 3])
def test_where_one_is_lost_nobody_waits_for_a_word(who):
    """Not even for those who live on and wait for each other."""
    outcomes = Ranks(lose, 5, who, stay=True).outcomes()
    assert [what for kind, what in outcomes if kind == "returned"] == ["lost"] * 4


def speak_of_a_loss_to_who_does_not_hear():
    """The other rank takes no word before this one has given up."""
    world = join(device="cpu")
    save_group = SaveGroup(cpu_group(), (0, 1), world.rank)
    began = time.monotonic()
    lost = save_group._send_down(None) if world.is_first else None
    barrier(world)
    return type(lost), time.monotonic() - began


def test_to_say_that_one_is_lost_takes_seconds_at_most():
    """A group's operations may take ten minutes, and meanwhile the others meet without this one."""
    (error, took_s), _ = Ranks(speak_of_a_loss_to_who_does_not_hear, 2).results()
    assert error is RuntimeError
    assert took_s < 60


def test_nobody_hears_many_and_everybody_is_heard():
    for size in (1, 2, 8, 9, 63, 64, 65, 513, 1024):
        ranks = tuple(range(size))
        save_groups = [SaveGroup(None, ranks, me) for me in ranks]
        heard = [[place for level in save_group.children for place in level] for save_group in save_groups]
        assert sorted(place for places in heard for place in places) == list(range(1, size))
        assert all(save_groups[place].parent == me for me, places in enumerate(heard) for place in places)
        assert max(map(len, heard)) <= 7 * 4
        assert all(len(level) <= 7 for save_group in save_groups for level in save_group.children)
