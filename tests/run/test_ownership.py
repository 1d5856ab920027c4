"""Another user of the machine, a real one: what they can write to is neither used nor taken for ours."""

import grp
import os
import pwd
import shutil

import pytest

from launcher.errors import BadInput
from launcher.ids import parse_run_id
from launcher.places.ssh import probe_there
from launcher.run import registry
from launcher.run.code.freezing import freeze
from launcher.run.code.listing import list_frozen
from launcher.run.ownership import is_ours_alone, own_part, refuse_exposed
from launcher.run.registry import register, registered, runs_root
from tests.other_users import ALICE, MALLORY, as_user, folder_of, shared  # noqa: F401

RUN = parse_run_id("job-2345")


@pytest.fixture
def project(shared):  # noqa: F811
    """Alice's, which she alone can write to."""
    path = folder_of(ALICE, shared / "alice" / "project", 0o755)
    os.chown(path.parent, ALICE, ALICE)
    (path / "train.py").write_text("good = 1\n")
    return path


def root_of(project):
    return as_user(ALICE, lambda: str(runs_root(project, create=True)))


def test_two_users_of_one_root_have_a_folder_each(shared, project, monkeypatch):  # noqa: F811
    common = folder_of(0, shared / "runs", 0o1777)
    monkeypatch.setenv("LAUNCH_RUNS", str(common))

    def submit():
        root = runs_root(project, create=True)
        freeze(list_frozen(project), root / ".code", root / "run" / "code")
        return str(root)

    assert [as_user(uid, submit) for uid in (ALICE, MALLORY)] == [f"{common}/{ALICE}", f"{common}/{MALLORY}"]
    assert all(is_ours_alone_as(uid, common / str(uid)) for uid in (ALICE, MALLORY))
    assert as_user(ALICE, submit).startswith("FileExistsError"), "the run is there; the root is used again"


def is_ours_alone_as(uid, path):
    return as_user(uid, lambda: is_ours_alone(path) and own_part(path) == path)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o2775])
def test_a_root_that_others_can_write_to_is_refused(shared, project, monkeypatch, mode):  # noqa: F811
    common = folder_of(ALICE, shared / "runs", mode)
    os.chown(common, ALICE, MALLORY)
    monkeypatch.setenv("LAUNCH_RUNS", str(common))
    said = root_of(project)
    assert said.startswith(f"BadInput: LAUNCH_RUNS: {common}: other users can write to it")
    assert "hint: LAUNCH_RUNS=$HOME/runs names another folder" in said
    assert os.listdir(common) == []


@pytest.mark.parametrize("depth", [1, 2])
def test_a_root_below_a_folder_that_others_can_write_to_is_refused(shared, project, monkeypatch, depth):  # noqa: F811
    above = folder_of(ALICE, shared / "open", 0o777)
    root = folder_of(ALICE, above.joinpath(*"abc"[:depth]))
    os.chown(above / "a", ALICE, ALICE)
    monkeypatch.setenv("LAUNCH_RUNS", str(root))
    assert root_of(project).startswith(f"BadInput: LAUNCH_RUNS: {above}: other users can write to it")
    above.chmod(0o1777)
    assert root_of(project) == str(root)


def test_a_root_in_somebody_elses_folder_is_refused(shared, project, monkeypatch):  # noqa: F811
    theirs = folder_of(MALLORY, shared / "mallory", 0o755)
    root = folder_of(ALICE, theirs / "runs")
    monkeypatch.setenv("LAUNCH_RUNS", str(root))
    assert root_of(project).startswith(f"BadInput: LAUNCH_RUNS: {theirs}: belongs to another user ({MALLORY})")


@pytest.mark.parametrize("made", ["folder", "link", "file", "fifo"])
def test_what_another_has_put_in_the_place_of_ours_is_refused(shared, project, monkeypatch, made):  # noqa: F811
    common = folder_of(0, shared / "runs", 0o1777)
    (shared / "loot").mkdir(mode=0o777)
    (shared / "loot").chmod(0o777)
    mine = common / str(ALICE)
    make = {"folder": mine.mkdir, "link": lambda: mine.symlink_to(shared / "loot"), "file": mine.touch}
    make["fifo"] = lambda: os.mkfifo(mine)
    as_user(MALLORY, make[made])
    monkeypatch.setenv("LAUNCH_RUNS", str(common))
    assert root_of(project).startswith(f"BadInput: LAUNCH_RUNS: {mine}: belongs to another user ({MALLORY})")
    assert os.listdir(shared / "loot") == []


def test_links_are_as_good_as_where_they_are_and_where_they_lead(shared):  # noqa: F811
    home = folder_of(0, shared / "home")
    sticky = folder_of(0, shared / "sticky", 0o1777)
    (sticky / "mine").symlink_to("../home/.")
    refuse_exposed(sticky / "mine", "x")
    as_user(MALLORY, lambda: (sticky / "theirs").symlink_to(home))
    with pytest.raises(BadInput, match=rf"sticky/theirs: belongs to another user \({MALLORY}\)"):
        refuse_exposed(sticky / "theirs", "x")
    (shared / "out").symlink_to("sticky")
    with pytest.raises(BadInput, match="sticky: other users can write to it"):
        refuse_exposed(shared / "out", "x")
    (shared / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="loop/a: leads nowhere"):
        refuse_exposed(shared / "loop" / "a", "x")


def test_the_projects_owner_may_be_another(shared, project):  # noqa: F811
    """Root in a container submits from a folder that is the user's outside."""
    assert runs_root(project, create=True) == project / ".launch" / "runs"
    assert root_of(project).startswith(f"BadInput: runs: {project}/.launch/runs/{ALICE}: cannot be made: Permission")


