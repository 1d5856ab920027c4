"""JobSpec + facts → Plan, or every reason why not."""

from dataclasses import replace

import msgspec
import pytest

from launcher.ids import parse_run_id
from launcher.plan.build import build, check, check_code, crowded, gpus_per_node, ranks_per_node
from launcher.plan.facts import Machine, Misfit, Project, RunIdentity
from launcher.plan.model import FrozenCode, Plan
from launcher.plan.preload import TORCH, TRAINER
from launcher.spec.model import Budget, JobSpec, NodeRange, Recovery, Resources, RunOptions, Secret

PLACE = RunIdentity(parse_run_id("r-1"), "/runs/r-1", "local", "local", "/p/job.yaml", 12.0)
PROJECT = Project("/p", {"train.py", "pkg/main.py", "jobs/other.py"}, {"torch"}, module_found=True)
CPU = Machine(cpus=8, gpus=())
GPU = Machine(cpus=8, gpus=("0", "1", "2", "3"))
CODE = FrozenCode("d", 3, 10)


def spec(run=None, **more):
    return JobSpec(name="r", run=run or RunOptions(script="train.py"), **more)


def plan(job, machine=CPU, project=PROJECT):
    return build(job, (), PLACE, machine, project, CODE, "/usr/bin/python3")


@pytest.mark.parametrize(
    ("resources", "machine", "gpus", "ranks"),
    [
        (Resources(), CPU, 0, 1),
        (Resources(), GPU, 4, 4),
        (Resources(nodes=NodeRange(2, 2)), GPU, 2, 2),
        (Resources(gpus_per_node=1), GPU, 1, 1),
        (Resources(gpus_per_node=0), GPU, 0, 1),
        (Resources(ranks_per_node=7), CPU, 0, 7),
        (Resources(ranks_per_node=2), GPU, 4, 2),
    ],
)
def test_auto_follows_the_devices(resources, machine, gpus, ranks):
    assert gpus_per_node(resources, machine) == gpus
    assert ranks_per_node(resources, machine) == ranks


@pytest.mark.parametrize(
    ("resources", "imports", "run", "gpus"),
    [
        (Resources(ranks_per_node=1), (), None, 0),
        (Resources(ranks_per_node=1), ("numpy.linalg", "yaml"), None, 0),
        (Resources(ranks_per_node=1), ("torch",), None, 4),
        (Resources(ranks_per_node=1), ("of_theirs",), None, 4),  # it may import torch
        (Resources(ranks_per_node=1), ("*",), None, 4),
        (Resources(ranks_per_node=1), (), RunOptions(command=("./train",)), 4),
        (Resources(ranks_per_node=1, gpus_per_node=2), (), None, 2),
        (Resources(), (), None, 4),  # a rank for each
    ],
)
def test_a_job_of_a_batch_system_that_uses_no_gpu_asks_for_none(resources, imports, run, gpus):
    machine = Machine(8, ("0", "1", "2", "3"), apart=True, limit_per_job=True)
    project = replace(PROJECT, imports=imports)
    assert plan(spec(run, resources=resources), machine, project).gpus_per_node == gpus


@pytest.mark.parametrize(
    ("nodes", "spares", "there", "said"),
    [
        ((9, 9), 0, 4, ["asks for 9, but there are 4 nodes"]),
        ((4, 4), 1, 4, ["asks for 5, 1 of them spares, but there are 4 nodes"]),
        ((2, 9), 0, 4, []),
        ((4, 4), 0, 4, []),
        ((9, 9), 0, None, []),
    ],
)
def test_more_nodes_than_there_are_would_be_waited_for_for_ever(nodes, spares, there, said):
    job = spec(resources=Resources(nodes=NodeRange(*nodes)), recovery=Recovery(spares=spares))
    problems = check(job, Machine(8, (), apart=True, nodes=there), PROJECT, ())
    assert [one.reason for one in problems if one.key == "resources.nodes"] == said


def test_nodes_of_one_machine_share_out_addresses_and_gpus():
    job = spec(resources=Resources(nodes=NodeRange(1, 2)), recovery=Recovery(spares=1))
    nodes = plan(job, GPU).nodes
    assert [node.address for node in nodes] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [node.gpus for node in nodes] == [("0", "1"), ("2", "3"), ("0", "1")]
    assert [node.spare for node in nodes] == [False, False, True]


