"""Specs of several programs of one run → a plan of each: on which hosts, with which of their GPUs; or why not."""

from dataclasses import replace

import pytest
from msgspec import structs

from launcher.ids import parse_run_id
from launcher.node.environment import role_rank_variables
from launcher.node.ranks.ports import address_drawer
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.plan.on_hosts import (
    hosts_asked,
    kept_at,
    least_hosts,
    most_of_a_host,
    own_gpus,
    voters_of,
    with_addresses,
    with_hosts,
)
from launcher.plan.roles import build_roles, check_roles
from launcher.spec.read import parse_spec

PLACE = RunIdentity(parse_run_id("r-1"), "/runs/r-1", "slurm", "slurm", "/p/job.yaml", 12.0)
PROJECT = Project("/p", {"learner.py", "actor.py", "reward.py"}, set(), module_found=True)
APART = Machine(cpus=8, gpus=("0", "1", "2", "3"), apart=True, nodes=4, limit_per_job=True)
HERE = Machine(cpus=8, gpus=("0", "1", "2", "3"))
FOUR = [(f"node{number}", f"10.0.0.{number}") for number in range(4)]
THREE = """\
name: three
roles:
  learner: {main: true, run: {script: learner.py}, resources: {ranks_per_node: 2, gpus_per_node: 2}}
  actors: {run: {script: actor.py}, resources: {nodes: 2, ranks_per_node: 2, cpus_per_rank: 3}}
  reward: {run: {script: reward.py}, resources: {gpus_per_node: 1, memory_gb: 3}%s}
"""
ON_LEARNER = ", colocate: learner"


def spec(text, *changes):
    return parse_spec(text, "job.yaml", changes)


def plan(job, machine=APART):
    projects = dict.fromkeys(job.roles, PROJECT)
    return build_roles(job, (), PLACE, machine, projects, FrozenCode("d", 1, 1), "/usr/bin/python3")


def problems(job, machine=APART):
    return [f"{one.key}: {one.reason}" for one in check_roles(job, machine, dict.fromkeys(job.roles, PROJECT))]


def hosts_of(whole):
    return {one.role: [node.host for node in one.nodes] for one in (whole, *whole.roles)}


def test_each_role_has_the_next_nodes_for_itself():
    whole = with_hosts(plan(spec(THREE % "")), FOUR)
    assert hosts_of(whole) == {"learner": ["node0"], "actors": ["node1", "node2"], "reward": ["node3"]}
    assert whole.roles[0].nodes[1].address == "10.0.0.2"
    assert hosts_asked(whole) == 4


def test_a_role_on_the_nodes_of_another_has_the_next_gpus_of_them():
    whole = with_hosts(plan(spec(THREE % ON_LEARNER)), FOUR[:3])
    assert hosts_of(whole) == {"learner": ["node0"], "actors": ["node1", "node2"], "reward": ["node0"]}
    assert hosts_asked(whole) == 3
    seen = {one.role: own_gpus(one, "4,5,7") for one in (whole, *whole.roles)}
    assert seen == {"learner": ("4", "5"), "actors": (), "reward": ("7",)}
    assert own_gpus(whole.roles[1], None) == ("2",)


def test_of_each_host_a_job_asks_for_the_most_that_the_programs_on_one_need():
    assert most_of_a_host(plan(spec(THREE % ON_LEARNER))) == (6, 3, 3.0)
    assert most_of_a_host(plan(spec(THREE % ""))) == (6, 2, 3.0)


def test_ranks_that_restart_alone_are_on_all_nodes_of_their_role_with_a_gpu_each():
    alone = spec(THREE % "", "roles.actors.restart=alone", "roles.actors.resources.gpus_per_node=2")
    whole = with_hosts(plan(alone), FOUR)
    parts = [one for one in whole.roles if one.role == "actors"]
    found = [(one.run_dir[-8:], one.role_rank, one.nodes[0].host, own_gpus(one, "0,1")) for one in parts]
    assert found == [
        ("actors-0", 0, "node1", ("0",)),
        ("actors-1", 1, "node1", ("1",)),
        ("actors-2", 2, "node2", ("0",)),
        ("actors-3", 3, "node2", ("1",)),
    ]
    assert [(one.nodes_max, one.ranks_per_node) for one in parts] == [(1, 1)] * 4


def test_what_spares_say_of_all_roles_says_nothing_of_ranks_that_restart_alone():
    nodes = [f"roles.{name}.resources.nodes=2" for name in ("learner", "reward")]
    whole = plan(spec(THREE % "", "recovery.spares=1", *nodes, "roles.actors.restart=alone"), HERE)
    counts = {one.run_dir.rpartition("/")[2]: len(one.nodes) for one in (whole, *whole.roles)}
    assert counts == {"r-1": 3, "actors-0": 1, "actors-1": 1, "actors-2": 1, "actors-3": 1, "reward": 3}


def test_on_this_machine_each_rank_that_restarts_alone_has_its_own_gpus():
    job = spec(THREE % "", "roles.actors.restart=alone", "roles.actors.resources={nodes: 1, gpus_per_node: 2}")
    whole = plan(job, replace(HERE, gpus=("0", "1", "2", "3", "4")))
    assert [one.nodes[0].gpus for one in (whole, *whole.roles)] == [("0", "1"), ("2",), ("3",), ("4",)]
    assert {own_gpus(one, "0,1,2,3,4") for one in (whole, *whole.roles)} == {None}


def test_a_role_that_names_no_gpus_may_have_more_ranks_than_there_are():
    assert problems(spec(THREE % "", "roles.actors.resources={ranks_per_node: 9}"), HERE) == []


