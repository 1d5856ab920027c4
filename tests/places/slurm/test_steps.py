"""The command lines that have agents on an allocation's nodes."""

import signal
import subprocess

import pytest
from msgspec.structs import replace

from launcher.places.slurm import steps
from launcher.plan.on_hosts import with_hosts
from launcher.spec.model import Role


@pytest.fixture
def processes(begun):
    def of(container):
        slurm = replace(begun.plan.spec.slurm, container=container)
        plan = replace(begun.plan, spec=replace(begun.plan.spec, slurm=slurm))
        return steps.processes(plan, begun.attempt, "7")

    return of


@pytest.mark.parametrize(("container", "which"), [(None, 1), ("docker://image", 0), ("docker://image", 1)])
def test_what_srun_starts_is_not_ended_by_a_warning_that_comes_too_soon(processes, container, which):
    words = list(processes(container)[which].argv)
    assert words[0] == "srun"
    before = words[words.index("/bin/sh") : words.index("-P") - 1]  # what is run before Python
    early = ["/bin/sh", "-c", "kill -USR1 $$; kill -USR2 $$; echo lives"]
    assert subprocess.run([*before, *early], capture_output=True, text=True, check=True).stdout == "lives\n"


def test_a_role_beside_the_main_one_has_a_step_for_its_first_agent_and_one_for_the_others(begun):
    three = with_hosts(replace(begun.plan, nodes_min=3, nodes_max=3), [(f"node{one}", "") for one in range(3)])
    role = replace(three, role="actors", cpus_per_rank=1, ranks_per_node=2)
    spec = replace(begun.plan.spec, roles={"learner": Role(main=True), "actors": Role(colocate="learner")})
    whole = replace(
        begun.plan, role="learner", ranks_per_node=1, cpus_per_rank=3, gpus_per_node=4, nodes_max=3, roles=(role,),
        spec=spec,
    )  # fmt: skip
    leading, others = steps.role_processes(whole, role, begun.attempt, "7")
    assert leading.stops_by == signal.SIGUSR1
    assert [[word for word in one.argv if word.startswith("--nodelist=")] for one in (leading, others)] == [
        ["--nodelist=node0"],
        ["--nodelist=node1,node2"],
    ]
    assert {"--gres=gpu:4", "--cpus-per-task=5"} <= {*leading.argv} & {*others.argv}
    [alone] = steps.role_processes(whole, replace(role, nodes=role.nodes[:1]), begun.attempt, "7")
    assert alone.argv == leading.argv


@pytest.mark.parametrize(("job", "number", "gres"), [("7", ["--het-group=1"], "none"), ("7_1", [], "gpu:4")])
def test_a_role_on_nodes_of_a_component_has_its_steps_there_with_what_that_has(begun, job, number, gres):
    two = with_hosts(replace(begun.plan, nodes_min=2, nodes_max=2), [("node1", ""), ("node2", "")])
    role = replace(two, role="actors", cpus_per_rank=1, ranks_per_node=2, first_host=1)
    spec = replace(begun.plan.spec, roles={"learner": Role(main=True), "actors": Role()})
    whole = replace(
        begun.plan, role="learner", ranks_per_node=1, cpus_per_rank=3, gpus_per_node=4, nodes_max=1, roles=(role,),
        spec=spec,
    )  # fmt: skip
    for words in (
        *(one.argv for one in steps.role_processes(whole, role, begun.attempt, job)),
        steps.step_command(whole, role, job, "node2"),
    ):
        assert [word for word in words if word.startswith("--het-group")] == number
        assert f"--gres={gres}" in words and f"--cpus-per-task={2 if number else 3}" in words


def test_without_a_container_the_first_nodes_agent_is_no_step(processes):
    assert "srun" not in processes(None)[0].argv
