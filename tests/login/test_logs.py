"""Test how logs are fetched from a login node."""

import pytest
from run_folder import RunFolder

from launcher.copies import news
from launcher.copies.mirror import tails
from launcher.copies.mirror.logs import FOLDERS
from launcher.places.login import files
from launcher.places.login.address import Address
from launcher.places.login.messages import LogNews
from launcher.remote.rpc.wire import decoded, encoded

HPC = Address("hpc", "me@hpc", "~/launch", "~/launch", "slurm")


@pytest.fixture
def login_folder(tmp_path, monkeypatch):
    """The run's folder on the login node."""
    folder = tmp_path / "there"
    (folder / "logs" / "a0001.g0001").mkdir(parents=True)

    def ask(_address, request, kind, **_):
        found, more = tails.grown(folder, request.folders, request.known)
        return decoded(encoded(LogNews(tuple(found), more)), kind)

    monkeypatch.setattr(files, "ask", ask)
    monkeypatch.setattr(files, "_passed_over", {})
    return folder


@pytest.mark.parametrize(
    "odd",
    [
        "logs/note.txt",
        "logs/a0001.g0001/a\x1bb.log",
        "logs/a0001.g0001/" + "x" * 220,
        "metrics/a/b/c/d/e/f/g",
        "logs/\udcff",
    ],
)
def test_an_odd_name_keeps_no_log_from_coming(tmp_path, login_folder, monkeypatch, odd):
    """All that came with it was refused, every time."""
    said = []
    monkeypatch.setattr(news, "_listeners", [said.append])
    here = RunFolder(tmp_path / "job-aaaa").run
    (login_folder / odd).parent.mkdir(parents=True, exist_ok=True)
    (login_folder / odd).write_text("odd\n")
    log = login_folder / "logs" / "a0001.g0001" / "rank-00000.log"
    for number in range(2):
        with log.open("a") as file:
            file.write(f"{number}\n")
        files._bring_from(files.RemoteRun(here, HPC, "job-bbbb", 1), tails.sizes(here.path, FOLDERS))
    assert {
        path.name: path.read_text() for path in here.path.rglob("*") if path.is_file() and path.parent != here.path
    } == {"rank-00000.log": "0\n1\n"}
    assert len(said) == (0 if "\udcff" in odd else 1)


def test_logs_of_roles_come_into_those_that_our_plan_has(tmp_path, login_folder):
    here = RunFolder(tmp_path / "job-aaaa").run
    (here.roles / "actors").mkdir(parents=True)
    for name in ("roles/actors/logs/a0001.g0001/rank-00000.log", "roles/strangers/logs/a0001.g0001/rank-00000.log"):
        (login_folder / name).parent.mkdir(parents=True)
        (login_folder / name).write_text("hello\n")
    (login_folder / "roles/actors/metrics").mkdir()
    (login_folder / "roles/actors/metrics/reported.n000.a0001.jsonl").write_text("{}\n")
    files._bring_from(files.RemoteRun(here, HPC, "job-bbbb", 2), {})
    assert sorted(str(path.relative_to(here.roles)) for path in here.roles.rglob("*") if path.is_file()) == [
        "actors/logs/a0001.g0001/rank-00000.log",
        "actors/metrics/reported.n000.a0001.a0002.jsonl",
    ]
