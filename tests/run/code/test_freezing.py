import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from launcher.errors import BadInput
from launcher.run.code import hashes
from launcher.run.code.freezing import bring_code, freeze
from launcher.run.code.listing import list_frozen
from launcher.run.layout import RunDir

LATER_NS = 10**10


@pytest.fixture
def project(tmp_path):
    path = tmp_path / "project"
    (path / "lib").mkdir(parents=True)
    (path / "train.py").write_text("import lib\n")
    (path / "lib" / "net.py").write_text("net = 1\n")
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("train.py")
    (path / os.fsdecode(b"\xff\n\"'")).write_text("odd")
    return path


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def later(project):
    """A time at which every file of the project is old enough to be trusted."""
    return max(path.lstat().st_ctime_ns for path in project.rglob("*")) + LATER_NS


def modes(folder):
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*") if not path.is_symlink()}


def test_the_copy_is_what_the_project_was(project, store, tmp_path):
    code = list_frozen(project)
    frozen = freeze(code, store, tmp_path / "a" / "code")
    copy = list_frozen(tmp_path / "a" / "code")
    assert copy.files == code.files
    assert all((copy.root / file.path).read_bytes() == (project / file.path).read_bytes() for file in code.files)
    assert (frozen.code.files, frozen.code.bytes) == (5, code.bytes)
    assert frozen.stored_bytes == frozen.hashed_bytes == code.bytes


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(project, store, tmp_path, mask):
    before = os.umask(mask)
    try:
        frozen = freeze(list_frozen(project), store, tmp_path / "code")
    finally:
        os.umask(before)
    odd = os.fsdecode(b"\xff\n\"'")
    assert modes(tmp_path / "code") == {"lib": 0o700, "net.py": 0o600, "train.py": 0o600, "run.sh": 0o700, odd: 0o600}
    pristine = store / frozen.code.digest
    assert modes(pristine) == {"lib": 0o700, "net.py": 0o400, "train.py": 0o400, "run.sh": 0o500, odd: 0o400}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (store, pristine, tmp_path / "code")} == {0o700}


def test_an_unchanged_project_is_neither_hashed_nor_stored_again(project, store, tmp_path):
    first = freeze(list_frozen(project), store, tmp_path / "one", later(project))
    second = freeze(list_frozen(project), store, tmp_path / "two", later(project))
    assert (second.hashed_bytes, second.stored_bytes) == (0, 0)
    assert second.code == first.code
    assert list_frozen(tmp_path / "two").files == list_frozen(project).files


def test_what_was_just_stored_is_not_read_again(project, store, tmp_path, monkeypatch):
    freeze(list_frozen(project), store, tmp_path / "one", later(project))
    read = []
    monkeypatch.setattr(hashes, "file_hash", read.append)
    freeze(list_frozen(project), store, tmp_path / "two", later(project))
    assert read == []
    assert (tmp_path / "two" / "train.py").read_text() == "import lib\n"


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 16) + 1, (3 << 20) + 7])
def test_files_of_any_size_are_copied_whole(project, store, tmp_path, size):
    content = os.urandom(size)
    (project / "data.bin").write_bytes(content)
    digest = freeze(list_frozen(project), store, tmp_path / "one", later(project)).code.digest
    again = freeze(list_frozen(project), store, tmp_path / "two", later(project))
    assert (again.code.digest, again.stored_bytes) == (digest, 0)
    trees = (store / digest, tmp_path / "one", tmp_path / "two")
    assert all((tree / "data.bin").read_bytes() == content for tree in trees)


def test_whoever_waits_sees_each_file_go_by(project, store, tmp_path):
    seen = []

    def watch(files):
        for number, file in enumerate(files, 1):
            seen.append((number, len(files)))
            yield file

    for name in ("one", "two"):
        freeze(list_frozen(project), store, tmp_path / name, later(project), watch=watch)
    assert seen == [(number, 5) for number in range(1, 6)] * 2


def test_what_did_not_change_is_looked_at_once(project, store, tmp_path, monkeypatch):
    """With tens of thousands of files looking at them is most of what a submit costs."""
    freeze(list_frozen(project), store, tmp_path / "one", later(project))
    looked, lstat = Counter(), os.lstat
    monkeypatch.setattr(os, "lstat", lambda path, **more: looked.update([os.fspath(path)]) or lstat(path, **more))
    freeze(list_frozen(project), store, tmp_path / "two", later(project))
    of_project = {path: times for path, times in looked.items() if path.startswith(f"{project}/")}
    assert of_project == {f"{project}/{file.path}": 1 for file in list_frozen(project).files}


def test_only_what_changed_is_hashed(project, store, tmp_path):
    first = freeze(list_frozen(project), store, tmp_path / "one", later(project))
    (project / "train.py").write_text("import sys\n")  # of the same length
    os.utime(project / "train.py", ns=(0, 0))
    second = freeze(list_frozen(project), store, tmp_path / "two", later(project))
    assert second.hashed_bytes == len("import sys\n")
    assert second.code.digest != first.code.digest
    assert (tmp_path / "two" / "train.py").read_text() == "import sys\n"
    assert (tmp_path / "one" / "train.py").read_text() == "import lib\n"


