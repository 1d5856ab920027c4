"""Which machine of an allocation becomes which node of the plan, and by which address it is reached."""

import msgspec
import pytest

from launcher.errors import LaunchError
from launcher.places.batch.job.nodes import with_allocated_hosts
from launcher.places.slurm.queue import addresses_of, hosts_of
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.spec.model import JobSpec, NodeRange, Recovery, Resources, RunOptions, Slurm

HOSTS = ["gpu07", "gpu02", "gpu11", "gpu03"]
ADDRESSES = {host: f"10.0.0.{index}" for index, host in enumerate(HOSTS)}


def of(hosts):
    return {host: ADDRESSES[host] for host in hosts}


def plan(fewest, most, spares=0, **slurm):
    spec = JobSpec(
        name="r",
        run=RunOptions(script="train.py"),
        resources=Resources(nodes=NodeRange(fewest, most)),
        recovery=Recovery(spares=spares),
        slurm=Slurm(**slurm),
    )
    place = RunIdentity("r-1", "/runs/r-1", "slurm", "slurm", "/p/job.yaml", 12.0)
    project = Project("/p", {"train.py"}, set(), module_found=True)
    return build(
        spec,
        (),
        place,
        Machine(8, (), apart=True, interface=spec.slurm.interface),
        project,
        FrozenCode("d", 1, 1),
        "/usr/bin/python3",
    )


def seats(made):
    return [(node.index, node.host, node.address, node.spare) for node in made.nodes]


@pytest.mark.parametrize(
    ("fewest", "most", "spares", "hosts", "spare"),
    [
        (2, 2, 0, 2, [False, False]),
        (2, 2, 1, 3, [False, False, True]),
        (2, 4, 0, 2, [False, False]),  # the fewest of a range
        (2, 4, 0, 3, [False, False, False]),
        (1, 2, 2, 4, [False, False, True, True]),
        (1, 3, 1, 2, [False, False]),  # spares come last: there is none
        (1, 1, 0, 2, [False, True]),  # Slurm gave more than was asked for
    ],
)
def test_the_first_hosts_are_the_runs_own_and_the_rest_spares(fewest, most, spares, hosts, spare):
    made = with_allocated_hosts(plan(fewest, most, spares), of(HOSTS[:hosts]))
    assert seats(made) == [
        (index, host, ADDRESSES[host], spare[index]) for index, host in enumerate(HOSTS[:hosts])
    ]  # in Slurm's order, which is not that of the names
    assert {node.gpus for node in made.nodes} == {None}  # Slurm says so, on each


def test_an_interface_leaves_the_address_to_the_host_itself():
    made = with_allocated_hosts(plan(2, 2, interface="ib0"), of(HOSTS[:2]))
    assert [(node.host, node.address) for node in made.nodes] == [("gpu07", ""), ("gpu02", "")]


def test_nothing_else_of_the_plan_changes():
    before = plan(2, 2, 1)
    after = with_allocated_hosts(before, of(HOSTS[:3]))
    assert msgspec.structs.replace(after, nodes=before.nodes) == before


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A scontrol that says this."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def says(text, code=0):
        program = tmp_path / "scontrol"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        program.chmod(0o755)

    return says


def test_hosts_come_in_slurms_order(scontrol):
    scontrol("gpu07\ngpu02")
    assert hosts_of("gpu[07,02]") == ["gpu07", "gpu02"]


def test_a_list_that_slurm_cannot_read_is_no_allocation(scontrol):
    scontrol("", code=1)
    with pytest.raises(LaunchError, match=r"scontrol show hostnames gpu\[: expected names of hosts"):
        hosts_of("gpu[")


def test_an_address_is_the_one_that_slurm_uses_else_the_names(scontrol):
    scontrol("NodeName=gpu07 NodeAddr=192.0.2.7 NodeHostName=gpu07 State=IDLE")
    assert addresses_of(["gpu07", "localhost"]) == {"gpu07": "192.0.2.7", "localhost": "127.0.0.1"}


def test_a_silent_controller_leaves_the_names(scontrol, tmp_path):
    scontrol("", code=1)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert addresses_of(["localhost"]) == {"localhost": "127.0.0.1"}


def test_a_name_without_an_address_says_what_to_do(scontrol):
    scontrol("Node gpu.invalid not found", code=1)
    with pytest.raises(LaunchError, match=r"no address for host gpu\.invalid") as refused:
        addresses_of(["gpu.invalid"])
    assert "slurm.interface" in str(refused.value)