APART = Machine(cpus=32, gpus=("0", "1", "2", "3"), apart=True)


def test_machines_apart_each_have_all_their_gpus_and_no_name_yet():
    job = spec(resources=Resources(nodes=NodeRange(1, 2)), recovery=Recovery(spares=1))
    made = plan(job, APART)
    assert (made.gpus_per_node, made.ranks_per_node, made.cpus_per_rank) == (4, 4, 8)
    assert [(node.address, node.host, node.gpus, node.spare) for node in made.nodes] == [
        ("", "", None, False),
        ("", "", None, False),
        ("", "", None, True),
    ]


@pytest.mark.parametrize(
    ("resources", "cpus"),
    [
        (Resources(gpus_per_node=2), 8),  # as much of the cores as of the GPUs
        (Resources(gpus_per_node=0), 1),  # others use the node too
        (Resources(gpus_per_node=0, cpus_per_rank=5), 5),
        (Resources(gpus_per_node=4, ranks_per_node=1), 32),
    ],
)
def test_cores_of_machines_apart(resources, cpus):
    assert plan(spec(resources=resources), APART).cpus_per_rank == cpus


def test_machines_apart_are_each_big_enough_or_not():
    many = Resources(nodes=NodeRange(8, 8), gpus_per_node=4)
    assert check(spec(resources=many), APART, PROJECT, ()) == []
    (problem,) = check(spec(resources=Resources(gpus_per_node=5)), APART, PROJECT, ())
    assert (problem.key, problem.reason) == ("resources.gpus_per_node", "asks for 5, but no node there has more than 4")


@pytest.mark.parametrize(
    ("resources", "asked", "planned"),
    [
        (Resources(), 2, (2, 2, 8)),
        (Resources(ranks_per_node=1), 2, (2, 1, 16)),
        (Resources(gpus_per_node=2), 2, (2, 2, 8)),
        (Resources(), 0, (0, 1, 1)),  # slurm.gres names no GPU, so the job gets none
        (Resources(gpus_per_node=2), 0, (2, 2, 8)),  # or names a part of one in words of the site's own
    ],
)
def test_gpus_that_are_asked_for_in_the_clusters_own_words(resources, asked, planned):
    machine, job = replace(APART, asked_gpus=asked), spec(resources=resources)
    assert check(job, machine, PROJECT, ()) == []
    made = plan(job, machine)
    assert (made.gpus_per_node, made.ranks_per_node, made.cpus_per_rank) == planned


@pytest.mark.parametrize(
    ("resources", "asked", "key", "reason"),
    [
        (Resources(gpus_per_node=4), 2, "resources.gpus_per_node", "is 4, but slurm.gres asks for 2 on each node"),
        (Resources(gpus_per_node=0), 2, "resources.gpus_per_node", "is 0, but slurm.gres asks for 2 on each node"),
        (Resources(), 8, "slurm.gres", "asks for 8 GPUs, but no node there has more than 4"),
        (Resources(ranks_per_node=4), 2, "resources.ranks_per_node", "4 ranks would share 2 GPUs"),
    ],
)
def test_gpus_that_are_asked_for_and_cannot_be(resources, asked, key, reason):
    (problem,) = check(spec(resources=resources), replace(APART, asked_gpus=asked), PROJECT, ())
    assert (problem.key, problem.reason) == (key, reason)


def test_the_time_limit_is_the_end_of_a_run_but_not_on_slurm():
    assert plan(spec()).spec.recovery.time_limit == Budget(0)
    slurm = build(
        spec(),
        (),
        RunIdentity(parse_run_id("r-1"), "/r", "slurm", "slurm", "/p/j", 1.0),
        replace(APART, limit_per_job=True),
        PROJECT,
        CODE,
        "/py",
    )
    assert slurm.spec.recovery.time_limit == Budget(None)
    chosen = spec(recovery=Recovery(time_limit=Budget(3)))
    assert plan(chosen).spec.recovery.time_limit == Budget(3)


def test_all_gpus_on_one_node_leave_the_variable_alone():
    assert plan(spec(), GPU).nodes[0].gpus is None
    assert plan(spec(resources=Resources(gpus_per_node=2)), GPU).nodes[0].gpus == ("0", "1")
    assert plan(spec(resources=Resources(gpus_per_node=0)), GPU).nodes[0].gpus == ()


