import json

import msgspec
import pytest
from run_folder import plan_of

from launcher.errors import Exit
from launcher.plan.model import FrozenCode
from launcher.run.durable import readable
from launcher.run.layout import RunDir
from launcher.run.records import Environment, Origin


@pytest.fixture
def pair(desk):
    """Return two runs with different arguments and code."""
    for name, lr, text in (("job-aaaa", "0.1", "x = 1\n"), ("job-bbbb", "0.2", "x = 2\n" * 100)):
        folder = desk.run(name).succeeded()
        digest = lr[-1] * 64
        before = plan_of(folder.path)
        entry = msgspec.structs.replace(before.entry, args=("--lr", lr))
        plan = msgspec.structs.replace(before, entry=entry, code=FrozenCode(digest, 1, 6))
        folder.write(folder.run.plan, plan)
        (folder.path / "code").mkdir()
        pristine = folder.path.parent / ".code" / digest
        pristine.mkdir(parents=True)
        (pristine / "train.py").write_text(text)
    return desk


def test_results_side_by_side_and_then_what_is_other(pair):
    lines = pair.launch("compare", "job-a", "job-b").stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["job-aaaa", "job-bbbb"], ["results"], ["state", "succeeded", "succeeded"],
    ]  # fmt: skip
    assert ["--lr", "0.1", "0.2"] in [line.split() for line in lines]
    assert "what was installed for job-aaaa, job-bbbb is not known here" in lines
    assert "no difference in spec" in lines
    at = lines.index("code: job-aaaa → job-bbbb")
    assert lines[at + 1 : at + 6] == [
        "  train.py: changed +100 -1",
        "",
        "--- a/train.py",
        "+++ b/train.py",
        "@@ -1 +1,100 @@",
    ]
    assert lines[-2:] == ["... and 44 lines more", "--code shows all of it"]


def test_of_many_packages_those_that_training_stands_on_come_first(pair):
    for name, version in (("job-aaaa", "1.0"), ("job-bbbb", "2.0")):
        run = RunDir(pair.root / "runs" / name)
        run.metrics.mkdir()
        packages = {**{f"package-{number:02d}": version for number in range(30)}, "torch": version}
        run.environment(1, 0).write_bytes(msgspec.json.encode(Environment("n1", "/py", "3.12", packages)))
    lines = [line.split() for line in pair.launch("compare", "job-a", "job-b").stdout.splitlines()]
    at = lines.index(["packages"])
    assert lines[at + 1 : at + 3] == [["torch", "1.0", "2.0"], ["package-00", "1.0", "2.0"]]
    assert lines[at + 21] == ["and", "11", "more:", "--json"]


def test_nothing_of_a_run_steers_the_terminal(pair):
    evil = "\x1b]0;mine\x07\x1b[2J"
    for name in ("job-aaaa", "job-bbbb"):
        run = RunDir(pair.root / "runs" / name)
        run.origin.write_bytes(msgspec.json.encode({"commit": f"{evil}{name}", "dirty": False}))
        run.metrics.mkdir()
        found = Environment(f"{evil}{name}", evil, f"3.{name}", {evil: name}, gpus=(evil,))
        run.environment(1, 0).write_bytes(msgspec.json.encode(found))
        pristine = run.path.parent / ".code" / ({"job-aaaa": "1", "job-bbbb": "2"}[name] * 64)
        (pristine / f"{evil}.py").write_text(f"{evil}{name}\n")
    for more in ((), ("--stat",), ("--json",)):
        shown = pair.launch("compare", "job-a", "job-b", *more).stdout
        assert not set(shown) & set("\x1b\x07")


def test_all_of_the_code_or_only_which_files(pair):
    assert pair.launch("compare", "job-a", "job-b", "--code").stdout.count("+x = 2") == 100
    assert pair.launch("compare", "job-a", "job-b", "--stat").stdout.splitlines()[-1] == "  train.py: changed +100 -1"


def test_the_same_for_programs(pair):
    found = json.loads(pair.launch("compare", "job-a", "job-b", "--json").stdout)
    assert found["arguments"] == {"--lr": ["0.1", "0.2"]}
    assert found["code"][0]["changes"][0]["path"] == "train.py"


def test_of_one_run_what_was_not_committed(desk):
    commit = readable(desk.run("job-aaaa").succeeded().of_commit("x = 2\n", "x = 1\n").run.origin, Origin).commit
    lines = desk.launch("compare", "job-a").stdout.splitlines()
    assert lines[:2] == [f"code: {commit[:10]} → job-aaaa", "  train.py: changed +1 -1"]
    assert lines[-2:] == ["-x = 2", "+x = 1"]
    assert json.loads(desk.launch("compare", "job-a", "--json").stdout)["changes"][0]["added"] == 1


def test_of_one_run_without_a_commit(pair):
    said = ["code: no commit → job-aaaa", "  no commit was known when it was submitted"]
    assert pair.launch("compare", "job-a").stdout.splitlines() == said


def test_one_run_is_none_to_compare(pair):
    said = pair.launch("compare", "job-a", "job-aaaa", check=Exit.BAD_INPUT).stderr
    assert "expected two runs or more to compare, got job-aaaa alone" in said
    assert pair.launch("compare", "job-a", "no-such", check=Exit.NO_SUCH_RUN).stdout == ""


def test_on_a_narrow_terminal_all_runs_are_seen(pair):
    code, shown = pair.on_terminal("compare", "job-a", "job-b", columns=60)
    assert code == 0
    assert "job-aaaa" in shown.splitlines()[0] and "job-bbbb" in shown.splitlines()[0]
