import argparse
import dataclasses
from pathlib import Path

import pytest

from trainer.errors import BadSettings
from trainer.loop.settings import Settings, add_options, first_and_last, from_options


def parsed(*words, **defaults):
    parser = argparse.ArgumentParser()
    add_options(parser, **defaults)
    return from_options(parser.parse_args(words))


def test_every_field_is_an_option_and_comes_back_as_it_was_written():
    settings = parsed(
        *("--max-epochs", "3", "--max-steps", "100", "--max-time-s", "2.5", "--batch-size", "64", "--accumulate", "2"),
        *("--no-shuffle", "--drop-last", "--workers", "4", "--strategy", "fsdp", "--precision", "bf16"),
        *("--blocks", "Block, head", "--units", "embedding", "--sync-each", "--by-parts", "--prefetch", "2"),
        *("--no-reshard", "--offload", "--bucket-mb", "50", "--recompute-every", "2"),
        *("--recompute-keeps", "matmul,attention", "--sync-batchnorm", "--cudnn-benchmark", "--gc-every", "100"),
        *("--shard-size", "2", "--clip-norm", "1.5", "--activation-checkpointing", "--compile", "--seed", "7"),
        *("--clip-value", "0.5"),
        *("--deterministic", "--device", "cpu", "--timeout-s", "30", "--validate-every", "50"),
        *("--validation-batch-size", "9", "--monitor", "val_accuracy", "--mode", "max", "--patience", "2"),
        *("--min-delta", "0.01", "--keep-best", "--checkpoint-dir", "c", "--checkpoint-every", "5 steps"),
        *("--checkpoint-keep", "4", "--log-every", "3", "--out", "m", "--tensorboard", "--profile", "3..4"),
        *("--lr-find", "--skip-limit", "7", "--resume", "must", "--hyperparameters", "given"),
        *("--unused-parameters", "--spike-factor", "9", "--spike-action", "rewind", "--straggler-factor", "3"),
        *("--overfit-batches", "2", "--fast-dev-run", "1"),
        *("--count-flops", "--peak-tflops", "312", "--ema", "0.999", "--mesh", "dp=2"),
        *("--pp-schedule", "gpipe", "--pp-cut", "time", "--pp-microbatches", "6"),
    )
    assert settings == Settings(
        max_epochs=3, max_steps=100, max_time_s=2.5, batch_size=64, accumulate=2, shuffle=False, drop_last=True,
        workers=4, strategy="fsdp", precision="bf16", shard_size=2, clip_norm=1.5, clip_value=0.5, ema=0.999,
        blocks=("Block", "head"), units=("embedding",), sync_each=True, by_parts=True, prefetch=2,
        activation_checkpointing=True,
        compile=True, seed=7, deterministic=True, device="cpu", timeout_s=30.0, validate_every=50,
        validation_batch_size=9, monitor="val_accuracy", mode="max", patience=2, min_delta=0.01, keep_best=True,
        checkpoint_dir=Path("c"), checkpoint_every="5 steps", checkpoint_keep=4, log_every=3, out=Path("m"),
        tensorboard=True, profile="3..4", lr_find=True, skip_limit=7, resume="must", hyperparameters="given",
            unused_parameters=True, spike_factor=9.0, spike_action="rewind", straggler_factor=3.0,
        count_flops=True, peak_tflops=312.0, overfit_batches=2, fast_dev_run=1,
        reshard=False, offload=True, bucket_mb=50.0, recompute_every=2, recompute_keeps=("matmul", "attention"),
        sync_batchnorm=True, cudnn_benchmark=True, gc_every=100, mesh="dp=2", pp_schedule="gpipe",
        pp_cut="time", pp_microbatches=6,
    )  # fmt: skip
    untouched = Settings(max_steps=1)
    kept = {f.name for f in dataclasses.fields(Settings) if getattr(settings, f.name) == getattr(untouched, f.name)}
    assert not kept, "not covered by this test"


def test_a_program_may_have_defaults_of_its_own_and_a_user_may_clear_them():
    settings = parsed("--patience", "none", max_steps=5, batch_size=8, patience=3)
    assert (settings.max_steps, settings.batch_size, settings.patience) == (5, 8, None)


def test_validation_by_steps_is_written_either_way():
    assert parsed("--max-steps", "1", "--validate-every", "50 steps").validate_every == 50
    assert parsed("--max-steps", "1", "--validate-every", "epoch").validate_every == "epoch"
    assert parsed("--max-steps", "1", "--validate-every", "never").validate_every == "never"