@pytest.mark.parametrize(
    ("change", "machine", "said"),
    [
        ("roles.actors.resources.nodes=3", APART, "roles: ask for 5 nodes together, but there are 4"),
        (
            "roles.learner.resources.gpus_per_node=4",
            APART,
            "roles: learner, reward ask for 5 GPUs of a node together, but it has 4",
        ),
        (
            "roles.learner.resources.gpus_per_node=4",
            HERE,
            "roles: ask for 5 GPUs together, but this machine has 4",
        ),
        ("roles.actors.resources.nodes=1..2", APART, "roles.actors.resources.nodes: is a range"),
        ("roles.actors.recovery.spares=1", APART, "roles.actors.recovery.spares: nodes are divided among roles"),
        ("roles.actors.resources.time=1h", APART, "roles.actors.resources.time: all roles are one job"),
        ("slurm.interface=eth1", replace(APART, interface="eth1"), "slurm.interface: programs of one run find each"),
        (
            "roles.learner.resources.gpus_per_node=2",
            replace(APART, asked_gpus=2),
            "roles: learner, reward ask for 3 GPUs of a node together, but it has 2",
        ),
    ],
)
def test_what_the_roles_cannot_have_together_is_named(change, machine, said):
    on_learner = "GPUs of a node" in said
    [found] = problems(spec(THREE % (ON_LEARNER if on_learner else ""), change), machine)
    assert found.startswith(said)


def test_roles_that_fit_have_no_problem():
    assert problems(spec(THREE % "")) == problems(spec(THREE % ON_LEARNER)) == []
    assert problems(spec(THREE % ON_LEARNER), HERE) == []


def test_each_rank_has_a_port_of_each_name_and_its_own_address_for_each():
    whole = plan(spec(THREE % ", ports: [http, metrics]"))
    addresses = {"reward": ("n:1",), "reward_http": ("n:2",), "reward_metrics": ("n:3",)}
    reward = structs.replace(whole.roles[-1], addresses=addresses)
    assert reward.addresses_of(0) == ("n:1", "n:2", "n:3")
    words = role_rank_variables(reward, 0)
    assert words == {
        "LAUNCH_ROLE_RANK": "0",
        "LAUNCH_PORT": "1",
        "LAUNCH_PORT_HTTP": "2",
        "LAUNCH_PORT_METRICS": "3",
    }


POOL = replace(APART, nodes=None, limit_per_job=False, disks_apart=True, elects=True)


def test_in_a_pool_the_main_role_has_a_vote_on_each_host_and_ranks_on_its_own_alone():
    whole = with_hosts(plan(spec(THREE % ""), POOL), FOUR)
    assert hosts_of(whole) == {
        "learner": ["node0", "node1", "node2", "node3"],
        "actors": ["node1", "node2"],
        "reward": ["node3"],
    }
    assert [node.votes_only for node in whole.nodes] == [False, True, True, True]
    assert voters_of(whole) == {0, 1, 2, 3} and not any(voters_of(one) for one in whole.roles)
    assert (whole.coordinator, [one.coordinator for one in whole.roles]) == ("", ["10.0.0.0", "10.0.0.0"])
    assert not whole.nodes_vary, "its ranks may stay in place"
    assert least_hosts(whole) == 4


def test_spares_of_a_pool_are_the_runs_and_take_the_places_of_lost_hosts_in_the_next_attempt():
    job = spec(THREE % ON_LEARNER, "recovery.spares=1")
    whole = plan(job, POOL)
    assert (problems(job, POOL), len(whole.nodes), least_hosts(whole)) == ([], 4, 3)
    again = with_hosts(with_hosts(whole, FOUR), [FOUR[1], FOUR[3], FOUR[0]], [FOUR[2]])
    assert hosts_of(again)["actors"] == ["node3", "node0"]
    assert [one.coordinator for one in again.roles] == ["10.0.0.1", "10.0.0.1"]
    assert [node.votes_only for node in again.nodes] == [False, True, True, True]


def test_each_host_of_a_pool_draws_the_same_address_for_each_rank():
    whole = with_hosts(plan(spec(THREE % ""), POOL), FOUR)
    one, other = (with_addresses(whole, address_drawer("ab12")).addresses for _ in range(2))
    assert one == other != with_addresses(whole, address_drawer("ab13")).addresses
    assert [address.partition(":")[0] for address in one["actors"]] == ["10.0.0.1"] * 2 + ["10.0.0.2"] * 2
    assert len({address for some in one.values() for address in some}) == 7


def test_a_hosts_plan_of_a_role_lies_below_the_runs_folder_there():
    there = kept_at(plan(spec(THREE % ""), POOL), "/disk/runs/r-1", "/usr/bin/py")
    assert [one.run_dir for one in there.roles] == ["/disk/runs/r-1/roles/actors", "/disk/runs/r-1/roles/reward"]
    assert {one.entry.python for one in (there, *there.roles)} == {"/usr/bin/py"}


def test_what_only_the_disk_of_another_host_shows_makes_no_role_ready_in_a_pool():
    job = spec(THREE % "", "roles.reward.ready.log=up")
    [said] = problems(job, POOL)
    assert said == "roles.reward.ready: is on the disk of its host, which others do not see"
    assert problems(job, replace(POOL, disks_apart=False)) == []


def test_on_one_machine_a_single_node_has_no_spare():
    [said] = problems(spec(THREE % "", "roles.reward.recovery.spares=1"), HERE)
    assert said == "roles.reward.recovery.spares: a spare needs at least 2 nodes, got resources.nodes: 1"
