import csv
import io
import json
import re
import time

import pytest

from launcher.errors import Exit
from launcher.run.layout import RunDir


def measure(one, *losses, name="loss"):
    run = RunDir(one.path)
    run.metrics.mkdir(exist_ok=True)
    lines = [{"generation": 1}]
    lines += [
        {"step": step, "at": 100.0 + step, "rank": 0, "values": {name: loss}} for step, loss in enumerate(losses, 1)
    ]
    run.reported(1, 0).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return one


@pytest.fixture
def run(desk):
    return desk.run().succeeded(checkpoint=120)


def test_a_table_by_step(desk, run):
    measure(run, 3.0, 2.0, "nan")
    done = desk.launch("metrics", "last")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["STEP", "TIME", "loss"], ["1", "0s", "3"], ["2", "1s", "2"], ["3", "2s", "nan"],
    ]  # fmt: skip
    assert done.stderr == ""


def test_many_steps_are_about_twenty_rows_or_all_of_them(desk, run):
    measure(run, *(1 / step for step in range(1, 1001)))
    done = desk.launch("metrics", "last")
    assert len(done.stdout.splitlines()) == 21
    assert done.stdout.splitlines()[-1].split() == ["1000", "16m", "39s", "0.001"]
    assert done.stderr == "20 rows of 1,000 steps, with the newest value of each: --all shows every step\n"
    assert len(desk.launch("metrics", "last", "--all").stdout.splitlines()) == 1001


def test_a_run_of_which_not_all_was_kept_says_so(desk, run):
    file = measure(run, 3.0, 2.0).run.reported(1, 0)
    file.write_text(file.read_text().replace('"rank": 0', '"rank": 0, "left_out":9', 1))
    said = desk.launch("metrics", "last", "--all").stderr
    assert "2 of 11 reports kept (after the first 10,000 of a rank, at most 20 a second)" in said


def test_several_runs_are_compared_by_their_last_and_best(desk):
    first, second = (
        measure(desk.run(name).succeeded(checkpoint=1), *losses)
        for name, losses in (("job-a", (3, 1, 2)), ("job-b", (2, 1.5)))
    )
    lines = desk.launch("metrics", first.run.id, second.run.id).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["RUN", "STEP", "loss", "best", "loss"],
        [first.run.id, "3", "2", "1", "at", "2"],
        [second.run.id, "2", "1.5", "1.5", "at", "2"],
    ]


def test_data_is_whole(desk, run):
    measure(run, 3.0, "inf")
    assert [*csv.reader(io.StringIO(desk.launch("metrics", "last", "--csv").stdout))] == [
        ["run", "step", "at", "loss"], [run.run.id, "1", "101.0", "3.0"], [run.run.id, "2", "102.0", "inf"],
    ]  # fmt: skip
    [found] = json.loads(desk.launch("metrics", "last", "--json").stdout)
    assert found == {
        "run": run.run.id,
        "rows": [{"step": 1, "at": 101.0, "loss": 3.0}, {"step": 2, "at": 102.0, "loss": "inf"}],
    }


def test_curves_are_drawn_as_they_go(desk):
    down, up = (
        measure(desk.run(name).succeeded(checkpoint=1), *losses)
        for name, losses in (("job-a", (3, 2, 1)), ("job-b", (1, 2, 3)))
    )
    alone = desk.launch("metrics", down.run.id, "--plot").stdout.splitlines()
    assert alone[0] == "loss" and alone[1].strip().startswith("3 │⠑") and alone[-1].split() == ["1", "3"]
    assert alone[-2].split("│")[1].startswith("   ") and alone[-2].split("│")[1].strip()
    both = desk.launch("metrics", down.run.id, up.run.id, "--plot").stdout.splitlines()
    assert both[1].split("│")[1][0] == "a" and both[1].rstrip().endswith("b")
    assert both[-1] == f"a {down.run.id}  b {up.run.id}"


