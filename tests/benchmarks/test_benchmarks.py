"""The benchmarks run: tiny, and whatever figures come out. No figure decides about a test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import needs_browser

HERE = Path(__file__).parent
OWN_STORE = "torchrun, own store"


def run(script, *words):
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TABLES = [
    ("start", ["--ranks", "2", "--pairs", "1", "--peers", "launch", OWN_STORE], ["2 | launch", f"2 | {OWN_STORE}"]),
    ("recover", ["--ranks", "2", "--kills", "2", "--peers", "launch"], ["launch | 2 of 2"]),
    (
        "resume_step",
        ["--jobs", "mlp", "--ranks", "2", "--kills", "1", "--peers", "launch, hot", "launch"],
        ["mlp | 2 | launch, hot | 1 of 1", "mlp | 2 | launch | 1 of 1"],
    ),
    ("kills", ["--trainings", "ddp", "--kills", "2"], ["ddp | 2"]),
    ("field", ["--peers", "launch, hot", "--ranks", "2", "--starts", "1", "--kills", "1"], ["launch, hot | 1 of 1"]),
    ("spare", ["--pairs", "1", "--faults", "power cut"], ["power cut | launch | 1", "power cut | launch, hot | 1"]),
    ("striping", ["--megabytes", "2", "--pairs", "1"], ["loopback"]),
    ("joins", ["--pairs", "1", "--job", "mlp"], ["launch | 1", "launch, hot | 1"]),
    ("health", ["--pairs", "1"], ["false | 1 of 1", "true | 1 of 1"]),
    ("memory", ["--ranks", "2", "--pairs", "1", "--peers", "launch"], ["launch"]),
    ("cli", ["--runs", "3", "--repeats", "1"], ["`launch --help`", "`launch status, 3 runs`"]),
    ("idle", ["--ranks", "2", "--seconds", "1"], ["agent", "supervisor"]),
    ("many_runs", ["--runs", "3", "--repeats", "1"], ["`launch prune --state ended --dry-run`", "`launch du`"]),
    ("traced", ["--pairs", "1", "--kinds", "much to send"], ["much to send"]),
    (
        "collectives",
        ["--pairs", "1", "--ranks", "2", "--sizes", "1024", "--operations", "all-reduce", "send/recv"],
        ["all-reduce, 2 ranks, 1 KB", "send/recv, 2 ranks, 1 KB"],
    ),
    ("pipeline", ["--pairs", "1", "--parts", "2", "--warm", "1", "--steps", "1", "--batch-size", "4"], ["2"]),
    (
        "pipeline",
        ["--fsdp", "--pairs", "1", "--parts", "2", "--warm", "1", "--steps", "1", "--batch-size", "4"],
        ["2"],
    ),
    (
        "pipeline",
        ["--cut", "--pairs", "1", "--parts", "2", "--warm", "1", "--steps", "1", "--batch-size", "4"],
        ["2"],
    ),
    ("load", ["--ranks", "1", "--children", "1", "--others", "3", "--samples", "2"], ["1 x 2"]),
    ("coordinator", ["--sizes", "3", "--rounds", "1"], ["3"]),
    (
        "checkpoint_save",
        [
            *("--megabytes", "2", "--windows-s", "0.1", "--rounds", "1", "--volume-megabytes", "1"),
            *("--volume-ranks", "2", "--methods", "Checkpointer", "torch.save, fsync", "DCP, thread, kept memory"),
        ],
        ["2 MB, 2 ranks | Checkpointer", "2 MB, 2 ranks | DCP, thread, kept memory"],
    ),
    (
        "checkpoint_load",
        ["--megabytes", "2", "--ranks", "2", "--rounds", "1"],
        ["2 MB, 2 ranks, cached | Checkpointer.load", "2 MB, 2 ranks, not cached | dcp.load"],
    ),
    (
        "train_step",
        ["--peers", "Trainer", "by hand", "--kinds", "mlp", "--pairs", "1", "--mlp-steps", "20"],
        ["mlp, 2 ranks | Trainer", "mlp, 2 ranks | by hand"],
    ),
    ("copies", ["--megabytes", "1", "--seconds", "5", "--every-s", "0.5"], ["with copies", "without"]),
    (
        "goodput",
        [
            *("--places", "local", "--sides", "launch", "launch, hot", "--faults", "rank kills"),
            *("--gaps", "5", "--minutes", "0.1", "--calm-s", "1", "--seed", "1"),
        ],
        ["local | rank kills | 5 s | launch", "local | rank kills | 5 s | launch, hot"],
    ),
    (
        "goodput",
        [*("--places", "local", "--only", "kill-rank", "kill-zygote"), *("--apart-s", "10", "--calm-s", "1")],
        ["local | launch | kill-rank | 1", "local | launch | kill-zygote | 1"],
    ),
    (
        "freeze",
        ["--files", "30", "--turns", "1"],
        ["list the files", "list and freeze, first time", "cp -r and sync"],
    ),
    ("many_ranks", ["--ranks", "4", "70", "--layers", "1"], ["4", "70"]),
    (
        "gpu",
        [
            *(
                "--device",
                "cpu",
                "--rounds",
                "1",
                "--steps",
                "20",
                "--speeds",
                "bf16, fsdp",
                "--megabytes",
                "1",
            ),
            *("--save-steps", "1", "--layers", "1", "--width", "128", "--context", "16", "--batch-size", "2"),
            *("--copies", "2", "--ranks", "2", "--sizes", "1KB", "--mesh", "tp=2"),
            *("--kills", "1", "--kill-steps", "20", "--tasks", "gpt, ddp"),
        ],
        [
            *("bf16, fsdp", "1 of together 0 MB", "0.00 GB", "all-reduce, 2 x 1 KB"),
            *("ddp, 2 ranks | 2", "fsdp, 2 ranks | 2", "tp=2, fsdp | 2"),
            *("gpt, ddp | 2 | hot | 1", "gpt, ddp | 2 | warm | 1"),
        ],
    ),
    (
        "sweeps",
        ["--trials", "2", "--seconds", "0.1", "--pairs", "1", "--peers", "launch", "Optuna"],
        ["launch", "Optuna"],
    ),
    (
        "serving",
        ["--pairs", "1", "--seconds", "0.3", "--clients", "4", "--pixels", "8", "--peers", "plain"],
        ["`launch serve`, requests a second", "p99, of that"],
    ),
    (
        "in_place_cost",
        ["--jobs", "mlp", "--strategies", "ddp", "--pairs", "1", "--steps", "5"],
        ["mlp | ddp"],
    ),
    ("search", ["--seeds", "1", "--trials", "3"], ["tpe", "asha"]),
    ("roles", ["--pairs", "1", "--kills", "1"], ["launch", "launch, three roles", "1"]),
]


@pytest.mark.nightly
@pytest.mark.timeout(900)  # only against hanging: `gpu` starts some twenty trainings
@pytest.mark.parametrize(("name", "words", "rows"), TABLES)
def test_it_runs_and_shows_a_table(name, words, rows):
    table = [line for line in run(HERE / f"{name}.py", *words).splitlines() if line.startswith("|")]
    assert table[1].strip("|-") == ""
    for row in rows:
        assert any(line.startswith(f"| {row} |") for line in table), table


@needs_browser
@pytest.mark.nightly
def test_that_of_the_board_runs_and_shows_both_tables():
    told = run(
        HERE / "board.py", "--runs", "2", "--points", "20", "--curves", "2", "--curve-points", "20", "--seconds", "1",
        "--pairs", "1",
    )  # fmt: skip
    for row in ("| 2 runs, 2 live | memory, MB |", "| 2 curves of 20 points |", "| launch board |", "| TensorBoard |"):
        assert row in told


@pytest.mark.nightly
def test_without_a_gpu_it_says_so():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(HERE / "gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "no NVIDIA GPU" in done.stdout


@pytest.mark.nightly
def test_what_is_missing_for_a_comparison_is_named():
    hidden = "import sys; sys.modules['accelerate'] = None; sys.argv[1:] = ['--peers', 'Trainer', 'Accelerate']"
    script = f"{hidden}; import train_step; train_step.main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 1
    assert "not installed: accelerate" in done.stderr
    assert "--with accelerate" in done.stderr


def test_its_section_of_the_results_is_replaced_and_no_other(tmp_path):
    shutil.copy(HERE / "results.py", tmp_path)
    script = "import sys; from results import publish; publish(sys.argv[1], sys.argv[2], write=True)"
    for name, table in (("one", "| first |"), ("two", "| second |"), ("one", r"| third \1 |")):
        subprocess.run([sys.executable, "-c", script, name, table], cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.count("## one.py") == text.count("## two.py") == 1
    assert "first" not in text
    assert text.index(r"| third \1 |") < text.index("| second |")
