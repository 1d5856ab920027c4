"""The command lines that have agents on an allocation's nodes."""

import subprocess

import pytest
from msgspec.structs import replace

from launcher.places.slurm import steps


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


def test_without_a_container_the_first_nodes_agent_is_no_step(processes):
    assert "srun" not in processes(None)[0].argv
