"""Test that the board serves a run's artifacts and nothing else, and that nothing in them runs."""

import os

import pytest

from launcher.apps.board import artifacts
from tests.apps.board.conftest import opened

PATH = "/api/runs/job-abcd/artifacts"


@pytest.fixture
def folder(house):
    run = house.run().succeeded()
    made = run.path / "code" / "artifacts"
    made.mkdir(parents=True)
    return made


def test_files_are_named_with_what_they_are(board, folder):
    (folder / "deep").mkdir()
    for name in ("a.png", "deep/b.csv", "c.bin"):
        (folder / name).write_bytes(b"x")
    found = board.get(PATH).json()
    kinds = {one["name"]: one["kind"] for one in found["files"]}
    assert kinds == {
        "code/artifacts/a.png": "picture",
        "code/artifacts/deep/b.csv": "table",
        "code/artifacts/c.bin": "other",
    }
    assert (found["folder"], found["more"]) == ("code/artifacts", False)
    assert board.get(f"{PATH}/code/artifacts/deep/b.csv").body == b"x"


def test_a_run_without_any_has_none(board, house):
    house.run().succeeded()
    assert board.get(PATH).json()["files"] == []


def test_what_was_fetched_of_other_machines_is_shown(board, folder):
    there = folder.parents[1] / "fetched-outputs" / "node0" / "artifacts"
    there.mkdir(parents=True)
    (there / "a.md").write_text("# one")
    assert board.get(f"{PATH}/fetched-outputs/node0/artifacts/a.md").body == b"# one"


@pytest.mark.parametrize("name", ["a.svg", "a.html", "a.md", "a.csv", "a.png"])
def test_nothing_runs_in_an_answer(board, folder, name):
    (folder / name).write_text("<script>alert(1)</script>")
    answer = board.get(f"{PATH}/code/artifacts/{name}")
    (policy,) = answer.headers.get_all("content-security-policy")
    words = [part.strip() for part in policy.split(";")]
    assert {"sandbox", "default-src 'none'"} <= {*words}
    assert not [word for word in words if word.startswith(("script-src", "connect-src"))]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"].startswith(artifacts.TYPES[f".{name.partition('.')[2]}"][1].partition(";")[0])


@pytest.mark.parametrize(
    "name",
    [
        "spec.yaml", "secrets.md", "code/artifacts/../secrets.md", "code/artifacts/%2e%2e/%2e%2e/secrets.md",
        "code/artifacts//etc/passwd.md", "code/artifacts/link.md", "code/artifacts/out/secrets.md",
        "code/artifacts/none.md",
        "code/artifacts/pipe.md", "code/artifacts", "code/artifacts/folder.md", "code/artifacts/%00.md",
        "code/other.md",
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(board, folder, name):
    run = folder.parents[1]
    (run / "secrets.md").write_text("secret")
    (folder.parent / "other.md").write_text("secret")
    (folder / "link.md").symlink_to(run / "secrets.md")
    (folder / "out").symlink_to(run)
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    answer = board.get(f"{PATH}/{name}")
    assert answer.status == 404
    assert b"secret" not in answer.body.replace(b"secrets.md", b"")
    assert board.get(PATH).json()["files"] == []


def test_a_folder_that_is_a_link_is_none(board, house, tmp_path):
    run = house.run().succeeded()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.md").write_text("secret")
    (run.path / "code").mkdir(exist_ok=True)
    (run.path / "code" / "artifacts").symlink_to(tmp_path / "theirs")
    assert board.get(PATH).json()["files"] == []
    assert board.get(f"{PATH}/code/artifacts/a.md").status == 404


def test_one_that_is_too_large_is_refused_in_words(board, folder):
    with (folder / "a.csv").open("wb") as file:
        file.truncate(100 << 20)
    answer = board.get(f"{PATH}/code/artifacts/a.csv")
    assert answer.status == 409
    assert "the board shows 16777216 at most" in answer.json()["error"]


def test_of_very_many_the_first_are_named(board, folder):
    for number in range(1005):
        (folder / f"{number}.md").touch()
    found = board.get(PATH).json()
    assert (len(found["files"]), found["more"]) == (1000, True)


def test_nobody_without_the_key_has_one(folder):
    (folder / "a.md").write_text("x")
    with opened() as board:
        assert board.ask(f"{PATH}/code/artifacts/a.md").status == 401