@pytest.mark.parametrize(
    ("run", "kind", "target", "args"),
    [
        (RunOptions(script="train.py", args=("--a", "1")), "script", "train.py", ("--a", "1")),
        (RunOptions(script="main.py", workdir="pkg"), "script", "pkg/main.py", ()),
        (RunOptions(module="pkg.main"), "module", "pkg.main", ()),
        (RunOptions(command=("bash", "x.sh"), args=("; echo",)), "command", "bash", ("x.sh", "; echo")),
        (RunOptions(command="echo $RANK"), "command", "/bin/sh", ("-c", "echo $RANK", "sh")),
        (RunOptions(command="echo", args=("a b",)), "command", "/bin/sh", ("-c", 'echo "$@"', "sh", "a b")),
    ],
)
def test_entries(run, kind, target, args):
    entry = plan(spec(run)).entry
    assert (entry.kind, entry.target, entry.args) == (kind, target, args)


@pytest.mark.parametrize(
    ("run", "imports", "preload"),
    [
        (RunOptions(script="train.py"), set(), ()),
        (RunOptions(script="train.py"), {"numpy", "tqdm.auto"}, ()),
        (RunOptions(script="train.py"), {"tqdm", "msgspec"}, ("msgspec",)),
        (RunOptions(script="train.py"), {"lightning.pytorch"}, TORCH),
        (RunOptions(script="train.py"), {"torch", "torchvision"}, (*TORCH, "torchvision")),
        (
            RunOptions(script="train.py"),
            {"torch", "torch.nn", "torch.distributed.checkpoint", "torchvision.transforms.v2"},
            (*TORCH, "torch.distributed.checkpoint", "torchvision.transforms.v2"),
        ),
        (RunOptions(module="theirs.train"), {"*"}, (*TORCH, "torchvision")),
        (RunOptions(script="train.py"), {"*"}, (*TORCH, "torchvision")),
        (RunOptions(script="train.py", preload=("numpy",)), {"torch"}, ("numpy",)),
        (RunOptions(script="train.py", preload=()), {"torch"}, ()),
        (RunOptions(command=("x",)), {"torch"}, ()),
    ],
)
def test_the_zygote_imports_what_the_code_needs(run, imports, preload):
    assert plan(spec(run), project=Project("/p", {"train.py"}, imports, True)).entry.preload == preload


@pytest.mark.parametrize(
    ("run", "imports", "vision"),
    [
        (RunOptions(script="train.py"), {"trainer", "trainer.Checkpointer", "torch"}, False),
        (RunOptions(script="train.py"), {"trainer", "torch", "torchvision"}, True),
        (RunOptions(module="trainer.tasks.resnet"), {"*"}, True),
        (RunOptions(module="trainer.tasks.gpt"), {"*"}, False),
        (RunOptions(module="trainer.tasks.newer"), {"*"}, False),
    ],
)
def test_with_the_trainer_installed_all_that_it_needs_is_there_before_ranks_are(run, imports, vision):
    found = plan(spec(run), project=Project("/p", {"train.py"}, imports, True)).entry.preload
    assert found[: len(TORCH)] == TORCH
    assert set(TRAINER) <= set(found)
    assert len(set(found)) == len(found)
    assert ("torchvision" in found) is vision


def test_a_trainer_that_is_part_of_the_code_is_not_taken_from_elsewhere():
    """Its own imports are read, like any code's."""
    imports = {"torch", "torch.distributed.checkpoint", "torch.distributed.checkpoint.planner", "xxhash", "msgspec"}
    found = plan(spec(RunOptions(module="trainer.tasks.gpt")), project=Project("/p", {"trainer/x.py"}, imports, True))
    assert found.entry.preload == (*TORCH, "torch.distributed.checkpoint", "msgspec", "xxhash")


def test_threads_follow_the_cores_unless_the_spec_says_otherwise():
    assert plan(spec()).env["OMP_NUM_THREADS"] == "8"
    assert plan(spec(resources=Resources(cpus_per_rank=3))).env["OMP_NUM_THREADS"] == "3"
    assert plan(spec(env={"OMP_NUM_THREADS": "9"})).env["OMP_NUM_THREADS"] == "9"


