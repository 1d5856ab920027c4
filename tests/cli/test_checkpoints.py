import json
import time

import pytest
from saved_checkpoints import flip, keep_best, save

from launcher.errors import Exit


@pytest.fixture
def run(desk):
    return desk.run().succeeded(checkpoint=120)


@pytest.fixture
def folder(run):
    return run.path / "checkpoints"


def test_a_table_of_what_there_is(desk, folder):
    save(folder, 80, size=1_000_000)
    save(folder, 120, world_size=1)
    keep_best(folder, 80)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    done = desk.launch("checkpoints", "last")
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["STEP", "KIND", "SAVED", "SIZE", "WORLD", "STATE"]
    assert [line.split()[:3] for line in lines] == [
        ["120", "step", today], ["80", "step", today], ["80", "best", today],
    ]  # fmt: skip
    assert lines[0].endswith("1.0 kB  1 rank   ok (sizes match)")
    assert lines[1].endswith("2.0 MB  2 ranks  ok (sizes match)")
    assert done.stderr == ""


def test_which_is_the_best_and_by_what_value(desk, folder):
    save(folder, 80, val_loss=0.25, accuracy=0.5, best_by="accuracy")
    keep_best(folder, 80)
    save(folder, 120, loss=0.12345678, epoch=3)
    head, *lines = desk.launch("checkpoints", "last").stdout.splitlines()
    assert head.split() == ["STEP", "KIND", "SAVED", "SIZE", "WORLD", "VALUES", "STATE"]
    assert "  loss 0.12346  " in lines[0]
    assert lines[2].split()[:2] == ["80", "best"]
    assert "  accuracy 0.5  " in lines[2]


def test_one_whose_weights_are_not_finite_is_shown_as_such(desk, folder):
    save(folder, 1)
    save(folder, 2, finite=False)
    _, spoilt, good = desk.launch("checkpoints", "last").stdout.splitlines()
    assert spoilt.endswith("  ok (sizes match), weights not finite")
    assert good.endswith("  ok (sizes match)")


def test_verify_reads_every_byte_and_says_so(desk, folder):
    save(folder, 1)
    assert desk.launch("checkpoints", "last", "--verify").stdout.splitlines()[1].endswith("  verified")


def test_damage_is_found_named_and_has_an_exit_code(desk, folder):
    save(folder, 1)
    flip(save(folder, 2) / "rank-00000.data")
    assert "damaged" not in desk.launch("checkpoints", "last").stdout
    done = desk.launch("checkpoints", "last", "--verify", check=Exit.DAMAGED)
    assert "damaged: rank-00000.data" in done.stdout.splitlines()[1]
    assert done.stdout.splitlines()[2].endswith("verified")
    assert done.stderr == "1 checkpoint damaged; as it is, the next start resumes from step 1\n"
    desk.launch("checkpoints", "last", "--verify", "--json", check=Exit.DAMAGED)


def test_a_damage_that_a_listing_sees_is_shown_without_an_exit_code(desk, folder):
    (save(folder, 2) / "rank-00000.data").unlink()
    done = desk.launch("checkpoints", "last")
    assert "damaged: rank-00000.data" in done.stdout
    assert done.stderr == "1 checkpoint damaged; as it is, training starts from step 0\n"


def test_what_was_set_aside_is_known_and_no_news(desk, folder):
    path = save(folder, 2)
    flip(path / "rank-00000.data")
    path.rename(folder / ".bad-step-00000002-0123456789ab")
    save(folder, 1)
    done = desk.launch("checkpoints", "last", "--verify")
    assert "set aside: rank-00000.data" in done.stdout.splitlines()[2]
    assert desk.launch("checkpoints", "last").stdout.splitlines()[2].endswith("  set aside")


def test_as_json(desk, folder):
    path = save(folder, 40, epoch=2)
    (row,) = json.loads(desk.launch("checkpoints", "last", "--json", "--verify").stdout)
    assert row["saved_at"] == pytest.approx(path.stat().st_mtime, abs=60)
    del row["saved_at"]
    assert row == {
        "step": 40, "kind": "step", "state": "verified", "reason": "", "path": str(path), "size_bytes": 2000,
        "world_size": 2, "attempt": 1, "finite": True, "info": {"epoch": 2},
    }  # fmt: skip


def test_none_yet(desk):
    desk.run().running()
    done = desk.launch("checkpoints", "last")
    assert done.stdout == ""
    assert done.stderr == "job-abcd has no checkpoints\n"
    assert json.loads(desk.launch("checkpoints", "last", "--json").stdout) == []


def test_one_that_a_script_saves_itself_is_told_as_status_tells_it(desk):
    desk.run().succeeded(checkpoint=30)
    told = "step 30, saved by the script itself"
    assert f"checkpoint  {told}" in " ".join(desk.launch("status", "last").stdout.split(" ")).replace("   ", "  ")
    assert told in desk.launch("checkpoints", "last").stderr


def test_of_hosts_only_what_was_fetched_is_here(desk, run):
    run.intent(kind="ssh")
    said = desk.launch("checkpoints", "last").stderr
    assert said == "no checkpoint of job-abcd is here; `launch fetch job-abcd` brings the newest from its hosts\n"


def test_names_in_the_folder_cannot_steer_the_terminal(desk, folder):
    (save(folder, 1) / "\x1b[2Jrank\x1b]0;owned\x07").write_text("x")
    done = desk.launch("checkpoints", "last")
    assert "rank" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_on_a_terminal_it_says_that_it_will_take_a_while(desk, folder):
    save(folder, 1)
    code, shown = desk.on_terminal("checkpoints", "last", "--verify")
    assert code == 0
    assert shown.startswith("reading every byte")
    assert "\x1b[32m" in shown


def test_the_page_counts_them(desk, run, folder):
    assert "checkpoint  step 120" in desk.launch("status", "last").stdout
    for step in (80, 120):
        save(folder, step)
    assert "checkpoint  step 120, 2 committed\n" in desk.launch("status", "last").stdout
    keep_best(folder, 80)
    save(folder, 100).rename(folder / ".bad-step-00000100-0123456789ab")
    page = desk.launch("status", "last").stdout
    assert "checkpoint  step 120, 2 committed, the best one kept apart, 1 set aside\n" in page


def test_the_page_is_shown_although_they_cannot_be_counted(desk, run):
    run.run.plan.write_text("{")
    assert "checkpoint  step 120\n" in desk.launch("status", "last").stdout
    desk.launch("checkpoints", "last", check=6)
    run.run.plan.unlink()
    assert "plan.json: is missing" in desk.launch("checkpoints", "last", check=6).stderr
    assert "plan.json: is missing" in desk.launch("export", "last", "-o", "m.pt", check=6).stderr
    assert "checkpoint  step 120\n" in desk.launch("status", "last").stdout
