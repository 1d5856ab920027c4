"""Which runs may share a job."""

from dataclasses import dataclass, field

from launcher.plan.facts import Project
from launcher.spec.model import JobSpec, Resources, RunOptions, Slurm
from launcher.submission.opening import _together
from launcher.submission.requests import Request


@dataclass
class Place:
    most: int
    kind: str = "slurm"
    most_in_order: int = 1
    asked: list = field(default_factory=list)

    def most_together(self):
        return self.most


def wish(place, repeat=None, *, project="/p", **spec):
    job = JobSpec("r", RunOptions(script="a.py"), **spec)
    return Request(None, job, (), "slurm", place, Project(project, (), (), True), None, "python", repeat)


def sizes(wishes):
    return [len(group) for group in _together(wishes)]


def test_as_many_as_the_cluster_takes():
    place = Place(4)
    assert sizes([wish(place, index) for index in range(10)]) == [4, 4, 2]
    assert sizes([wish(place)]) == [1]


def test_where_a_job_is_one_run_nothing_is_shared():
    assert sizes([wish(Place(1), index) for index in range(3)]) == [1, 1, 1]


def test_only_with_the_same_demands_and_in_order():
    place = Place(100)
    small, large = Resources(ranks_per_node=1), Resources(ranks_per_node=2)
    wishes = [wish(place, resources=one) for one in (small, small, large, small)]
    wishes.append(wish(place, resources=small, slurm=Slurm(partition="gpu")))
    wishes.append(wish(place, resources=small, slurm=Slurm(partition="gpu"), project="/other"))
    assert sizes(wishes) == [2, 1, 1, 1, 1]