def test_a_plan_survives_its_file():
    job = spec(secrets=(Secret("TOKEN"),), resources=Resources(nodes=NodeRange(2, 4)), env={"A": "b\nc"})
    made = plan(job)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made
    assert made.secrets == ("TOKEN",)


def problems(job, machine=CPU, project=PROJECT, unset=()):
    return {(problem.key, problem.hint) for problem in check(job, machine, project, unset)}


def test_what_cannot_work_is_found_all_at_once():
    job = spec(RunOptions(script="other.py"), resources=Resources(gpus_per_node=1))
    found = problems(job, unset=["TOKEN"])
    assert {key for key, _ in found} == {"run.script", "resources.gpus_per_node", "secrets"}
    assert ("run.script", "did you mean jobs/other.py?") in found


@pytest.mark.parametrize(
    ("job", "machine", "key"),
    [
        (spec(RunOptions(script="absent.py")), CPU, "run.script"),
        (spec(RunOptions(script="main.py", workdir="absent")), CPU, "run.workdir"),
        (spec(resources=Resources(ranks_per_node=8)), GPU, "resources.ranks_per_node"),
        (spec(resources=Resources(gpus_per_node=3, nodes=NodeRange(1, 2))), GPU, "resources.gpus_per_node"),
    ],
)
def test_each_impossible_thing_is_named_by_its_key(job, machine, key):
    assert {found for found, _ in problems(job, machine)} == {key}


def test_a_module_that_nobody_finds():
    assert {
        key for key, _ in problems(spec(RunOptions(module="absent")), project=Project("/p", set(), set(), False))
    } == {"run.module"}


@pytest.mark.parametrize(
    ("run", "files", "said"),
    [
        (RunOptions(script="train.py"), {"a/train.py"}, ("'train.py'", "did you mean a/train.py?")),
        (RunOptions(script="train.py", workdir="a"), {"a/b/train.py"}, ("'a/train.py'", "did you mean b/train.py?")),
        (
            RunOptions(script="train.py", workdir="a"),
            {"a/x", "train.py"},
            ("'a/train.py'", "it begins at run.workdir, and train.py is not below that"),
        ),
        (RunOptions(script="train.py"), {"x"}, ("'train.py'", "paths are relative to that folder")),
    ],
)
def test_where_the_script_may_be_instead(run, files, said):
    [misfit] = check_code(spec(run), Project("/p", files, set(), True))
    assert (misfit.reason.split()[2], misfit.hint) == said


def test_a_module_may_be_in_the_pythons_of_the_nodes_alone():
    there = Machine(cpus=8, gpus=(), own_python=True)
    assert problems(spec(RunOptions(module="absent")), there, Project("/p", set(), set(), False)) == set()


def test_more_ranks_than_gpus_is_fine_where_gpus_are_not_used():
    assert problems(spec(resources=Resources(ranks_per_node=8, gpus_per_node=0)), GPU) == set()


@pytest.mark.parametrize(
    ("resources", "machine", "words"),
    [
        (Resources(), CPU, ""),
        (Resources(ranks_per_node=8), CPU, ""),
        (Resources(ranks_per_node=9), CPU, "9 ranks take turns on the 8 cores of this machine"),
        (Resources(ranks_per_node=5, nodes=NodeRange(1, 2)), CPU, "10 ranks take turns on the 8 cores of this machine"),
        (Resources(ranks_per_node=4, cpus_per_rank=2), CPU, ""),
        (
            Resources(ranks_per_node=4, cpus_per_rank=3),
            CPU,
            "4 ranks with 3 threads each take turns on the 8 cores of this machine",
        ),
        (Resources(ranks_per_node=64), APART, ""),
    ],
)
def test_more_than_the_machine_has(resources, machine, words):
    assert crowded(resources, machine) == words


def test_a_module_that_nobody_has_is_a_problem_where_the_interpreter_here_runs_the_ranks():
    lacking = Misfit("run.script", "train.py:3: no module tqdm in .venv", "uv add tqdm")
    project = replace(PROJECT, lacking=(lacking,))
    assert check(spec(), CPU, project, ()) == [lacking]
    assert check(spec(), APART, project, ()) == []