def test_all_problems_are_told_at_once_with_what_was_expected():
    with pytest.raises(BadSettings) as caught:
        parsed("--batch-size", "no", "--strategy", "dpp", "--precision", "fp8", "--checkpoint-every", "soon")
    said = str(caught.value).splitlines()
    assert "--batch-size: expected a whole number of at least 1, got 'no'" in said
    assert "--strategy: expected one of none, dp, ddp, zero1, zero2, fsdp, hsdp, got 'dpp'" in said
    assert said[said.index("--strategy: expected one of none, dp, ddp, zero1, zero2, fsdp, hsdp, got 'dpp'") + 1] in (
        "hint: did you mean dp?",
        "hint: did you mean ddp?",
    )
    assert "--checkpoint-every: expected something like '500 steps' or '90 s', got 'soon'" in said
    assert "--max-steps: expected an end: max_epochs, max_steps or max_time_s" in said
    assert any(line.startswith("--precision: ") for line in said)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"max_steps": 0}, "max_steps: expected a whole number of at least 1, got 0"),
        ({"max_steps": 1, "batch_size": "32"}, "batch_size: expected a whole number of at least 1, got '32'"),
        ({"max_steps": 1, "batch_size": True}, "batch_size: expected a whole number of at least 1, got True"),
        ({"max_steps": 1, "ema": 1.0}, "ema: expected a number above 0 and below 1, got 1.0"),
        ({"max_steps": 1, "clip_norm": 0.0}, "clip_norm: expected a number above 0, got 0.0"),
        ({"max_steps": 1, "clip_norm": float("nan")}, "clip_norm: expected a number above 0, got nan"),
        ({"max_steps": 1, "min_delta": -1.0}, "min_delta: expected a number of at least 0, got -1.0"),
        (
            {"max_steps": 1, "validate_every": 0},
            "validate_every: expected 'epoch', 'never' or a number of steps, got 0",
        ),
        (
            {"max_steps": 1, "recompute_keeps": ("softmax",)},
            "recompute_keeps: expected some of matmul, attention, convolution, got ('softmax',)",
        ),
        ({"max_steps": 1, "profile": "9..3"}, "profile: expected steps like 10..12, got '9..3'"),
        ({"max_steps": 1, "compile": "yes"}, "compile: expected true or false, got 'yes'"),
        ({"max_steps": 1, "batch_size": 2, "accumulate": 3}, "accumulate: expected at most the batch size, 2, got 3"),
        ({}, "max_steps: expected an end: max_epochs, max_steps or max_time_s"),
    ],
)
def test_values_that_cannot_work_are_refused(values, problem):
    with pytest.raises(BadSettings) as caught:
        Settings(**values)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("values", "ranks", "samples"),
    [
        ({"batch_size": 2048}, 8, 256),
        ({"batch_size": 10, "accumulate": 2}, 3, 2),
        ({"batch_size": 4, "accumulate": 4}, 8, 1),
        ({"batch_size": 2048, "validation_batch_size": 100}, 8, 100),
    ],
)
def test_a_rank_validates_as_many_samples_at_once_as_it_trains_on(values, ranks, samples):
    assert Settings(max_steps=1, **values).validation_samples(ranks) == samples


def test_a_default_for_what_is_no_setting_is_refused():
    with pytest.raises(BadSettings, match="no such setting: lr"):
        add_options(argparse.ArgumentParser(), lr=0.1)


def test_the_help_names_every_option_and_its_default():
    parser = argparse.ArgumentParser()
    add_options(parser, batch_size=48)
    said = parser.format_help()
    for field in dataclasses.fields(Settings):
        assert "--" + field.name.replace("_", "-") in said
    assert "(default: 48)" in " ".join(said.split())


def test_steps_to_profile():
    assert first_and_last("3..12") == (3, 12)
    for text in ("3", "3..", "0..2", "4..3", "a..b"):
        with pytest.raises(ValueError, match=text.replace(".", r"\.")):
            first_and_last(text)


def test_an_unknown_setting_is_refused_with_what_was_meant():
    with pytest.raises(BadSettings, match=r"^no such setting: batchsize\nhint: did you mean batch_size\?$"):
        Settings(max_steps=1, batchsize=3)
    with pytest.raises(
        BadSettings, match=r"^no such setting: max_epoch\nhint: did you mean max_epochs\?\nno such setting: zzz"
    ):
        Settings(max_epoch=1, zzz=3)
    with pytest.raises(BadSettings, match=r"^no such setting: paticence\nhint: did you mean patience\?$"):
        add_options(argparse.ArgumentParser(), paticence=3)
    with pytest.raises(BadSettings, match=r"^settings: expected values by name, got 3\nhint: Settings\(max_epochs=3\)"):
        Settings(3)
    assert dataclasses.replace(Settings(max_steps=1), batch_size=7).batch_size == 7
