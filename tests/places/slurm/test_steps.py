"""The command lines that have agents on an allocation's nodes."""

import signal
import subprocess

import pytest
from msgspec.structs import replace

from launcher.places.slurm import steps
from launcher.plan.on_hosts import with_hosts


@pytest.fixture
def processes(begun):
    def of(container):
        slurm = replace(begun.plan.spec.slurm, container=container)
        plan = replace(begun.plan, spec=replace(begun.plan.spec, slurm=slurm))
        return steps.processes(plan, begun.attempt)

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
    whole = replace(begun.plan, role="learner", ranks_per_node=1, cpus_per_rank=3, gpus_per_node=4, roles=(role,))
    leading, others = steps.role_processes(whole, role, begun.attempt)
    assert leading.stops_by == signal.SIGUSR1
    assert [[word for word in one.argv if word.startswith("--nodelist=")] for one in (leading, others)] == [
        ["--nodelist=node0"],
        ["--nodelist=node1,node2"],
    ]
    assert {"--gres=gpu:4", "--cpus-per-task=5"} <= {*leading.argv} & {*others.argv}
    [alone] = steps.role_processes(whole, replace(role, nodes=role.nodes[:1]), begun.attempt)
    assert alone.argv == leading.argv


def test_without_a_container_the_first_nodes_agent_is_no_step(processes):
    assert "srun" not in processes(None)[0].argv
