"""Test what a host reports of itself, or the error that names it, and which of its folders are trusted."""

import json
import os
import sys
import time
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import LaunchError
from launcher.places.ssh import probe_there
from launcher.places.ssh.facts import Facts, Surveyed, facts_of, survey
from launcher.remote.parallel import failures, for_all
from launcher.remote.running import Done
from launcher.spec.model import SshHost
from launcher.supervisor.slots.table import CPU, GPU, occupancy
from tests.places.ssh.test_choose import FACTS
from tests.sizes import SCALE

GOOD = msgspec.to_builtins(FACTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(st.text(max_size=10), below, max_size=5),
    max_leaves=10,
)
ODD = [
    ("cpus", -1), ("cpus", "many"), ("clock", 1e300), ("gpus", [-1]), ("gpus", list(range(5000))), ("workdir", "x"),
    ("workdir", "/a\nb"), ("tag", "../../x"), ("tag", ""), ("version", [3]), ("python", "\x1b[2J"), ("missing", ["os"]),
    ("address", "a b"), ("address", "-oProxyCommand=x y"), ("disk_free", -5), ("memory", 1 << 80), ("torch", "2\n3"),
    ("exposed", None), ("user", "\u202eme"),
]  # fmt: skip


class SaysOfItself:
    def __init__(self, facts):
        self._said = probe_there.MARK.encode() + json.dumps(facts).encode() + b"\n"

    def run(self, _words, limit_s):
        return Done(0, b"Welcome\n" + self._said, b"")


@pytest.mark.parametrize(("name", "value"), ODD, ids=lambda value: str(value)[:20])
def test_odd_facts_of_one_host_are_its_own_trouble(name, value):
    """They ended `launch nodes list` and `submit` with an internal error."""
    lines = {"fine": SaysOfItself(GOOD), "odd": SaysOfItself(GOOD | {name: value})}
    results = for_all(lines, lambda host, line: survey(line, SshHost(host)))
    assert isinstance(results["fine"], Surveyed)
    assert failures(results)["odd"].lines[0].startswith("odd: its answer about itself is invalid: ")


@settings(max_examples=200 * SCALE)
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON, max_size=4) | JSON | st.text() | st.binary())
def test_any_facts_are_facts_or_an_error_that_names_the_host(said):
    if isinstance(said, dict) and said.keys() <= GOOD.keys():
        said = json.dumps(GOOD | said)
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    text = text if isinstance(text, str) else json.dumps(text)
    began = time.monotonic()
    try:
        facts = facts_of(text, "node0")
    except LaunchError as error:
        assert error.lines[0].startswith("node0: ")
    else:
        found = Surveyed(SshHost("node0"), facts, 0.0, 0.0)
        assert found.taken(GPU) >= 0 and found.taken(CPU) >= 0 and isinstance(facts, Facts)
    assert time.monotonic() - began < 30


@settings(max_examples=200 * SCALE)
@given(st.lists(st.text(max_size=120) | st.from_regex(r"launch/(held|waits)/[0-9a-f]*/?(gpu|cpu)/[0-9]+/[^\n]*")))
def test_any_names_of_sockets_are_read(names):
    seen = occupancy("\n".join(f"0000000000000000: 00000002 00000000 00000000 0001 01 4711 @{name}" for name in names))
    assert all(one.user.isprintable() and one.run.isprintable() for one in (*seen.held, *seen.waiting))


def test_a_disk_without_an_end_is_a_disk(tmp_path, monkeypatch, capsys):
    """A file system in a cloud, of 2**63 bytes, had its host refused."""
    endless = SimpleNamespace(f_bavail=1 << 43, f_frsize=1 << 20, f_files=1, f_favail=(1 << 64) - 1)
    monkeypatch.setattr(os, "statvfs", lambda _folder: endless)
    probe_there.main(json.dumps({"workdir": str(tmp_path)}))
    facts = facts_of(capsys.readouterr().out.removeprefix(probe_there.MARK), "node0")
    assert min(facts.disk_free, facts.inodes_free) >= 1 << 60


def test_the_version_of_torch_is_in_the_name_of_its_metadata(tmp_path, monkeypatch, capsys):
    (tmp_path / "torch-2.9.1+cu130.dist-info").mkdir()
    (tmp_path / "torch_geometric-2.7.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path)])
    probe_there.main(json.dumps({"workdir": str(tmp_path)}))
    assert facts_of(capsys.readouterr().out.removeprefix(probe_there.MARK), "node0").torch == "2.9.1+cu130"


def test_many_nested_brackets_are_an_error():
    with pytest.raises(LaunchError, match="node0: "):
        facts_of("[" * 100_000, "node0")


@pytest.fixture
def workdir(tmp_path):
    tmp_path.chmod(0o700)
    folder = tmp_path / "scratch" / "me" / "launch"
    for name in ("runs", "code", "lib"):
        (folder / name).mkdir(parents=True, mode=0o700)
    for path in (folder, *list(folder.parents)[:2]):
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("name", "bits", "refused"),
    [
        ("", 0o777, True),
        ("..", 0o777, True),
        ("../..", 0o777, True),
        ("../..", 0o1777, False),
        ("runs", 0o770, True),
        ("", 0o775, True),
        ("..", 0o775, True),
        ("..", 0o755, False),
        ("lib", 0o1777, True),
        ("code", 0o700, False),
    ],
)
def test_a_folder_that_others_could_write_is_not_used(workdir, name, bits, refused):
    """A parent, or a group, that could was not looked at."""
    place = (workdir / name).resolve()
    os.chown(place, os.getuid(), 65534)
    place.chmod(bits)
    assert probe_there._exposed(str(workdir)) == (str(place) if refused else "")


def test_a_folder_of_somebody_else_on_the_way_is_not_used(workdir):
    if os.geteuid():
        pytest.skip("needs root")
    os.chown(workdir.parent, 65534, 65534)
    assert probe_there._exposed(str(workdir)) == str(workdir.parent)


def test_a_link_is_looked_through(workdir, tmp_path):
    (tmp_path / "way").symlink_to(workdir.parent)
    assert probe_there._exposed(str(tmp_path / "way" / "launch")) == ""
    workdir.parent.chmod(0o777)
    assert probe_there._exposed(str(tmp_path / "way" / "launch")) == str(workdir.parent)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert probe_there._exposed(str(tmp_path / "loop")) == str(tmp_path / "loop")


def test_a_folder_that_is_not_there_yet_is_fine(tmp_path):
    assert probe_there._exposed(str(tmp_path / "new" / "launch")) == ""
