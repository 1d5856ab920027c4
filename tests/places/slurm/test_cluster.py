"""Test what is read about a Slurm cluster's resources."""

import pytest

from launcher.places.slurm.cluster import SlurmCluster
from launcher.spec.model import JobSpec, RunOptions, Slurm

FIELD, ROW = "\\037", "\\036"
NODES = "".join(
    FIELD.join([name, "main*", "idle", cpus, "64000", gres, "none"]) + ROW
    for name, cpus, gres in [("n0", "64", "gpu:a100:8(S:0-1)"), ("n1", "48", "gpu:a100:8"), ("n2", "8", "(null)")]
)


@pytest.mark.parametrize(
    ("gres", "asked"), [(None, None), ("gpu:a100:2", 2), ("gpu:a100", 1), ("nvme:1,gpu:3", 3), ("shard:4", 0)]
)
def test_a_node_offers_the_gpus_of_the_biggest_and_the_job_asks_for_those_that_its_gres_names(clients, gres, asked):
    clients.program("sinfo", f"printf '{NODES}'")
    machine = SlurmCluster().machine(JobSpec("job", RunOptions(script="train.py"), slurm=Slurm(gres=gres)))
    assert (machine.cpus, len(machine.gpus), machine.apart, machine.asked_gpus) == (48, 8, True, asked)
