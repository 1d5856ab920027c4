"""Test which operations are counted, and their share of a device's peak."""

import sys

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, loss_of, sgd, share, start, word_batch, words
from tiny_training import history, run_tiny

from trainer.errors import BadSettings
from trainer.loop import Settings, read_metrics
from trainer.loop.flops import Flops, count, peak_tflops
from trainer.strategies import StrategySettings, build
from trainer.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.0),
        ("NVIDIA H100 PCIe", "fp16", 756.0),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
        ("Tesla T4", "fp16", 65.0),
        ("NVIDIA T400 4GB", "fp16", None),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("NVIDIA GeForce GT 710", "fp32", None),
    ],
)
def test_the_peak_of_a_device_goes_by_its_name_and_precision(device, precision, peak):
    assert peak_tflops(device, precision) == peak


def test_the_share_is_that_of_all_devices():
    assert Flops(3e6, 6e9).in_line(500.0) == {"flops_per_s": 1.5e9, "mfu": 0.25}
    assert Flops(3e6).in_line(500.0) == {"flops_per_s": 1.5e9}, "nobody knows the peak"


def _counted(rank=0, size=1, strategy=None, **settings):
    if strategy is None:
        strategy = build(words(), ALONE, StrategySettings(strategy="none", **settings), sgd)
    batch = share(word_batch(1), rank, size)
    return count(strategy, lambda: loss_of(strategy.module, batch)), strategy


def _by_hand(tokens):
    """Multiplications and additions: three blocks of two matrices, and the head; thrice with the backward pass."""
    return 3 * 2 * tokens * (3 * 2 * 10 * 20 + 10 * 7)


def test_a_count_is_that_of_forward_and_backward_pass():
    found, strategy = _counted()
    assert found == _by_hand(tokens=60)
    assert all(parameter.grad is None for parameter in strategy.module.parameters())


@pytest.mark.parametrize("keeps", [(), ("matmul",)])
def test_what_is_recomputed_counts_once(keeps):
    assert _counted(activation_checkpointing=True, recompute_keeps=keeps)[0] == _by_hand(tokens=60)


def test_compiled_parts_are_counted_too(monkeypatch):
    def backend(graph, inputs):
        pytest.fail("what is compiled is not counted")

    def compile_parts(parts):
        for part in parts:
            part.compile(backend=backend)

    monkeypatch.setattr(sys.modules[build.__module__], "compile_parts", compile_parts)
    assert _counted(compile=True)[0] == _by_hand(tokens=60)


def _on_a_rank(trial):
    strategy, world = start(trial)
    return [_counted(world.rank, world.size, strategy)[0] for _ in range(2)]


def test_each_rank_counts_its_own_part():
    found = spawn_ranks(_on_a_rank, 2, Trial(StrategySettings(strategy="fsdp", activation_checkpointing=True)))
    assert found == [[_by_hand(tokens=30)] * 2] * 2


def _train(folder, settings):
    return run_tiny(folder, {"max_epochs": 2, **settings})


def test_counting_changes_nothing_but_the_lines(tmp_path, capfd):
    plain = spawn_ranks(_train, 2, tmp_path / "plain", {})
    assert spawn_ranks(_train, 2, tmp_path / "counted", {"count_flops": True, "peak_tflops": 1e-3}) == plain
    assert history(tmp_path / "counted") == history(tmp_path / "plain")
    for line in read_metrics(tmp_path / "counted" / "metrics"):
        assert line["mfu"] == pytest.approx(line["flops_per_s"] / 2e9)
        # Thrice the two layers; but of the first nobody asks for gradients of its inputs.
        assert line["flops_per_s"] == pytest.approx(line["samples_per_s"] * 2 * (2 * 4 * 16 + 3 * 16 * 2))
    assert capfd.readouterr().out.count("a sample takes 448 FLOPs, counted in ") == 1


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(BadSettings, match="count_flops: does not go with strategy dp"):
        Settings(max_steps=1, strategy="dp", count_flops=True)
    with pytest.raises(BadSettings, match="peak_tflops: expected with count_flops only, got it without"):
        Settings(max_steps=1, peak_tflops=3.0)
