"""Test which waits a kind of cluster supports, and which GPUs a run's nodes get."""

import pytest

from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.plan.queueing import at_once, begun, devices_of, may_wait_here, not_taken, priority_problems, with_devices
from launcher.spec.model import JobSpec, NodeRange, Predecessor, QueueOptions, Recovery, Resources, RunOptions

EIGHT = tuple(map(str, range(8)))
WAITS = QueueOptions(after=(Predecessor("x"),), hold=True, at="22:00", priority=3, max_parallel=2)


def plan_of(resources, *, spares=0, queue=None):
    spec = JobSpec(
        "j", RunOptions(script="t.py"), resources=resources, recovery=Recovery(spares=spares),
        queue=queue or QueueOptions(),
    )  # fmt: skip
    place = RunIdentity("j-1111", "/runs/j-1111", "local", "local", "/j.yaml", 0.0)
    return build(spec, (), place, Machine(8, EIGHT), Project("/p", {"t.py"}, set(), True), FrozenCode("", 1, 1), "/py")


def test_the_gpus_that_were_free_are_shared_out_in_the_order_of_the_nodes():
    plan = plan_of(Resources(nodes=NodeRange(2, 2), gpus_per_node=2), spares=1)
    assert devices_of(plan) == 4
    given = with_devices(plan, ("7", "5", "3", "1"))
    assert [node.gpus for node in given.nodes] == [("7", "5"), ("3", "1"), ("7", "5")]
    assert with_devices(plan, EIGHT[:4]) == plan


def test_a_run_without_gpus_that_says_nothing_does_not_wait():
    assert not may_wait_here(plan_of(Resources(gpus_per_node=0)))
    assert may_wait_here(plan_of(Resources()))  # all GPUs
    assert may_wait_here(plan_of(Resources(gpus_per_node=0), queue=QueueOptions(slots=1)))


def test_what_a_place_does_not_know_is_refused_by_its_name():
    found = not_taken(WAITS, ("hold", "at"), "slurm")
    assert [one.key for one in found] == ["queue.priority", "queue.after", "queue.max_parallel"]
    assert found[0].hint == "slurm clusters know hold, at"
    assert not not_taken(QueueOptions(now=True, slots=4), (), "ssh")


@pytest.mark.parametrize(("priority", "refused"), [(5, True), (0, False), (-5, False)])
def test_where_one_can_only_step_back_a_higher_priority_is_refused(priority, refused):
    assert bool(priority_problems(QueueOptions(priority=priority), "Slurm")) == refused


def test_who_has_waited_waits_no_more_but_keeps_its_priority():
    plan = begun(plan_of(Resources(), queue=WAITS))
    assert plan.spec.queue == QueueOptions(priority=3)
    assert (plan.starts_at, plan.awaited) == (None, ())
    assert at_once(plan.spec) == plan.spec
