"""Which hosts an attempt gets, and what is missing of a checkpoint on them: pure questions."""

import msgspec
import pytest

from launcher.copies.mirror.holders import lacking, newest_first
from launcher.places.ssh.cluster import offered
from launcher.places.ssh.facts import Facts, Surveyed, completed
from launcher.places.ssh.host.attempt_on_host import reseated
from launcher.places.ssh.submit.handover import choose
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.plan.on_hosts import leader_may_be_replaced, with_hosts
from launcher.spec.model import JobSpec, NodeRange, Recovery, Resources, RunOptions, Ssh, SshHost
from launcher.supervisor.slots.table import Demand, SlotWaiter, held_name, lock_name, waits_name
from trainer.checkpoint_files.partial import Held

FACTS = Facts(
    python="/usr/bin/python3", version=(3, 12, 1), tag="cpython-312-x86_64-glibc", torch=None, missing=(),
    hostname="h", boot_id="b", user="me", address="10.0.0.1", workdir="/home/me/launch", libraries=(), cpus=8,
    gpus=(0, 1, 2, 3), sockets=(), disk_free=10**12, inodes_free=None, writable=True, memory=10**11, clock=0.0,
)  # fmt: skip


def row(name):
    return f"0000000000000000: 00000002 00000000 00000000 0001 01 4711 @{name}"


def taken(gpu):
    """The names of a GPU that somebody has."""
    return lock_name(gpu), held_name("gpu", gpu, "ann", "vit-2222")


def host(name, *sockets, gpus=(0, 1, 2, 3), **more):
    facts = msgspec.structs.replace(FACTS, sockets=tuple(map(row, sockets)), gpus=gpus, address=f"addr-{name}")
    return Surveyed(SshHost(name, **more), facts, 0.0, 0.1)


def plan_of(nodes="2", spares=0, gpus=2, shared=False):
    least, _, most = str(nodes).partition("..")
    resources = Resources(nodes=NodeRange(int(least), int(most or least)), gpus_per_node=gpus)
    spec = JobSpec(
        "j", RunOptions(script="t.py"), resources=resources, recovery=Recovery(spares=spares), ssh=Ssh(shared=shared)
    )
    place = RunIdentity("j-1111", "/runs/j-1111", "pool", "ssh", "/j.yaml", 0.0)
    machine = Machine(8, ("0", "1", "2", "3"), apart=True, disks_apart=not shared)
    return build(spec, (), place, machine, Project("/p", {"t.py"}, set(), True), FrozenCode("", 1, 1), "/py")


def test_hosts_with_room_come_first_then_the_pool_s_order():
    full = [name for gpu in "0123" for name in taken(gpu)]
    busy = host("a", *full)
    waited_for = host("b", waits_name(SlotWaiter(5, "ann", "vit-3333", Demand(4, 0))))
    ready = {"a": busy, "b": waited_for, "c": host("c"), "d": host("d")}
    assert choose(plan_of(), ready, set()) == ["c", "d"]
    assert choose(plan_of("3"), ready, set()) == ["c", "d", "a"]


def test_a_blamed_host_comes_last_and_one_without_the_gpus_never():
    ready = {"a": host("a"), "b": host("b"), "c": host("c", gpus=(0,)), "d": host("d")}
    assert choose(plan_of(), ready, {"a"}) == ["b", "d"]
    assert choose(plan_of("3"), ready, {"a"}) == ["b", "d", "a"]
    assert choose(plan_of("4"), ready, set()) == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("gpus", "each"),
    [
        (None, 2),  # of those with any, what the least of them has
        (0, 0),
        (2, 2),
        (3, 4),  # the others are left out
        (8, 4),  # nobody has so many: what there is at most is what the message says
    ],
)
def test_a_host_that_cannot_take_part_does_not_set_the_measure(gpus, each):
    found = [host("a"), host("b", gpus=(0, 1)), host("c", gpus=())]
    assert len(offered(found, gpus).gpus) == each


def test_without_any_gpu_auto_is_none():
    assert offered([host("a", gpus=())], None).gpus == ()


def test_gpus_that_may_not_be_used_do_not_count():
    one = host("a", *taken("3"))
    assert (len(one.gpus), one.taken("gpu")) == (4, 1)
    few = Surveyed(SshHost("a", gpus=2), one.facts, 0.0, 0.1)
    assert (few.gpus, few.taken("gpu"), few.has_room(plan_of())) == (("0", "1"), 0, True)


def test_seats_and_spares():
    ready = {name: host(name) for name in "abcd"}
    elects = msgspec.structs.replace(plan_of("2", spares=1), elects=True)
    plan = with_hosts(elects, [(name, ready[name].address) for name in "cab"])
    assert [(node.host, node.address, node.spare) for node in plan.nodes] == [
        ("c", "addr-c", False), ("a", "addr-a", False), ("b", "addr-b", True),
    ]  # fmt: skip
    assert plan.disks_apart
    known = {node.host: node for node in plan.nodes}
    after = reseated(plan, known, ["b", "c"], ["a"])
    assert [(node.index, node.host, node.spare) for node in after.nodes] == [
        (0, "b", False), (1, "c", False), (2, "a", True),
    ]  # fmt: skip
    assert after.away == (2,)
    shared = with_hosts(plan_of("2", shared=True), [("c", "addr-c"), ("a", "addr-a")])
    assert not shared.disks_apart
    assert leader_may_be_replaced(plan), "by two of three"
    assert leader_may_be_replaced(after), "who is away may vote"
    two = with_hosts(elects, [(name, ready[name].address) for name in "ca"])
    assert not leader_may_be_replaced(two), "one of two does not take over"


def test_what_a_host_does_not_say_the_pool_does():
    pool = Ssh(user="me", port=2222, gpus=8, python="/py", workdir="/w")
    assert completed(SshHost("a", gpus=0), pool) == SshHost("a", None, "me", 2222, None, 0, "/py", "/w")
    assert completed(SshHost("a", user="you"), Ssh()) == SshHost("a", user="you", workdir="~/launch")


def held(step, present, missing, *, committed=True, digest="d"):
    return Held(step, "step", "n", 1, 0.0, f"step-{step:08d}", committed, digest, tuple(present), tuple(missing))


@pytest.mark.parametrize(
    ("disks", "step", "missing_on_first"),
    [
        ([[held(10, "ab", "")], [held(10, "", "ab")]], 10, []),
        ([[held(10, "ab", ""), held(20, "a", "b")], [held(20, "b", "a")]], 20, ["b"]),
        ([[held(10, "ab", ""), held(20, "a", "b")], [held(20, "a", "b")]], 10, []),
        ([[held(20, "a", "b", committed=False)], [held(20, "b", "a", committed=False)]], None, []),
        ([[held(20, "a", "b", committed=False)], [held(20, "b", "a")]], 20, ["b"]),
        ([[held(20, "a", "b", digest="x")], [held(20, "b", "a", digest="y")]], None, []),
        ([[], []], None, []),
    ],
)
def test_the_newest_checkpoint_that_is_whole_over_all_disks(disks, step, missing_on_first):
    found = newest_first(disks)
    assert (found[0].step if found else None) == step
    if found:
        assert lacking(found[0], disks[:1]) == missing_on_first
        assert newest_first(disks, step=found[0].step) == found[:1]
    assert newest_first(disks, step=99) == []