def test_a_file_changed_a_moment_ago_is_not_trusted(project, store, tmp_path):
    code = list_frozen(project)
    freeze(code, store, tmp_path / "one")
    assert freeze(code, store, tmp_path / "two").hashed_bytes == code.bytes


def test_a_damaged_index_costs_time_only(project, store, tmp_path):
    code = list_frozen(project)
    freeze(code, store, tmp_path / "one", later(project))
    for index in store.glob("index-*"):
        index.write_bytes(b'{"train.py": [1]')
    assert freeze(code, store, tmp_path / "two", later(project)).hashed_bytes == code.bytes


@pytest.mark.parametrize("change", ["content", "name", "executable", "link", "kind"])
def test_the_digest_tells_every_difference(project, store, tmp_path, change):
    before = freeze(list_frozen(project), store, tmp_path / "one").code.digest
    match change:
        case "content":
            (project / "train.py").write_text("import lob\n")
        case "name":
            (project / "train.py").rename(project / "train2.py")
        case "executable":
            (project / "train.py").chmod(0o755)
        case "link":
            (project / "link").unlink()
            (project / "link").symlink_to("run.sh")
        case "kind":
            (project / "link").unlink()
            (project / "link").write_text("train.py")
    assert freeze(list_frozen(project), store, tmp_path / "two").code.digest != before


def test_the_digest_is_of_content_alone(project, store, tmp_path):
    before = freeze(list_frozen(project), store, tmp_path / "one").code.digest
    moved = project.rename(tmp_path / "moved")
    os.utime(moved / "train.py", (0, 0))
    (moved / "train.py").chmod(0o640)
    again = freeze(list_frozen(moved), store, tmp_path / "two")
    assert again.code.digest == before and again.stored_bytes == 0


def test_a_run_that_writes_into_its_code_changes_no_other(project, store, tmp_path):
    freeze(list_frozen(project), store, tmp_path / "one")
    (tmp_path / "one" / "train.py").write_text("changed")
    (tmp_path / "one" / "lib" / "new.py").touch()
    freeze(list_frozen(project), store, tmp_path / "two")
    assert list_frozen(tmp_path / "two").files == list_frozen(project).files
    assert (tmp_path / "two" / "train.py").read_text() == "import lib\n"


def test_a_store_that_somebody_tidied_is_made_whole(project, store, tmp_path):
    code = list_frozen(project)
    digest = freeze(code, store, tmp_path / "one").code.digest
    (store / digest / "train.py").unlink()
    freeze(code, store, tmp_path / "two")
    assert (tmp_path / "two" / "train.py").read_text() == "import lib\n"
    assert (store / digest / "train.py").read_text() == "import lib\n"
    assert not list(store.glob(".tmp-*"))


def test_racers_agree(project, store, tmp_path, race):
    code = list_frozen(project)

    def freeze_it(number):
        return freeze(code, tmp_path / f"store-{number}", tmp_path / f"code-{number}-{os.getpid()}").code.digest

    got = race(freeze_it, rounds=8)
    assert len({digest for results in got for digest in results}) == 1
    assert not list(tmp_path.glob("store-*/.tmp-*"))
    assert all(list_frozen(copy).files == code.files for copy in tmp_path.glob("code-*"))


def test_what_a_killed_freeze_left_is_taken_away_and_a_living_ones_is_not(project, store, tmp_path):
    script = (
        "import sys; from pathlib import Path; from launcher.run.drafts import new_draft\n"
        "draft = new_draft(Path(sys.argv[1])); (draft / 'lib').mkdir(parents=True); (draft / 'lib' / 'x').touch()\n"
        "print(draft.name, flush=True); sys.stdin.read()"
    )
    store.mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    makers = [subprocess.Popen([sys.executable, "-c", script, str(store)], **pipes) for _ in range(2)]
    dead, living = (maker.stdout.readline().strip() for maker in makers)
    makers[0].kill()
    makers[0].communicate()
    stranger = ".tmp-elsewhere,00000000,1,1,00000000"
    (store / stranger).mkdir()
    freeze(list_frozen(project), store, tmp_path / "code")
    left = {path.name for path in store.glob(".tmp-*")}
    makers[1].communicate("")
    assert dead not in left and left == {living, stranger}


def test_a_file_that_vanishes_is_named(project, store, tmp_path):
    code = list_frozen(project)
    (project / "lib" / "net.py").unlink()
    with pytest.raises(BadInput, match=r"lib/net\.py: vanished"):
        freeze(code, store, tmp_path / "code")
    assert not (tmp_path / "code").exists()


def test_a_file_that_changed_since_it_was_listed_is_frozen_as_it_is_now(project, store, tmp_path):
    code = list_frozen(project)
    (project / "train.py").write_text("longer than before\n")
    frozen = freeze(code, store, tmp_path / "code")
    assert (tmp_path / "code" / "train.py").read_text() == "longer than before\n"
    assert frozen.code.bytes == list_frozen(project).bytes


