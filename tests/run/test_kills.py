"""Killed at every system call, a writer leaves the old or the new, never half; and the checks notice one that does."""

import os
import re

import pytest

from launcher.plan.model import FrozenCode
from launcher.run.attempts import attempts, new_attempt, newest, read_intent
from launcher.run.code.freezing import bring_code, freeze
from launcher.run.code.listing import list_frozen
from launcher.run.durable import append_line, create_record, read_lines, read_record, write_record
from launcher.run.fence import fence, raise_fence
from launcher.run.layout import RunDir

pytestmark = pytest.mark.nightly

OLD, NEW = FrozenCode("old" * 20, 1, 1), FrozenCode("new" * 2000, 2, 2)
_RECORDS = """
from launcher.plan.model import FrozenCode
from launcher.run.durable import append_line, create_record, write_record
OLD, NEW = FrozenCode("old" * 20, 1, 1), FrozenCode("new" * 2000, 2, 2)
"""


def with_old(folder):
    write_record(folder / "record", OLD)


def old_or_new(folder):
    assert read_record(folder / "record", FrozenCode) in (OLD, NEW)
    assert all(name == "record" or name.startswith(".tmp-") for name in os.listdir(folder))
    write_record(folder / "record", NEW)
    assert read_record(folder / "record", FrozenCode) == NEW


def nothing(folder):
    pass


@pytest.mark.daily
def test_write_record(strace, writer):
    fired = strace.kill_everywhere(writer(_RECORDS, 'write_record(folder / "record", NEW)'), with_old, old_or_new)
    assert fired["write"] >= 1 and fired["rename"] == 1 and fired["fsync"] == 2


def test_create_record(strace, writer):
    def absent_or_whole(folder):
        found = read_record(folder / "record", FrozenCode)
        assert found in (None, NEW)
        if found is None:
            create_record(folder / "record", NEW)

    fired = strace.kill_everywhere(writer(_RECORDS, 'create_record(folder / "record", NEW)'), nothing, absent_or_whole)
    assert fired["link"] == 1 and fired["fsync"] == 2


def test_append_line(strace, writer):
    def prepare(folder):
        append_line(folder / "lines", OLD)

    def check(folder):
        before = read_lines(folder / "lines", FrozenCode)
        assert before in ([OLD], [OLD, NEW])
        append_line(folder / "lines", OLD)
        assert read_lines(folder / "lines", FrozenCode) == [*before, OLD]

    fired = strace.kill_everywhere(writer(_RECORDS, 'append_line(folder / "lines", NEW)'), prepare, check)
    assert fired["write"] == 1 and fired["fsync"] == 1


@pytest.mark.daily
def test_new_attempt(strace, writer):
    setup = """
from launcher.run.attempts import new_attempt
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
this_process()
"""

    def prepare(folder):
        new_attempt(RunDir(folder), "local", "submit", None)

    def check(folder):
        run = RunDir(folder)
        last = newest(run)
        assert last is not None and last.number in (1, 2)
        assert read_intent(last).attempt == last.number
        made, intent = new_attempt(run, "local", "resume", None)
        assert made.number > max(last.number, 1) and newest(run) == made and intent == read_intent(made)
        assert len({attempt.number for attempt in attempts(run)}) == made.number

    fired = strace.kill_everywhere(
        writer(setup, 'new_attempt(RunDir(folder), "local", "resume", None)'), prepare, check
    )
    assert fired["mkdir"] == 1 and fired["rename"] == 2


@pytest.mark.daily
def test_raise_fence(strace, writer):
    setup = "from launcher.run.fence import raise_fence\nfrom launcher.run.layout import RunDir"

    def prepare(folder):
        raise_fence(RunDir(folder), 1)

    def check(folder):
        assert fence(RunDir(folder)) in (1, 2)
        raise_fence(RunDir(folder), 3)
        assert fence(RunDir(folder)) == 3

    fired = strace.kill_everywhere(writer(setup, "raise_fence(RunDir(folder), 2)"), prepare, check)
    assert fired["rename"] == 1 and fired["flock"] == 1


_FREEZE = """
from launcher.run.code.listing import list_frozen
from launcher.run.identity import this_process
from launcher.run.code.freezing import freeze
code = list_frozen(folder / "project")
this_process()
LATER = os.stat(folder / "project" / "train.py").st_ctime_ns + 10**10  # old enough for the index
"""


def project(folder):
    (folder / "project" / "lib").mkdir(parents=True)
    (folder / "project" / "train.py").write_text("import lib.net\n" * 5000)
    (folder / "project" / "lib" / "net.py").write_text("net = 1\n")
    (folder / "project" / "link").symlink_to("train.py")


def frozen_whole(folder):
    code = list_frozen(folder / "project")
    store = folder / "store"
    for tree in store.glob("[0-9a-f]*") if store.exists() else ():
        kept = list_frozen(tree)
        assert [(file.path, file.size, file.link) for file in kept.files] == [
            (file.path, file.size, file.link) for file in code.files
        ]
        assert (tree / "train.py").read_bytes() == (folder / "project" / "train.py").read_bytes()
    freeze(code, store, folder / "again")
    assert (folder / "again" / "lib" / "net.py").read_text() == "net = 1\n"
    assert not list(store.glob(".tmp-*")), "what the killed one left is taken away"