@pytest.mark.parametrize("opened", ["above", "project"])
def test_who_can_write_to_the_project_can_change_its_code_anyway(shared, opened):  # noqa: F811
    lab = folder_of(0, shared / "lab", 0o755)
    project = folder_of(0 if opened == "project" else ALICE, lab / "project", 0o755)
    common = project if opened == "project" else lab
    os.chown(common, 0, ALICE)  # a group of several, which has no name here
    common.chmod(0o2775)
    assert root_of(project) == f"{project}/.launch/runs"
    (project / ".launch").chmod(0o777)
    assert root_of(project).startswith(f"BadInput: runs: {project}/.launch: other users can write to it")
    shutil.rmtree(project / ".launch")
    project.chmod(0o777)
    as_user(MALLORY, (project / ".launch").mkdir)
    assert f"{project}/.launch: belongs to another user ({MALLORY})" in root_of(project)


def test_root_keeps_runs_in_whosever_folder_it_was_given(shared, project, monkeypatch):  # noqa: F811
    """Root in a container, where the user outside is another."""
    given = folder_of(ALICE, shared / "given", 0o775)
    monkeypatch.setenv("LAUNCH_RUNS", str(given / "runs"))
    assert runs_root(project, create=True) == given / "runs"
    given.chmod(0o777)
    with pytest.raises(BadInput, match=r"LAUNCH_RUNS: .*given: other users can write to it"):
        runs_root(project, create=True)


def test_code_that_another_left_in_the_store_is_never_a_runs(project):
    """The same size, the same name: that was enough once."""
    store = project.parent / ".code"

    def freeze_as_alice(number):
        target = project.parent / f"run-{number}"
        as_user(ALICE, lambda: freeze(list_frozen(project), store, target).code.digest)
        return (target / "train.py").read_text()

    assert freeze_as_alice(0) == "good = 1\n"
    (pristine,) = (path for path in store.iterdir() if len(path.name) == 64)

    def plant():
        pristine.mkdir()
        (pristine / "train.py").write_text("evil = 1\n")

    shutil.rmtree(pristine)
    store.chmod(0o777)
    as_user(MALLORY, plant)
    store.chmod(0o700)  # closed meanwhile
    assert freeze_as_alice(1) == "good = 1\n"
    assert (pristine / "train.py").stat().st_uid == ALICE
    store.chmod(0o711)
    (pristine / "train.py").chmod(0o666)
    pristine.chmod(0o755)
    as_user(MALLORY, lambda: (pristine / "train.py").write_text("evil = 1\n"))
    assert (pristine / "train.py").read_text() == "evil = 1\n"
    assert freeze_as_alice(2) == "good = 1\n"


def test_a_store_that_another_owns_is_replaced(shared, project):  # noqa: F811
    root = folder_of(ALICE, shared / "runs", 0o777)
    as_user(MALLORY, lambda: (root / ".code").mkdir(mode=0o777))
    as_user(MALLORY, lambda: (root / ".code").chmod(0o777))
    root.chmod(0o700)
    target = project.parent / "run"
    as_user(ALICE, lambda: freeze(list_frozen(project), root / ".code", target).code.digest)
    assert (target / "train.py").read_text() == "good = 1\n"
    assert ((root / ".code").stat().st_uid, (root / ".code").stat().st_mode & 0o777) == (ALICE, 0o700)


def test_runs_that_another_has_registered_are_not_ours(shared, monkeypatch):  # noqa: F811
    monkeypatch.setenv("XDG_STATE_HOME", str(shared / "state"))
    ours = folder_of(0, shared / "ours")
    register(RUN, ours)
    for folder in (shared / "state", shared / "state" / "launch", registry._folder()):
        folder.chmod(0o1777)
    as_user(MALLORY, lambda: (registry._folder() / "evil-2345").symlink_to("/tmp"))
    assert registered() == [(RUN, ours)]
    with pytest.raises(BadInput, match=r"state: .*launch/runs: other users can write to it"):
        register(parse_run_id("job-6789"), ours)


@pytest.mark.parametrize(
    ("group", "user", "primary", "members", "others", "private"),
    [
        ("alice", "alice", True, [], [], True),
        ("alice", "alice", False, ["alice"], [], True),
        ("LAB\\alice", "alice", True, [], [], True),
        ("alice", "LAB\\alice", True, ["LAB\\alice"], [], True),
        ("alice@lab", "alice", True, [], [], True),
        ("alice@lab", "alice", False, [], [], False),
        ("LAB\\alice", "alice", True, ["mallory"], [], False),
        ("LAB\\users", "alice", True, [], [], False),
        ("alice", "alice", True, [], ["mallory"], False),
    ],
)
def test_a_group_is_the_users_own_where_it_has_its_name_and_nobody_else(
    tmp_path, monkeypatch, group, user, primary, members, others, private
):
    """Here, and on hosts where nothing of ours is yet."""
    (folder := tmp_path / "mine").mkdir()
    folder.chmod(0o770)
    gid = folder.stat().st_gid
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((group, "x", gid, members)))
    account = (user, "x", os.geteuid(), gid if primary else gid + 1, "", "/", "/bin/sh")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(account))
    rows = [account, *((name, "x", os.geteuid() + 1, gid, "", "/", "/bin/sh") for name in others)]
    monkeypatch.setattr(pwd, "getpwall", lambda: [pwd.struct_passwd(row) for row in rows])
    assert is_ours_alone(folder) == private
    assert probe_there._is_own_group(gid) == private
