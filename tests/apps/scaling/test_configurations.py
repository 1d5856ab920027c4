"""Which trainings are run, and what is set for them."""

import pytest

from launcher.apps.scaling.configurations import (
    Configuration,
    configurations,
    counted_role,
    of_roles,
    overrides_of,
    own_overrides,
    scalings_of,
    schedule_of,
)
from launcher.apps.scaling.findings import OWN, STRONG, WEAK
from launcher.errors import BadInput
from launcher.spec.model import NodeRange, Resources
from launcher.spec.read import parse_spec

ONE_NODE, TWO_NODES = Resources(), Resources(nodes=NodeRange(1, 2), ranks_per_node=4)


def run_of(text):
    return parse_spec(f"name: x\nrun: {text}\n", "x.yaml").run


@pytest.mark.parametrize("steps", [1, 5, 6, 13, 30, 100])
def test_lines_of_equally_many_steps(steps):
    found = schedule_of(steps)
    assert found.warm >= 5 and found.warm % found.log_every == 0
    assert found.measured % found.log_every == 0
    assert steps - found.log_every < found.measured <= steps
    assert (found.last, found.end) == (found.warm + found.measured, found.last + found.traced)


def test_who_has_the_fewest_ranks_is_run_once_for_both_scalings():
    found = configurations([2, 1], ["ddp"], (STRONG, WEAK), ONE_NODE, None)
    assert [(one.ranks, one.scaling) for one in found] == [(1, STRONG), (2, STRONG), (2, WEAK)]
    assert [one.name for one in found] == ["ddp-1", "ddp-2", "ddp-2-weak"]
    assert Configuration("", WEAK, 1, 2).name == "2-weak"


@pytest.mark.parametrize(
    ("ranks", "resources", "per_node", "expected"),
    [
        (4, ONE_NODE, None, (1, 4)),
        (4, ONE_NODE, 2, (2, 2)),
        (2, TWO_NODES, None, (1, 2)),
        (8, TWO_NODES, None, (2, 4)),
        (8, TWO_NODES, 8, (1, 8)),
    ],
)
def test_nodes_are_filled_one_by_one(ranks, resources, per_node, expected):
    [one] = configurations([ranks], ["ddp"], (STRONG,), resources, per_node)
    assert (one.nodes, one.per_node) == expected


def test_ranks_that_make_no_whole_nodes_are_refused():
    with pytest.raises(BadInput, match="expected whole nodes of 4 ranks, got 6"):
        configurations([6], ["ddp"], (STRONG,), TWO_NODES, None)


def test_what_would_disturb_a_measurement_is_set_aside():
    run = run_of("{module: trainer.tasks.gpt, args: {keep-best: true, patience: 3}}")
    found = overrides_of(Configuration("fsdp", WEAK, 1, 2), run, schedule_of(30), 64)
    assert {"run.args.keep-best=null", "run.args.patience=none", "run.args.validate-every=never"} <= {*found}
    assert {"checkpoint.every=null", "resources.ranks_per_node=2", "run.args.strategy=fsdp"} <= {*found}
    assert {"run.args.batch-size=64", "run.args.max-steps=40", "run.args.profile=36..40"} <= {*found}
    plain = overrides_of(Configuration("", STRONG, 1, 1), run, schedule_of(30), None)
    assert not [word for word in plain if "strategy" in word or "batch-size" in word]


def test_baselines_are_asked_for_in_the_environment():
    run = run_of("{module: trainer.tasks.gpt}")
    master = overrides_of(Configuration("master", STRONG, 2, 4), run, schedule_of(30), None, 1)
    assert {"run.args.strategy=ddp", "env.TRAINER_BASELINE=master", "resources.ranks_per_node=4"} <= {*master}
    copies = overrides_of(Configuration("dp", STRONG, 1, 4), run, schedule_of(30), None, 2)
    assert {"run.args.strategy=dp", "env.TRAINER_BASELINE=dp=4", "resources.ranks_per_node=1"} <= {*copies}
    assert "resources.cpus_per_rank=8" in copies, "as many as four ranks have"
    layers = overrides_of(Configuration("mp", STRONG, 1, 4), run, schedule_of(30), None, 2)
    assert {"run.args.strategy=none", "env.TRAINER_BASELINE=mp=4", "resources.ranks_per_node=1"} <= {*layers}
    unsaid = overrides_of(Configuration("dp", STRONG, 1, 4), run, schedule_of(30), None)
    assert not [word for word in unsaid if "cpus_per_rank" in word]


def test_copies_in_one_process_are_on_one_node():
    assert configurations([1, 4], ["dp"], (STRONG,), TWO_NODES, None)[1].ranks == 4
    with pytest.raises(BadInput, match="dp is one process on one node: expected up to 4 ranks, got 8"):
        configurations([8], ["dp"], (STRONG,), TWO_NODES, None)


def test_of_a_script_of_ones_own_only_its_steps_are_set():
    found = own_overrides(Configuration("", OWN, 1, 2), run_of("{script: a.py, args: {steps: 9}}"), schedule_of(30))
    assert "run.args.steps=35" in found
    assert [word for word in found if word.startswith("run.")] == ["run.args.steps=35"]


def test_scalings():
    assert scalings_of(strong=False, weak=False, has_options=True) == (STRONG, WEAK)
    assert scalings_of(strong=False, weak=True, has_options=True) == (WEAK,)
    assert scalings_of(strong=False, weak=False, has_options=False) == (OWN,)


ROLES = """
name: x
roles:
  workers: {run: {script: worker.py}}
  master: {main: true, run: {script: master.py, args: {steps: 9}}}
"""


def test_in_a_spec_with_roles_ranks_are_those_of_one_role_and_all_else_is_the_main_one_s():
    spec = parse_spec(ROLES, "x.yaml")
    words = own_overrides(Configuration("", OWN, 1, 4), spec.run, schedule_of(30))
    found = of_roles(words, spec, counted_role(spec, "workers"))
    assert {"roles.workers.resources.ranks_per_node=4", "roles.master.run.args.steps=35"} < {*found}
    assert {"roles.master.checkpoint.every=null", "sweep=null"} < {*found}
    assert "roles.master.resources.ranks_per_node=4" in of_roles(words, spec, counted_role(spec, None))


def test_without_roles_the_overrides_stay_as_they_are():
    spec = parse_spec("name: x\nrun: {script: train.py, args: {steps: 9}}\n", "x.yaml")
    words = own_overrides(Configuration("", OWN, 1, 4), spec.run, schedule_of(30))
    assert of_roles(words, spec, counted_role(spec, None)) == words


@pytest.mark.parametrize(
    ("text", "there"), [(ROLES, "there is workers, master"), ("name: x\nrun: {script: a.py}\n", "no roles")]
)
def test_a_role_that_is_not_there_is_refused(text, there):
    with pytest.raises(BadInput, match="--role: no role 'worker'") as error:
        counted_role(parse_spec(text, "x.yaml"), "worker")
    assert there in str(error.value)