def test_a_file_that_never_rests_is_an_error(project, store, tmp_path):
    looks = []

    def write_meanwhile(files):
        looks.append(len(files))
        for file in files:
            with (project / "train.log").open("a") as log:
                log.write("x")
            yield file

    (project / "train.log").write_text("x")
    with pytest.raises(BadInput, match=r"train\.log: changed while it was being frozen"):
        freeze(list_frozen(project), store, tmp_path / "code", watch=write_meanwhile)
    assert looks == [6, 6]  # it was given a second chance
    assert not (tmp_path / "code").exists() and not list(store.glob(".tmp-*"))


def test_a_file_that_became_a_link_is_not_followed(project, store, tmp_path):
    code = list_frozen(project)
    (tmp_path / "secret").write_text("import lib\n")
    (project / "train.py").unlink()
    (project / "train.py").symlink_to(tmp_path / "secret")
    freeze(code, store, tmp_path / "code")
    assert (tmp_path / "code" / "train.py").is_symlink()


def test_a_target_that_is_there_is_not_touched(project, store, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine").touch()
    with pytest.raises(FileExistsError):
        freeze(list_frozen(project), store, tmp_path / "code")
    assert os.listdir(tmp_path / "code") == ["mine"]


def test_a_file_that_cannot_be_read_is_named():
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "project").mkdir()
        (home / "project" / "train.py").touch(mode=0)
        code = list_frozen(home / "project")
        child = os.fork()
        if child == 0:
            try:
                if os.getuid() == 0:  # whom no mode keeps out
                    os.chown(home, 65534, 65534)
                    os.setuid(65534)
                freeze(code, home / "store", home / "code")
            except BadInput as error:
                os._exit(42 if "project/train.py: cannot be read" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


@pytest.fixture
def submitted(project, tmp_path):
    """A run of which only the store has the code, and what that is called."""
    run = RunDir(tmp_path / "runs" / "once-2345")
    digest = freeze(list_frozen(project), tmp_path / "runs" / ".code", None).code.digest
    run.path.mkdir()
    return run, digest


def test_code_that_only_the_store_has_is_copied_as_it_was_frozen(project, submitted):
    run, digest = submitted
    before = list_frozen(project)
    for name in ("train.py", "lib/net.py"):
        with (project / name).open("r+") as file:  # in place: whatever shares the file would see it
            file.write("EDITED")
    (project / "lib" / "late.py").touch()
    bring_code(run, digest)
    assert list_frozen(run.code).files == before.files
    assert (run.code / "train.py").read_text() == "import lib\n"
    assert (run.code / "lib" / "net.py").read_text() == "net = 1\n"
    (run.code / "train.py").write_text("by a rank")
    bring_code(run, digest)
    assert (run.code / "train.py").read_text() == "by a rank"
    assert os.listdir(run.path) == ["code"]


def test_the_second_that_is_frozen_so_is_copied_by_nobody(project, submitted, tmp_path):
    _, digest = submitted
    again = freeze(list_frozen(project), tmp_path / "runs" / ".code", None, later(project))
    assert (again.code.digest, again.stored_bytes) == (digest, 0)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".code", "once-2345"]


def test_code_with_a_link_that_comes_back_to_it_by_its_name_is_copied(project, tmp_path):
    run = RunDir(tmp_path / "runs" / "once-2345")
    (project / "back").symlink_to("../project/train.py")
    digest = freeze(list_frozen(project), tmp_path / "runs" / ".code", None).code.digest
    run.path.mkdir()
    bring_code(run, digest)
    assert (run.code / "back").resolve() == run.code.resolve() / "train.py"


@pytest.mark.parametrize("damage", ["edited", "added", "lost a file", "lost"])
def test_what_was_not_frozen_is_never_copied(submitted, tmp_path, damage):
    run, digest = submitted
    pristine = tmp_path / "runs" / ".code" / digest
    match damage:
        case "edited":
            (pristine / "train.py").chmod(0o600)
            (pristine / "train.py").write_text("import bad\n")
        case "added":
            (pristine / "sitecustomize.py").touch()
        case "lost a file":
            (pristine / "train.py").unlink()
        case "lost":
            shutil.rmtree(pristine)
    with pytest.raises(BadInput, match=f"{digest}: is not the code any more that was frozen for once-2345"):
        bring_code(run, digest)
    assert os.listdir(run.path) == []


def test_code_that_is_copied_while_somebody_else_does_so_is_there_once(submitted):
    run, digest = submitted

    def overtaken(files):
        yield from files
        bring_code(run, digest)

    bring_code(run, digest, overtaken)
    assert os.listdir(run.path) == ["code"]


def test_no_code_at_all_can_be_frozen(store, tmp_path):
    (tmp_path / "empty").mkdir()
    assert freeze(list_frozen(tmp_path / "empty"), store, tmp_path / "code").code.files == 0
    assert os.listdir(tmp_path / "code") == []