def test_a_picture(desk, run, tmp_path):
    measure(run, 3.0, 2.0)
    desk.launch("metrics", "last", "--png", tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    done = desk.launch("metrics", "last", "--png", tmp_path / "loss.xyz", check=Exit.BAD_INPUT)
    assert "loss.xyz" in done.stderr


def test_what_a_picture_needs_is_said(desk, run, monkeypatch, tmp_path):
    measure(run, 3.0)
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = desk.launch("metrics", "last", "--png", "loss.png", check=Exit.BAD_INPUT)
    assert "--png needs matplotlib: none here" in done.stderr and "--plot draws" in done.stderr


def test_metrics_that_a_narrow_terminal_has_no_room_for_are_left_out(desk, run):
    names = [f"validation_number_{number}" for number in range(4)]
    said = [{"generation": 1}, {"step": 1, "at": 100.0, "rank": 0, "values": dict.fromkeys(names, 0.5)}]
    RunDir(run.path).metrics.mkdir()
    RunDir(run.path).reported(1, 0).write_text("".join(f"{json.dumps(line)}\n" for line in said))
    for words in ((run.run.id,), (run.run.id, desk.run("other-bcde").succeeded().run.id)):
        code, shown = desk.on_terminal("metrics", *words, columns=60)
        lines = re.sub(r"\x1b\[\d*m", "", shown).splitlines()
        assert (code, [line for line in lines if len(line) > 60]) == (0, [])
        assert names[0] in shown and names[3] not in shown and "columns: --metric shows one, --csv all" in shown
    assert names[3] in desk.launch("metrics", run.run.id).stdout, "a program reads all"


def test_one_option_chooses_metrics_and_another_one_runs(desk):
    measure(desk.run("lr-a").succeeded(), 3.0, name="loss")
    measure(desk.run("lr-b").succeeded(), 2.0, name="loss")
    measure(desk.run("big-c").succeeded(), 1.0, name="loss")
    rows = desk.launch("metrics", "--name", "lr*", "--metric", "loss").stdout.splitlines()
    assert sorted(row.split()[0] for row in rows[1:]) == ["lr-a", "lr-b"]
    assert desk.launch("metrics", "lr-*").stdout.splitlines()[0] == rows[0]
    older = desk.launch("metrics", "big-c", "--name", "loss")
    assert (older.stdout.split()[-1], older.stderr) == ("1", "--name of a metric is --metric now\n")
    assert "no such runs" in desk.launch("metrics", "--name", "zz*", check=3).stderr


def test_nothing_is_said_to_be_nothing(desk, run):
    done = desk.launch("metrics", "last")
    assert (done.stdout, done.stderr) == ("", f"no metrics: {run.run.id} has reported none\n")
    done = desk.launch("metrics", measure(run, 2.0).run.id, "--metric", "los")
    assert (done.stdout, done.stderr) == ("", f"no metrics called los: {run.run.id} has reported loss\n")
    measure(run, 1.0)
    assert "no metrics called accuracy" in desk.launch("metrics", "last", "--metric", "accuracy").stderr


def test_the_page_of_a_run_says_which_was_best(desk):
    one = measure(desk.run().succeeded(checkpoint=120), 0.5, 0.25, 0.3)
    state = json.loads((one.path / "state.json").read_text())
    (one.path / "state.json").write_text(json.dumps(state | {"metrics": {"loss": 0.3}}))
    assert "loss 0.3 (best 0.25 at 2)" in desk.launch("status", one.run.id).stdout


def test_prometheus_is_told_of_all_or_of_those_that_are_named(desk):
    old, lately = desk.run("old-bcde").succeeded(ended_at=1.0), desk.run("new-bcde").succeeded(ended_at=time.time())
    everything = desk.launch("metrics", "--openmetrics").stdout
    assert 'launch_runs{state="succeeded"} 2\n' in everything and everything.endswith("# EOF\n")
    assert lately.run.id in everything and old.run.id not in everything
    one = desk.launch("metrics", "--openmetrics", old.run.id, "old").stdout
    assert 'launch_runs{state="succeeded"} 1\n' in one, "named in two ways"
    assert f'launch_run_state{{run="{old.run.id}",state="succeeded"}} 1\n' in one and lately.run.id not in one


def test_the_dashboard_needs_no_run(desk):
    assert json.loads(desk.launch("metrics", "--grafana").stdout)["panels"]


def test_a_run_is_asked_for(desk):
    done = desk.launch("metrics", check=Exit.BAD_INPUT)
    assert "of which run?" in done.stderr and "launch metrics last" in done.stderr
