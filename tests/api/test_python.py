"""Test the parts of the Python API that no command uses."""

import json
import time

import pytest
from run_folder import RunFolder

import launcher
from launcher import api
from launcher.errors import BadInput
from launcher.run import registry
from launcher.status.series import each_step


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def folder_of(tmp_path, name):
    folder = RunFolder(tmp_path / "runs" / name)
    registry.register(name, folder.path, fsync=False)
    return folder


def report(folder, *steps):
    folder.run.metrics.mkdir(exist_ok=True)
    path = folder.run.reported(1, 0)
    path.exists() or path.write_text('{"generation": 1}\n')
    with path.open("a") as file:
        file.writelines(f"{json.dumps({'step': step, 'at': 1.0, 'values': {'loss': 1 / step}})}\n" for step in steps)


def test_a_run_by_its_id_its_beginning_and_as_the_last(tmp_path):
    folder_of(tmp_path, "job-abcd").succeeded()
    assert {launcher.Run.get(ref) for ref in ("job-abcd", "job-a", "last")} == {api.run("job-abcd")}


def test_the_first_that_has_ended(tmp_path):
    going, over = folder_of(tmp_path, "job-aaaa").running(), folder_of(tmp_path, "job-bbbb").succeeded()
    runs = [api.run(folder.run.id) for folder in (going, over)]
    assert launcher.wait_any(runs) == runs[1]
    with pytest.raises(TimeoutError, match="none of 1 runs has ended after 0 s"):
        launcher.wait_any(runs[:1], timeout_s=0.0)
    with pytest.raises(ValueError, match="got none"):
        launcher.wait_any([])


def test_runs_come_the_newest_first(tmp_path):
    for name in ("job-bbbb", "job-aaaa", "job-cccc"):
        folder_of(tmp_path, name).succeeded()
    assert [str(one.id) for one in launcher.runs()] == ["job-cccc", "job-aaaa", "job-bbbb"]


def test_runs_are_a_list_that_a_notebook_shows_as_a_table(tmp_path):
    folder_of(tmp_path, "job-aaaa").succeeded()
    runs = launcher.runs()
    assert isinstance(runs, list)
    assert "<td>job-aaaa</td>" in runs._repr_html_()
    assert "<b>job-aaaa</b>" in runs[0]._repr_html_()


def test_metrics_step_by_step(tmp_path):
    folder = folder_of(tmp_path, "job-aaaa").succeeded()
    report(folder, 1, 2, 4)
    assert [(step, row["loss"]) for step, row in api.run("job-aaaa").iter_metrics()] == [(1, 1.0), (2, 0.5), (4, 0.25)]
    assert [step for step, _ in api.run("job-aaaa").iter_metrics(follow=True)] == [1, 2, 4]


def test_a_step_comes_once_nothing_is_added_to_it_any_more(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, "job-aaaa")
    looks = iter([lambda: report(folder, 1, 2), lambda: None, lambda: report(folder, 2, 3), lambda: report(folder, 3)])
    monkeypatch.setattr(time, "sleep", lambda _: None)
    told = []

    def over():
        told.append(list(found))
        look = next(looks, None)
        if look is not None:
            look()
        return look is None

    found = []
    for step, _ in each_step(folder.run, over):
        found.append(step)
    assert told == [[], [1], [1], [1, 2], [1, 2]]
    assert found == [1, 2, 3]


def test_what_is_wrong_with_a_spec_of_a_program_is_said_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")
    good = {"name": "job", "run": {"script": "train.py"}}
    launcher.api.validate(good)
    with pytest.raises(BadInput) as caught:
        launcher.api.validate({**good, "resources": {"nodes": "two"}})
    assert caught.value.lines[0].startswith("spec: resources.nodes: expected")
    with pytest.raises(BadInput) as caught:
        launcher.submit_many([good, {"name": "job", "run": {"script": "none.py"}}])
    assert caught.value.lines[0].startswith("specs[1]: run.script: ")
    assert launcher.runs() == []
