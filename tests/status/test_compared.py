"""Test the differences between runs, from their folders alone."""

import json

import msgspec
import pytest
from run_folder import RunFolder, plan_of

from launcher.plan.model import FrozenCode
from launcher.run.records import Environment
from launcher.spec.model import JobSpec, Resources, RunOptions
from launcher.states import State
from launcher.status.compared import compared, spec_values
from launcher.status.derive import derive
from launcher.status.facts import read_facts


@pytest.fixture
def sides(tmp_path):
    """Return two runs that succeeded with equal spec, code and results."""
    folders = [RunFolder(tmp_path / "runs" / name).succeeded() for name in ("job-aaaa", "job-bbbb")]
    for folder in folders:
        (folder.path / "code").mkdir()
        folder.write(
            folder.run.environment(1, 0), Environment("n1", "/py", "3.12.4", {"torch": "2.15.0", "numpy": "2"})
        )
    return folders


def comparison(folders):
    return compared([(folder.run, derive(read_facts(folder.path))) for folder in folders])


def plan(folder, **changes):
    folder.write(folder.run.plan, msgspec.structs.replace(plan_of(folder.path), **changes))


def test_of_runs_that_are_alike_only_the_results_are_told(sides):
    found = comparison(sides)
    assert found.runs == ("job-aaaa", "job-bbbb")
    assert found.results["state"] == ("succeeded", "succeeded")
    assert (found.arguments, found.spec, found.environment, found.packages, found.unnoted) == ({}, {}, {}, {}, ())
    assert [one.changes for one in found.code] == [()]


def test_arguments_by_option_and_the_spec_by_the_keys_that_people_write(sides):
    _, other = sides
    before = plan_of(other.path)
    entry = msgspec.structs.replace(before.entry, args=("--lr=0.2", "--amp"))
    spec = JobSpec("job", RunOptions(script="train.py"), resources=Resources(time_s=7200.0), env={"A": "1"})
    plan(other, entry=entry, spec=spec)
    found = comparison(sides)
    assert found.arguments == {"--lr": ("0.1", "0.2"), "--amp": (None, "true")}
    assert found.spec == {"resources.time": (None, "7200 s"), "env.A": (None, "1")}


def test_what_ranks_found_by_what_is_other(sides):
    other = sides[1]
    there = Environment("n2", "/py", "3.13.0", {"torch": "2.16.0", "numpy": "2"}, gpus=("H200", "H200"), driver="570")
    other.write(other.run.environment(1, 0), there)
    other.write(other.run.environment(1, 1), msgspec.structs.replace(there, host="n3"))
    found = comparison(sides)
    assert found.packages == {"torch": ("2.15.0", "2.16.0")}
    assert found.environment == {
        "hosts": ("n1", "n2, n3"), "python": ("3.12.4", "3.13.0"), "driver": (None, "570"), "gpus": (None, "2 H200")
    }  # fmt: skip


def test_of_what_nobody_noted_nothing_is_claimed(sides):
    sides[1].run.environment(1, 0).write_text("{}")
    found = comparison(sides)
    assert (found.unnoted, found.packages) == (("job-bbbb",), {})


def test_of_a_side_without_a_list_of_packages_none_is_called_absent(sides):
    there = Environment("n2", "/py", "3.12.4", {})
    sides[1].write(sides[1].run.environment(1, 0), there)
    found = comparison(sides)
    assert (found.unnoted, found.packages) == (("job-bbbb",), {})


def test_of_a_side_that_recorded_nothing_no_environment_is_called_absent(sides):
    sides[1].run.environment(1, 0).write_text("{}")
    assert comparison(sides).environment.keys() <= {"interpreter"}


def test_code_as_it_was_frozen_by_line(sides):
    for folder, digest, text in zip(sides, "de", ("x = 1\n", "x = 2\n"), strict=True):
        plan(folder, code=FrozenCode(digest * 64, 1, 6))
        pristine = folder.path.parent / ".code" / (digest * 64)
        pristine.mkdir(parents=True)
        (pristine / "train.py").write_text(text)
    ((change,),) = (one.changes for one in comparison(sides).code)
    assert (str(change), change.diff[1:]) == ("train.py: changed +1 -1", ("-x = 1", "+x = 2"))


def test_code_that_is_not_here_is_told(sides):
    plan(sides[1], code=FrozenCode("e" * 64, 1, 6))
    (sides[1].path / "code").rmdir()
    assert [one.unknown for one in comparison(sides).code] == ["the code of job-bbbb is not here"]


def test_results_with_last_and_best(sides):
    for folder, losses in zip(sides, ((3.0, 1.0, 2.0), (0.5,)), strict=True):
        lines = [{"generation": 1}]
        lines += [{"step": step, "at": 1.0, "values": {"loss": loss}} for step, loss in enumerate(losses, 1)]
        folder.run.reported(1, 0).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    sides[1].state(State.FAILED, exit_code=10, ended_at=2.0, restarts={"killed": 2})
    found = comparison(sides)
    assert [(one.last, one.best, one.best_step) for one in found.metrics["loss"]] == [(2.0, 1.0, 2), (0.5, 0.5, 1)]
    assert found.results["restarts"] == (0, 2)


def test_a_plan_that_cannot_be_read_is_no_obstacle(sides):
    sides[1].run.plan.write_text("{")
    assert [one.unknown for one in comparison(sides).code] == ["its plan cannot be read"]


def test_every_kind_of_value_of_a_spec_is_plain():
    values = spec_values(JobSpec("job", RunOptions(script="train.py", preload=("torch",))))
    assert values["run.preload"] == '["torch"]'
    assert (values["checkpoint.memory_limit"], values["resources.nodes"]) == ("8000000000 bytes", "1")
    assert values["recovery.killed.backoff"] == "1 s..60 s"
    assert all(isinstance(value, str | int | float) for value in values.values())
