"""The hint names the command that fits the way in which this copy was installed."""

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from trainer.extras import command_for, install_hint

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
CLONE = "/srv/launch"
GIT = {"url": "https://git.example/launch", "vcs_info": {"vcs": "git", "commit_id": "ab" * 20}}
EDITED = {"url": f"file://{CLONE}", "dir_info": {"editable": True}}
WHEEL = {"url": "file:///downloads/launch_anywhere-0.2.0-py3-none-any.whl", "archive_info": {}}


@pytest.fixture
def command(tmp_path):
    """The command for an environment in which these files lie; folders are shown as HERE."""

    def words(files=None, prefix="env", **facts):
        folder = tmp_path / prefix
        folder.mkdir(exist_ok=True)
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        given = {"packages": ["h11>=0.16"], "source": None, "python": "/py", "with_pip": True, **facts}
        return command_for("board", prefix=folder, **given).replace(str(tmp_path), "HERE")

    return words


def test_an_environment_with_pip_uses_that(command):
    assert command() == "/py -m pip install 'h11>=0.16'"


@pytest.mark.parametrize("source", [None, GIT, WHEEL, EDITED])
def test_one_without_pip_is_filled_by_uv_wherever_launch_came_from(command, source):
    assert command(source=source, with_pip=False) == "uv pip install --python /py 'h11>=0.16'"


def test_a_package_index_is_asked_for_no_name_of_ours(command):
    for source in (None, GIT, WHEEL, EDITED):
        assert "launch" not in command(source=source)


def test_the_own_environment_of_a_checkout_is_synced(command, tmp_path):
    edited = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    said = command(source=edited, prefix=".venv", with_pip=False)
    assert said == "uv sync --project HERE --inexact --no-default-groups --extra board"


def test_a_checkout_in_a_folder_whose_name_has_a_space(tmp_path):
    checkout = tmp_path / "my clone"
    (checkout / ".venv").mkdir(parents=True)
    edited = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    said = command_for("board", packages=["h11"], source=edited, prefix=checkout / ".venv", python="/py")
    assert shlex.split(said)[:4] == ["uv", "sync", "--project", str(checkout)]


def test_a_project_of_uv_gets_them_among_its_dependencies(command, tmp_path):
    (tmp_path / "uv.lock").write_text("")
    assert command(source=GIT, prefix=".venv", with_pip=False) == "uv add --project HERE 'h11>=0.16'"


def receipt(*entries):
    return {"uv-receipt.toml": f"[tool]\nrequirements = [{', '.join(entries)}]\n"}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (None, "launch-anywhere[board]"),
        (GIT, "launch-anywhere[board] @ git+https://git.example/launch"),
        ({**GIT, "vcs_info": {"vcs": "git", "requested_revision": "v0.2.0"}},
         "launch-anywhere[board] @ git+https://git.example/launch@v0.2.0"),
        ({"url": f"file://{CLONE}", "dir_info": {}}, f"launch-anywhere[board] @ file://{CLONE}"),
        (WHEEL, f"launch-anywhere[board] @ {WHEEL['url']}"),
    ],
)  # fmt: skip
def test_a_tool_of_uv_is_installed_anew_from_where_it_came(command, source, wanted):
    said = command(receipt('{ name = "launch-anywhere" }'), source=source, with_pip=False)
    assert shlex.split(said) == ["uv", "tool", "install", wanted]


def test_a_tool_of_uv_keeps_what_it_has(command):
    ours = '{ name = "launch-anywhere", extras = ["sweep"], git = "https://git.example/launch" }'
    said = command(receipt(ours, '{ name = "rich", specifier = ">=13" }'), source=GIT, with_pip=False)
    assert shlex.split(said)[3:] == [
        "--with", "rich>=13", "launch-anywhere[sweep,board] @ git+https://git.example/launch",
    ]  # fmt: skip


def test_pipx_injects(command):
    assert command({"pipx_metadata.json": "{}"}, source=GIT) == "pipx inject launch-anywhere 'h11>=0.16'"


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_has_a_command_in_this_environment(extra):
    assert install_hint(extra).startswith("hint: ")
    assert "launch help install" not in install_hint(extra)


def test_where_nobody_knows_what_an_extra_is_the_page_is_named():
    said = f"hint: {sys.executable} needs the extra 'nope' of launch-anywhere: `launch help install`"
    assert install_hint("nope") == said
