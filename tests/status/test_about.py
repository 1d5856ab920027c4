import json

import pytest
from run_folder import RunFolder

from launcher.status.about import about, argument, options_in


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (("--lr", "0.1"), "lr", "0.1"),
        (("--lr=0.1",), "lr", "0.1"),
        (("--lr", "0.1", "--lr", "0.2"), "lr", "0.2"),
        (("--batch-size", "8"), "batch_size", "8"),
        (("--amp", "--lr", "1"), "amp", "true"),
        (("--amp",), "amp", "true"),
        (("--shift", "-1"), "shift", "-1"),
        (("-b", "8"), "b", "8"),
        (("lr", "0.1"), "lr", None),
        ((), "lr", None),
    ],
)
def test_what_an_option_was_given(args, name, value):
    assert argument(args, name) == value


def test_options_by_their_names():
    args = ("train", "--lr=0.1", "--layers", "1", "2", "--amp", "--shift", "-1", "-v")
    assert options_in(args) == {
        "word 1": "train", "--lr": "0.1", "--layers": "1 2", "--amp": "true", "--shift": "-1", "-v": "true"
    }  # fmt: skip


def test_text_for_a_shell_is_no_argument(tmp_path):
    folder = RunFolder(tmp_path / "job-abcd").succeeded()
    plan = json.loads(folder.run.plan.read_text())
    plan["entry"] |= {"kind": "command", "target": "/bin/sh", "args": ["-c", 'echo "$@"', "sh", "--lr", "1"]}
    folder.run.plan.write_text(json.dumps(plan))
    assert (about(folder.run, 1).command, about(folder.run, 1).args) == ('echo "$@"', ("--lr", "1"))


def test_of_a_run_without_any_record(tmp_path):

    folder = RunFolder(tmp_path / "job-abcd")
    assert about(folder.run, 0).args == ()
    folder.succeeded()
    assert about(folder.run, 1).args == ("--lr", "0.1")
    folder.run.plan.write_text("{")
    folder.run.labels.write_text("[]")
    assert (about(folder.run, 1).args, about(folder.run, 1).tags) == ((), ())
