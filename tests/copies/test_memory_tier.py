"""A node's folder in memory: ours alone, found again by who may use it, gone with who may not."""

import os
import stat

import pytest

from launcher.copies import memory_tier
from launcher.copies.memory_tier import close_tier, open_tier


@pytest.fixture
def memory(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir(mode=0o1777)
    return folder


@pytest.fixture
def run(tmp_path):
    return tmp_path / "runs" / "job-abcd"


def filled(path, text="snapshot"):
    (path / "step-00000001").mkdir()
    (path / "step-00000001" / "rank-00000.data").write_text(text)
    return path


def content(path):
    return (path / "step-00000001" / "rank-00000.data").read_text()


def names(memory):
    return sorted(path.name for path in memory.iterdir())


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_it_is_for_the_user_alone_whatever_the_umask(memory, run, umask):
    before = os.umask(umask)
    try:
        path = open_tier(run, 0, 1, inherit=False, memory=memory)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert path.parent == memory


def test_nodes_and_runs_on_one_machine_have_their_own(memory, run, tmp_path):
    others = [(run, 0), (run, 1), (tmp_path / "elsewhere" / run.name, 0)]
    assert len({open_tier(one, node, 1, inherit=False, memory=memory) for one, node in others}) == 3


def test_a_killed_agents_successor_in_the_same_attempt_finds_everything(memory, run):
    path = filled(open_tier(run, 0, 1, inherit=False, memory=memory))
    path.chmod(0o755)
    assert open_tier(run, 0, 1, inherit=False, memory=memory) == path
    assert content(path) == "snapshot"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_an_attempt_that_follows_by_itself_takes_it_over_and_out_of_older_hands(memory, run):
    old = filled(open_tier(run, 0, 1, inherit=False, memory=memory))
    new = open_tier(run, 0, 2, inherit=True, memory=memory)
    assert content(new) == "snapshot"
    assert not old.exists()
    close_tier(run, 1, 0, memory)  # the older attempt's agent, late
    assert content(new) == "snapshot"
    assert open_tier(run, 0, 2, inherit=True, memory=memory) == new


@pytest.mark.parametrize(("attempt", "inherit"), [(2, False), (3, True)])
def test_what_is_of_another_past_is_cleared_away(memory, run, attempt, inherit):
    """Commit by a person, or with an attempt in between that left nothing here."""
    filled(open_tier(run, 0, 1, inherit=False, memory=memory))
    path = open_tier(run, 0, attempt, inherit=inherit, memory=memory)
    assert names(path) == ["owner.json"]
    assert names(memory) == [path.name]


def test_an_older_agent_that_comes_late_leaves_the_newer_attempts_alone(memory, run):
    new = filled(open_tier(run, 0, 2, inherit=False, memory=memory))
    late = open_tier(run, 0, 1, inherit=True, memory=memory)
    assert late != new
    close_tier(run, 1, 0, memory)
    assert names(memory) == [new.name]
    assert content(new) == "snapshot"


def test_a_node_gives_back_its_own_and_the_end_of_the_run_everybodys(memory, run, tmp_path):
    stranger = filled(open_tier(tmp_path / "other-2222", 0, 1, inherit=False, memory=memory))
    left = [filled(open_tier(run, node, 1, inherit=False, memory=memory)) for node in range(3)]
    close_tier(run, 1, 1, memory)
    assert [path.exists() for path in left] == [True, False, True]
    close_tier(run, 1, memory=memory)
    assert names(memory) == [stranger.name]
    close_tier(run, 1, memory=memory)


def planted_link(path, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "precious").write_text("x")
    path.symlink_to(target)


def planted_file(path, _):
    path.write_text("x")


def planted_folder(path, _):
    if os.getuid() != 0:
        pytest.skip("only root can make a stranger's folder")
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize("plant", [planted_link, planted_file, planted_folder])
def test_whatever_a_stranger_has_planted_is_neither_used_nor_touched(memory, run, tmp_path, plant):
    name = open_tier(run, 0, 1, inherit=False, memory=memory).name
    close_tier(run, 1, memory=memory)
    plant(memory / name, tmp_path)
    before = os.lstat(memory / name)
    path = filled(open_tier(run, 0, 1, inherit=False, memory=memory))
    assert path.name != name
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (os.getuid(), 0o700)
    assert open_tier(run, 0, 1, inherit=False, memory=memory) == path  # the same one for a successor
    assert content(open_tier(run, 0, 2, inherit=True, memory=memory)) == "snapshot"
    close_tier(run, 2, memory=memory)
    assert names(memory) == [name]
    assert os.lstat(memory / name).st_ino == before.st_ino
    assert not (tmp_path / "target").exists() or (tmp_path / "target" / "precious").exists()


def test_a_link_inside_leads_nowhere_when_it_is_cleared_away(memory, run, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (open_tier(run, 0, 1, inherit=False, memory=memory) / "link").symlink_to(precious)
    close_tier(run, 1, memory=memory)
    assert names(memory) == []
    assert (precious / "file").exists()


def test_no_memory_to_be_had_is_said(run, tmp_path):
    with pytest.raises(FileNotFoundError):
        open_tier(run, 0, 1, inherit=False, memory=tmp_path / "absent")
    close_tier(run, 1, memory=tmp_path / "absent")


def test_it_is_memory():
    assert os.path.ismount(memory_tier.MEMORY)