def test_freeze(strace, writer):
    fired = strace.kill_everywhere(
        writer(_FREEZE, 'freeze(code, folder / "store", folder / "code", LATER)'), project, frozen_whole
    )
    assert fired["rename"] == 3 and fired["symlink"] == 2 and sum(fired.values()) > 50


def test_bring_code(strace, writer):
    setup = (
        "from launcher.run.code.freezing import bring_code\nfrom launcher.run.layout import RunDir\n"
        "from launcher.run.identity import this_process\nthis_process()\nrun = RunDir(folder / 'run-2345')\n"
        "digest = next(one.name for one in (folder / '.code').iterdir() if len(one.name) == 64)"
    )

    def prepare(folder):
        project(folder)
        freeze(list_frozen(folder / "project"), folder / ".code", None)
        (folder / "run-2345").mkdir()

    def check(folder):
        run = RunDir(folder / "run-2345")
        assert not run.code.exists() or list_frozen(run.code).files == list_frozen(folder / "project").files
        [digest] = [one.name for one in (folder / ".code").iterdir() if len(one.name) == 64]
        bring_code(run, digest)
        assert list_frozen(run.code).files == list_frozen(folder / "project").files
        assert (run.code / "train.py").read_bytes() == (folder / "project" / "train.py").read_bytes()
        assert os.listdir(run.path) == ["code"], "what the killed one left is taken away"

    fired = strace.kill_everywhere(writer(setup, "bring_code(run, digest)"), prepare, check)
    assert fired["rename"] >= 1 and fired["symlink"] == 1


def test_register(strace, writer, monkeypatch):
    from launcher.run.registry import find, is_registered, register

    setup = (
        'os.environ["XDG_STATE_HOME"] = str(folder)\nfrom launcher.run.registry import register\n'
        "from launcher.run import registry"
    )

    def check(folder):
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        if not is_registered("run-2345"):
            register("run-2345", folder)
        assert find("run")[1] == folder

    fired = strace.kill_everywhere(writer(setup, 'register("run-2345", folder)'), nothing, check)
    assert fired["symlink"] == 1 and fired["mkdir"] == 2


_IN_PLACE = 'import msgspec\n(folder / "record").write_bytes(msgspec.json.encode(NEW))'
_REMOVED_FIRST = (
    'import msgspec\n(folder / "draft").write_bytes(msgspec.json.encode(NEW))\n(folder / "record").unlink()\n'
    'os.rename(folder / "draft", folder / "record")'
)


@pytest.mark.parametrize("careless", [_IN_PLACE, _REMOVED_FIRST], ids=["in place", "removed first"])
def test_the_kills_find_a_careless_writer(strace, writer, careless):
    with pytest.raises(AssertionError, match="killed at"):
        strace.kill_everywhere(writer(_RECORDS, careless), with_old, old_or_new)


@pytest.mark.daily
@pytest.mark.parametrize(
    "operation",
    [
        'write_record(folder / "record", NEW)',
        'create_record(folder / "record", NEW)',
        'new_attempt(RunDir(folder), "local", "submit", None)',
        'freeze(code, folder / "store", folder / "code", LATER)',
        'register("run-2345", folder)',
    ],
)
def test_nothing_gets_its_name_before_it_is_on_disk(strace, writer, order, tmp_path, operation):
    project(tmp_path)
    setup = f"""
{_RECORDS}{_FREEZE}
os.environ["XDG_STATE_HOME"] = str(folder)
from launcher.run.attempts import new_attempt
from launcher.run.layout import RunDir
from launcher.run.registry import register
"""
    calls = strace.calls(writer(setup, operation), tmp_path)
    assert order([call for call in calls if "store/index-" not in call]) == []


def test_many_files_are_on_disk_before_they_get_their_name(strace, writer, order, tmp_path):
    project(tmp_path)
    for number in range(150):
        (tmp_path / "project" / f"f{number}").write_text(f"{number}")
    calls = strace.calls(writer(_FREEZE, 'freeze(code, folder / "store", folder / "code")'), tmp_path)
    assert order([call for call in calls if "store/index-" not in call]) == []
    last_copy = max(index for index, call in enumerate(calls) if re.match(r"write\(\d+<.*/code/", call))
    assert any(call.startswith("syncfs") for call in calls[last_copy:])
    assert len(calls) < 2000


_FSYNCLESS = """
import msgspec
def write(sync_file, sync_folder):
    fd = os.open(folder / ".tmp-1", os.O_CREAT | os.O_WRONLY)
    os.write(fd, msgspec.json.encode(NEW))
    if sync_file:
        os.fsync(fd)
    os.rename(folder / ".tmp-1", folder / "record")
    if sync_folder:
        os.fsync(os.open(folder, os.O_RDONLY))
"""


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        ("write(True, True)", None),
        ("write(False, True)", "renamed before it was synced"),
        ("write(True, False)", "its folder was not synced"),
    ],
)
def test_the_order_check_finds_a_missing_fsync(strace, writer, order, tmp_path, operation, problem):
    problems = order(strace.calls(writer(_RECORDS + _FSYNCLESS, operation), tmp_path))
    assert (problem is None and not problems) or any(problem in one for one in problems)
