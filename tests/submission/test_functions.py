"""A call as files of the code, and what comes back, without running anything."""

import functools
import importlib
import pickle
import sys
import threading
import time
import types

import pytest
from run_folder import RunFolder

import launcher
from launcher.errors import BadInput, Refused, RunFailed
from launcher.run.code.hashes import content_hashes
from launcher.run.code.listing import CodeFile, list_again, list_code, with_files
from launcher.spec.model import Code
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.submission import call_there
from launcher.submission.functions import as_job, call_of, is_function, result_of


def train(lr, data=None):
    return lr


class Evil:
    def __reduce__(self):
        return (print, ("this ran",))


def called(function=train, *args, **given):
    return call_of(function, args, given)


def test_a_function_is_told_from_a_spec():
    assert all(map(is_function, (train, functools.partial(train, 1), len, lambda: 1)))
    assert not any(map(is_function, ("job.yaml", {"name": "x"}, Code(), types.SimpleNamespace(name="x"))))
    with pytest.raises(TypeError, match="only a function takes arguments, got 'lr'"):
        launcher.submit({"name": "x"}, lr=0.1)


def test_options_of_the_run_are_told_from_arguments():
    call = called(train, 0.1, data="x", resources={"nodes": 2}, name="big")
    assert (call.args, call.more, call.spec) == ((0.1,), {"data": "x"}, {"resources": {"nodes": 2}, "name": "big"})
    given = called(functools.partial(train, 0.2, data="y"), data="z")
    assert (given.function, given.args, given.more) == (train, (0.2,), {"data": "z"})


def test_a_parameter_that_is_called_as_an_option_goes_by_partial():
    def named(name):
        return name

    with pytest.raises(BadInput, match="name: is both a parameter of named and an option of the run"):
        called(named, name="x")
    both = called(functools.partial(named, name="a"), name="b")
    assert (both.more, both.spec) == ({"name": "a"}, {"name": "b"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "train: missing a required argument: 'lr'\nhint: options of the run are "),
        ({"lr": 1, "resource": {}}, "got an unexpected keyword argument 'resource'\nhint: did you mean resources=...?"),
        ({"lr": 1, "run": {"script": "x.py"}}, "run.script: train is what runs"),
        ({"lr": time.sleep, "data": threading.Lock()}, "train: it or its arguments cannot be pickled"),
    ],
)
def test_what_cannot_be_called_is_said_before_anything_starts(tmp_path, given, said):
    with pytest.raises(BadInput) as caught, as_job(called(train, **given), tmp_path):
        pass
    assert said in str(caught.value)


