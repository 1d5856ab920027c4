import os
import stat

import msgspec
import pytest

from launcher.errors import BadInput, NoSuchRun
from launcher.ids import parse_run_id
from launcher.run.durable import write_record
from launcher.run.layout import RunDir
from launcher.run.registry import find, forget, gone, is_registered, register, registered, runs_root


class Aged(msgspec.Struct):
    submitted_at: float


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    return tmp_path / "state"


@pytest.fixture
def add(tmp_path):
    def add(run_id, submitted_at=None, record="state"):
        path = tmp_path / "runs" / run_id
        path.mkdir(parents=True)
        if submitted_at is not None:
            write_record(getattr(RunDir(path), record), Aged(submitted_at))
        register(run_id, path)
        return path

    return add


def test_without_a_folder_there_are_no_runs():
    assert registered() == [] and gone() == []
    with pytest.raises(NoSuchRun, match="there is no run yet"):
        find("last")


def test_a_run_is_found_by_its_id_and_by_a_unique_beginning(add):
    one, two = add("resnet-2345"), add("resnet-789a")
    assert find("resnet-2345") == ("resnet-2345", one)
    assert find("resnet-7") == ("resnet-789a", two)
    assert sorted(registered()) == [("resnet-2345", one), ("resnet-789a", two)]


def test_an_id_that_is_the_beginning_of_another_is_itself(add):
    short = add("x-2345")
    add("x-2345-6789")
    assert find("x-2345") == ("x-2345", short)


def test_an_ambiguous_beginning_names_the_candidates(add):
    for run_id in ("resnet-2345", "resnet-789a", "bert-2345"):
        add(run_id)
    with pytest.raises(NoSuchRun, match="resnet-2345, resnet-789a") as caught:
        find("resnet")
    assert "bert" not in str(caught.value)


def test_a_near_miss_is_suggested(add):
    add("resnet-2345")
    with pytest.raises(NoSuchRun, match="did you mean resnet-2345"):
        find("resent-2345")


def test_last_is_by_what_the_runs_say_and_not_by_times_of_files(add):
    add("old-2345", 100.0)
    newest = add("new-2345", 300.0)
    add("plan-2345", 200.0, record="plan")
    add("nothing-2345")
    os.utime(newest, (0, 0))
    os.utime(newest / "state.json", (0, 0))
    assert find("last") == ("new-2345", newest)


def test_a_damaged_state_falls_back_to_the_plan(add):
    add("old-2345", 100.0)
    path = add("hurt-2345", 200.0, record="plan")
    (path / "state.json").write_text("{")
    assert find("last") == ("hurt-2345", path)


def test_a_taken_id_is_refused(add, tmp_path):
    path = add("run-2345")
    with pytest.raises(FileExistsError):
        register("run-2345", tmp_path)
    assert find("run-2345") == ("run-2345", path)


def test_of_all_that_register_an_id_one_wins(race, tmp_path):
    def take(number):
        mine = tmp_path / f"{os.getpid()}"
        mine.mkdir(exist_ok=True)
        register(f"run-{number}", mine)
        return str(mine)

    for number, results in enumerate(race(take)):
        winners = [result for result in results if result != "FileExistsError"]
        assert winners == [str(dict(registered())[f"run-{number}"])]


def test_a_run_whose_folder_is_gone_is_no_error(add):
    path = add("run-2345")
    other = add("other-2345", 1.0)
    path.rmdir()
    assert gone() == [("run-2345", path)]
    assert find("last") == ("other-2345", other)
    with pytest.raises(NoSuchRun, match="its folder is gone"):
        find("run")


def test_forgetting_is_quiet_and_leaves_the_folder(add):
    path = add("run-2345")
    assert is_registered("run-2345")
    forget("run-2345")
    forget("run-2345")
    assert not is_registered("run-2345") and path.is_dir()


EVIL = [
    "",
    ".",
    "..",
    "../runs",
    "/",
    "/etc",
    "a/b",
    "a\0b",
    "x" * 300,
    "\n",
    "-rf",
    "é",
    "\udcff",
    "*",
    "[",
    "last/..",
]


@pytest.mark.parametrize("ref", EVIL, ids=ascii)
def test_a_reference_never_becomes_a_path(add, ref):
    add("run-2345")
    with pytest.raises(NoSuchRun):
        find(ref)
    with pytest.raises(BadInput, match="expected the id of a run"):
        parse_run_id(ref)


def test_what_others_put_into_the_folder_is_passed_over(add, state_home):
    path = add("run-2345")
    folder = state_home / "launch" / "runs"
    (folder / "a-file").touch()
    (folder / "A link").symlink_to("/etc")
    assert registered() == [("run-2345", path)]


def test_the_folder_is_for_the_user_alone(state_home):
    before = os.umask(0)
    try:
        register("run-2345", state_home)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (state_home, state_home / "launch" / "runs")}
    assert modes == {0o700}


def test_the_runs_root_is_in_the_project_and_git_ignores_it(tmp_path):
    root = runs_root(tmp_path)
    assert root == tmp_path / ".launch" / "runs" and not root.exists()
    assert runs_root(tmp_path, create=True) == root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert (tmp_path / ".launch" / ".gitignore").read_text() == "*\n"
    assert runs_root(tmp_path, create=True) == root


def test_launch_runs_names_another_root(tmp_path, monkeypatch):
    monkeypatch.setenv("LAUNCH_RUNS", "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert runs_root(tmp_path / "project", create=True) == tmp_path / "elsewhere"
    assert os.listdir(tmp_path / "elsewhere") == []
