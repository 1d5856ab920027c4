"""Learning happens: the shipped tasks reach stated values, on two ranks."""

import json
import subprocess
import sys

import pytest
from nodes_apart import run_apart
from picture_files import write_image_folder
from ranks import Ranks

from trainer.errors import BadSettings
from trainer.metrics_files import read_metrics
from trainer.tasks import gpt, resnet

pytestmark = pytest.mark.nightly

TEXT = ["--layers", "2", "--width", "64", "--context", "64", "--batch-size", "16", "--max-steps", "150"]


def train(main, tmp_path, *args, size=2):
    """Train to the end, and return the values of the last validation."""
    always = ["--checkpoint-dir", str(tmp_path / "checkpoints"), "--out", str(tmp_path / "metrics")]
    assert Ranks(main, size, [*args, *always]).results(limit_s=280) == [0] * size
    return read_metrics(tmp_path / "metrics")[-1]


@pytest.mark.timeout(300)
def test_a_resnet_tells_stripes_apart(tmp_path):
    """The first third of what jobs/resnet_ddp.yaml does, at a higher rate."""
    args = ["--max-steps", "45", "--batch-size", "32", "--lr", "0.02", "--validation-images", "200"]
    assert train(resnet.main, tmp_path, *args)["val_accuracy"] >= 0.4, "by chance it would be 0.1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_transformer_learns_to_read(tmp_path, strategy):
    args = [*TEXT, "--strategy", strategy, "--warmup-steps", "15", "--lr", "0.006"]
    assert train(gpt.main, tmp_path, *args)["val_bits_per_byte"] < 3.7, "single bytes by how often they come: 4.7"


def train_gpt(folder, args):
    return gpt.main([*args, "--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder / "metrics")])


def test_it_writes_a_sample_where_no_node_has_a_whole_checkpoint(tmp_path, capfd):
    text = tmp_path / "text"
    text.write_bytes(b"na na na batman!\n" * 500)
    args = ["--text", str(text), "--sample", "60", "--layers", "1", "--width", "32", "--context", "32"]
    args += ["--max-steps", "200", "--warmup-steps", "5", "--lr", "0.01"]
    assert run_apart(train_gpt, tmp_path / "nodes", args, nodes=(1, 1)) == [0, 0]
    assert capfd.readouterr().out.count("na na na batman!") >= 2


@pytest.mark.daily
@pytest.mark.parametrize(
    ("main", "args", "says"),
    [
        (resnet.main, ["--model", "resnet19"], "--model: expected a torchvision classifier, got 'resnet19'\nhint: "),
        (resnet.main, ["--data", "cifar10"], "--data cifar10: expected --root"),
        (resnet.main, ["--data", "image_folder", "--root", "/nowhere"], "--root: expected a folder, found none at"),
        (resnet.main, ["--strategy", "dpp"], "--strategy: expected one of"),
        (gpt.main, ["--text", "/nowhere"], "--text: expected a file with text, /nowhere: No such file"),
        (gpt.main, ["--width", "100", "--heads", "3"], "--width: expected a multiple of 6"),
    ],
)
def test_mistakes_are_named_before_anything_starts(tmp_path, monkeypatch, main, args, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSettings, match=says):
        main(args)
    assert not list(tmp_path.iterdir())


def test_on_a_terminal_a_mistake_is_one_message(tmp_path):
    command = [sys.executable, "-m", "trainer.tasks.resnet", "--model", "resnet19"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.splitlines()[0] == "error: --model: expected a torchvision classifier, got 'resnet19'"


def test_data_from_a_folder(tmp_path):
    write_image_folder(tmp_path / "data", rows=10)
    args = ["--data", "image_folder", "--root", str(tmp_path / "data"), "--pixels", "16", "--batch-size", "8"]
    model = ["--model", "squeezenet1_1", "--lr", "0.003", "--max-steps", "40"]
    assert train(resnet.main, tmp_path, *args, *model)["val_loss"] < 0.5, "by chance it would be 0.69"
    lines = (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