def test_what_is_frozen_of_a_call(tmp_path, monkeypatch):
    (tmp_path / "own_work.py").write_text("import json as js\ndef fit(x): return js.dumps(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    own_work = importlib.import_module("own_work")

    own_work.torch = types.ModuleType("torch")
    with as_job(called(own_work.fit, [1], run={"outputs": ["figures/"]}), tmp_path) as (spec, files):
        assert spec == {
            "name": "fit", "description": "fit(…), imported from own_work",
            "run": {"outputs": ["figures/", "launch_result/"], "script": "launch_function.py"},
        }  # fmt: skip
        script = files["launch_function.py"].read_text()
        assert "    import own_work\n    import torch\n" in script
        assert script.endswith(f"main('own_work', 'fit', {['.']!r}, {sys.version_info[:2]!r})\n")
        assert pickle.loads(files["launch_function.pkl"].read_bytes()) == (None, ([1],), {})
    sys.modules.pop("own_work")


def test_without_cloudpickle_only_what_can_be_imported_is_taken(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    needed = "cannot be imported by ranks, and needs cloudpickle\nhint: python -m pip"
    with pytest.raises(BadInput, match=needed), as_job(called(lambda: 1), tmp_path):
        pass
    with as_job(called(time.sleep, 1), tmp_path) as (spec, _):
        assert spec["description"] == "sleep(1), imported from time"


def test_cloudpickle_goes_along_where_it_is_needed(tmp_path):
    with as_job(called(lambda: 1), tmp_path) as (spec, files):
        assert spec["description"] == "<lambda>(), the function is pickled by cloudpickle"
        assert {"launch_modules/cloudpickle/__init__.py", "launch_modules/cloudpickle/cloudpickle.py"} <= set(files)
    with as_job(called(time.sleep, 1), tmp_path) as (_, files):
        assert set(files) == {"launch_function.py", "launch_function.pkl"}


def test_files_beside_the_code_are_part_of_it(tmp_path):
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    for path, text in ((project / "a.py", "a"), (project / "call.py", "old"), (other, "longer")):
        path.write_text(text)
    code = with_files(list_code(project, Code()), {"call.py": other, "z": other})
    assert [*code.files] == [CodeFile("a.py", 1, False), CodeFile("call.py", 6, False), CodeFile("z", 6, False)]
    hashes = content_hashes(code, "frozen")
    assert hashes["call.py"] == hashes["z"] != hashes["a.py"]
    assert list_again(code) == code


class FakeTensor:
    shape = ()

    def item(self):
        return 0.5


@pytest.mark.parametrize(
    ("value", "comes"),
    [(None, None), ({1: [(2.5, b"x")], "s": {3}}, None), (FakeTensor(), 0.5), ([FakeTensor()], [0.5])],
)
def test_plain_data_comes_back_as_it_was(tmp_path, value, comes):
    folder = ended(tmp_path)
    left(folder, 0, call_there.returned("f", value))
    assert result(folder) == (value if comes is None else comes)


def test_what_is_pickled_is_loaded_only_where_the_user_says_so(tmp_path, capsys):
    folder = ended(tmp_path)
    left(folder, 0, {"kind": "pickle", "what": "numpy.ndarray", "value": pickle.dumps(Evil())})
    with pytest.raises(Refused, match=r"returned a numpy.ndarray, which is pickled(.|\n)*unpickle=True"):
        result(folder)
    assert capsys.readouterr().out == ""
    result(folder, unpickle=True)
    assert capsys.readouterr().out == "this ran\n"


@pytest.mark.parametrize(
    "data", [pickle.dumps(Evil()), pickle.dumps({"kind": "value", "value": Evil()}), b"", b"\x80\x04."]
)
def test_a_file_that_is_no_result_runs_nothing(tmp_path, capsys, data):
    folder = ended(tmp_path)
    path = folder.run.outputs / call_there.RESULTS / "rank-00000.pkl"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(RunFailed, match="is no result"):
        result(folder)
    assert capsys.readouterr().out == ""


def test_the_first_error_of_the_newest_generation_is_raised(tmp_path):
    folder = failed(tmp_path)
    left(folder, 0, call_there.raised(KeyError("late")), generation=2, at=9.0)
    left(folder, 1, call_there.raised(OSError(2, "first")), generation=2, at=5.0)
    left(folder, 2, call_there.raised(ValueError("before")), generation=1, at=1.0)
    with pytest.raises(FileNotFoundError, match="first") as caught:
        result(folder)
    assert caught.value.__notes__ == ["In job-abcd:\nFileNotFoundError: [Errno 2] first\n"]
    assert isinstance(caught.value.__cause__, RunFailed) and caught.value.__cause__.exit_code == 10


def test_an_exception_that_python_does_not_have_is_told(tmp_path):
    folder = failed(tmp_path)
    left(folder, 0, {**call_there.raised(UnicodeDecodeError("utf8", b"x", 0, 1, "bad")), "args": ("x",)})
    with pytest.raises(RunFailed, match=r"has raised builtins\.UnicodeDecodeError"):
        result(folder)
    left(folder, 0, {**call_there.raised(ValueError()), "what": "builtins.exit"})
    with pytest.raises(RunFailed, match=r"has raised builtins\.exit"):
        result(folder)


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def test_an_exception_that_cannot_be_made_again_is_told_too(tmp_path):
    folder = failed(tmp_path)
    left(folder, 0, call_there.raised(Odd(1, 2)))
    with pytest.raises(RunFailed, match=r"Odd: 1 2") as caught:
        result(folder, unpickle=True)
    assert caught.value.exit_code == 10 and "Odd: 1 2" in caught.value.__notes__[0]


def test_an_error_of_a_generation_that_was_restarted_is_not_the_run_s(tmp_path):
    folder = failed(tmp_path)
    left(folder, 0, call_there.raised(ValueError("mended by a restart")), generation=0)
    with pytest.raises(RunFailed, match="job-abcd is failed"):
        result(folder)


def test_where_no_rank_has_left_anything(tmp_path):
    with pytest.raises(RunFailed, match="job-abcd has succeeded, and rank 0 has left no result"):
        result(ended(tmp_path))
    with pytest.raises(RunFailed, match="job-efgh is failed"):
        result(failed(tmp_path, "job-efgh"))


def ended(tmp_path):
    return RunFolder(tmp_path / "job-abcd").succeeded()


def failed(tmp_path, name="job-abcd"):
    return RunFolder(tmp_path / name).failed()


def left(folder, rank, found, generation=1, at=1.0):
    path = folder.run.outputs / "node0" / call_there.RESULTS / f"rank-{rank:05d}.pkl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({"attempt": 1, "generation": generation, "at": at, **found}, protocol=4))


def result(folder, *, unpickle=False):
    return result_of(folder.run, derive(read_facts(folder.path)), unpickle=unpickle)
