"""Good specs mean what they say; files that cannot be read say why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import BadInput
from launcher.spec.model import (
    Budget,
    CheckpointOptions,
    Code,
    JobSpec,
    NodeRange,
    NotifyOptions,
    NotifyTarget,
    Predecessor,
    QueueOptions,
    Recovery,
    Resources,
    RunOptions,
    Secret,
    Slurm,
    Ssh,
    SshHost,
)
from launcher.spec.read import parse_spec, position, read_spec

FULL = Path(__file__).parent / "full.yaml"
HEAD = "name: a\nrun: {script: t.py}\n"


def test_the_least_spec_has_all_defaults() -> None:
    assert parse_spec(HEAD, "job.yaml") == JobSpec(name="a", run=RunOptions(script="t.py"))


def test_every_option() -> None:
    assert read_spec(FULL) == JobSpec(
        name="full-job_1",
        description="Two lines,\na tab\tto see.\n",
        run=RunOptions(
            script="src/train.py",
            args=(
                *("--epochs", "010", "--lr", "1e-3", "--at", "12:30:45", "--amp", "--answer", "yes", "--empty", ""),
                *("--raw", "x", "-v", "--milestones", "30", "060", "yes", "null-ish", "--none"),
            ),
            workdir="./",
            setup="echo one\necho two\n",
            python=".venv/bin/python",
            preload=("torch", "torch.distributed"),
            outputs=("results/", "*.csv"),
        ),
        resources=Resources(NodeRange(2, 4), None, 0, 8, 63.5, 95_400.0),
        env={"A": "010", "B": "yes", "C": "12:30:45", "D": "", "E": "lines\n", "F": "null", "g_1": "a=b c"},
        secrets=(Secret("HF_TOKEN"), Secret("WANDB_API_KEY", "~/.wandb key")),
        code=Code(("data/*.txt",), ("notebooks/**", "*.ipynb"), 3 * 2**29),
        checkpoint=CheckpointOptions(
            every_steps=500, keep=5, dir="out/checkpoints", memory_every_steps=20, memory_limit_bytes=3 * 2**29,
            copy_limit_bytes=250_000_000, buddy=True, copy_lag_steps=1000, copy_to="s3://bucket/prefix",
            copy_to_every_s=3600.0, copy_to_keep=5, copy_to_limit_bytes=100_000_000,
        ),
        recovery=Recovery(
            user_error=Budget(0, refill_s=86_400.0, explicit=True),
            out_of_memory=Budget(None, refill_s=21_600.0),
            killed=Budget(7, 0.5, 60.0, explicit=True),
            hang=Budget(5, 5.0, 5.0, 21_600.0),
            communication=Budget(1, explicit=True),
            node_lost=Budget(2, explicit=True),
            preempted=Budget(None),
            time_limit=Budget(3, explicit=True),
            launcher_fault=Budget(4, explicit=True),
            disk=Budget(6, 5.0, 300.0, None, explicit=True),
            hang_after_s=None,
            hang_auto=False,
            hang_at_start_s=7200.0,
            no_progress=None,
            spares=1,
            wait_s=300.0,
            lease_s=90.0,
            grace_s=0.0,
            group_timeout_s=1200.0,
            mode="hot",
            health=True,
            link_floor_bytes=50_000_000,
            replace_stragglers=True,
        ),
        notify=NotifyOptions(
            (
                NotifyTarget("slack", Secret("SLACK_WEBHOOK")),
                NotifyTarget("discord", Secret("file", "~/.discord")),
                NotifyTarget("email", address="me@example.org"),
                NotifyTarget("command", argv=("notify-send", "a b")),
                NotifyTarget("command", argv=("/bin/sh", "-c", "cat > /dev/null")),
            ),
            ("stalled", "ended"), 0, 3600.0,
        ),
        queue=QueueOptions(
            priority=-7,
            after=(Predecessor("prep-7k3f"), Predecessor("vit", "ended"), Predecessor("last", "step", 1000)),
            hold=True,
            at="2027-01-31 22:00",
            slots=4,
            max_parallel=2,
        ),
        slurm=Slurm(
            "gpu,long", "acc", "high", "a100|h100", "res", ("n[1-3]",), ("n7", "n8"), "gpu:a100:4",
            "me@example.org", ("END",), 90.0, "ib0", "/images/a b", {"exclusive": "", "comment": "yes"},
        ),
        ssh=Ssh(
            (SshHost("gpu01"), SshHost("gpu02", "fe80::1", "me", 2222, "~/.ssh/id", 4, "/opt/python", "/scratch")),
            True, "pool", 2200, "~/.ssh/pool", True, 8, "/opt/pool/python", "~/launch",
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "steps", "seconds"),
    [("1 step", 1, None), ("500 steps", 500, None), ("10m", None, 600.0), ("'00:10:00'", None, 600.0)],
)
def test_every_is_steps_or_time(written: str, steps: int | None, seconds: float | None) -> None:
    checkpoint = parse_spec(f"{HEAD}checkpoint: {{every: {written}}}\n", "job.yaml").checkpoint
    assert (checkpoint.every_steps, checkpoint.every_s) == (steps, seconds)


@pytest.mark.parametrize(
    ("run", "command", "args"),
    [
        ("command: ./a --b | tee c", "./a --b | tee c", ()),
        ("command: [./a, 010, yes]", ("./a", "010", "yes"), ()),
        ("command: [./a]\n  args: [010, yes, '', 1e3]", ("./a",), ("010", "yes", "", "1e3")),
        ("command: |\n    a\n    b\n  args:", "a\nb\n", ()),
    ],
)
def test_a_command_is_text_or_a_list(run: str, command: object, args: tuple[str, ...]) -> None:
    spec = parse_spec(f"name: a\nrun:\n  {run}\n", "job.yaml")
    assert (spec.run.command, spec.run.args) == (command, args)


def test_a_mesh_may_be_a_mapping_as_the_trainer_has_it() -> None:
    text = "name: a\nrun: {script: a, args: {mesh: {pp: 2, dp: 4}, lr: 1}}\n"
    assert parse_spec(text, "job.yaml").run.args == ("--mesh", "pp=2,dp=4", "--lr", "1")
    words = "name: a\nrun: {script: a, args: {mesh: 'pp=2,dp=4', lr: 1}}\n"
    assert parse_spec(words, "job.yaml") == parse_spec(text, "job.yaml")


def test_an_empty_list_of_modules_is_not_the_default() -> None:
    assert parse_spec("name: a\nrun: {module: a.b, preload: []}\n", "job.yaml").run.preload == ()


def test_sections_may_be_empty() -> None:
    sections = "resources:\nenv:\nsecrets:\ncode: ~\ncheckpoint: {}\nrecovery:\nslurm:\nssh:\n"
    assert parse_spec(HEAD + sections, "job.yaml") == parse_spec(HEAD, "job.yaml")


def test_line_ends_of_windows_are_line_ends() -> None:
    text = HEAD + "env:\n  A: |\n    x\n    y\n"
    assert parse_spec(text.replace("\n", "\r\n"), "job.yaml") == parse_spec(text, "job.yaml")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"name: a\nrun: {script: \xff}\n", "2:15: yaml: not UTF-8: byte 0xff"),
        ("name: a # é\n".encode() + b"\xe9", "2:1: yaml: not UTF-8: byte 0xe9"),
        ("name: a\n".encode("utf-16"), "1:1: yaml: not UTF-8: byte 0xff"),
        (b"#" * 300_000, "1:1: yaml: longer than 256 KiB"),
    ],
    ids=["a byte", "latin 1", "UTF-16", "long"],
)
def test_a_file_that_is_no_text(tmp_path: Path, data: bytes, line: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(data)
    with pytest.raises(BadInput) as error:
        read_spec(file)
    assert error.value.lines[0] == f"{file}:{line}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    reasons = {
        tmp_path / "none.yaml": "no such file or directory",
        tmp_path: "not a file",
        tmp_path / "pipe": "not a file",
        tmp_path / ("x" * 300): "file name too long",
        Path("a\0b"): "not a file name",
    }
    for file, reason in reasons.items():
        with pytest.raises(BadInput, match=f": {reason}$") as error:
            read_spec(file)
        assert str(error.value).isprintable()
    with pytest.raises(BadInput, match="symbolic links"):
        read_spec(loop)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("name", (1, 7)),
        ("run", (2, 1)),
        ("run.script", (2, 15)),
        ("run.module", (2, 1)),
        ("resources.nodes", (1, 1)),
        ("env.A", (4, 6)),
        ("env.A.b", (4, 6)),
        ("secrets", (5, 1)),
    ],
)
def test_the_place_of_a_key(key: str, place: tuple[int, int]) -> None:
    assert position(HEAD + "env:\n  A: b\nsecrets: [B]\n", key) == place


def test_the_import_alone_loads_no_yaml() -> None:
    code = "import sys, launcher.spec; print(*{name.partition('.')[0] for name in sys.modules} & {'yaml', 'difflib'})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150)
    assert answer.stdout == "\n"


@pytest.mark.parametrize("text", ["", "[", "- a\n", "\x00", "name: a\n---\n"])
def test_the_place_of_a_key_in_no_spec(text: str) -> None:
    assert position(text, "run.script") == (1, 1)
