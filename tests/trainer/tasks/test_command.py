"""Test the common parts of the tasks' commands."""

import argparse

import pytest
import torch

from trainer.tasks import gpt, resnet
from trainer.tasks.command import number, run, schedule, settings_of


@pytest.mark.parametrize(
    ("args", "end"),
    [
        ([], (140, None, None)),
        (["--max-steps", "7"], (7, None, None)),
        (["--max-epochs", "3"], (None, 3, None)),
        (["--max-time-s", "9"], (None, None, 9.0)),
    ],
)
def test_the_usual_number_of_steps_holds_where_nothing_is_said_of_an_end(args, end):
    settings = settings_of(resnet.parse(args), steps=140)
    assert (settings.max_steps, settings.max_epochs, settings.max_time_s) == end


@pytest.mark.parametrize("module", [resnet, gpt])
def test_help(module, capsys):
    with pytest.raises(SystemExit) as ended:
        module.parse(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(option in said for option in ("--strategy", "--lr", "--predict", "--checkpoint", "--batch-size"))


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "x"])
def test_numbers_that_cannot_be(text):
    with pytest.raises((argparse.ArgumentTypeError, ValueError)):
        number(text)


def rates(kind, warmup, total, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = schedule(kind, warmup)(optimizer, total)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_the_rate_rises_and_falls():
    found = rates("cosine", 4, 24, 24)
    assert found[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert found[4:] == sorted(found[4:], reverse=True) and found[14] == pytest.approx(1.0) and 0 < found[-1] < 0.02
    assert rates("constant", 2, 24, 4) == [1.0, 2.0, 2.0, 2.0]
    assert rates("cosine", 0, None, 3) == [2.0, 2.0, 2.0], "nobody knows the end"
    assert rates("cosine", 0, 2, 4)[2:] == [0.0, 0.0]


def test_under_launch_a_mistake_is_an_exception(monkeypatch, capsys):
    assert run(lambda: resnet.main(["--model", "none"])) == 2
    assert capsys.readouterr().err.startswith("error: --model: expected a torchvision classifier, got 'none'")
    monkeypatch.setenv("LAUNCH_RUN_ID", "x")
    with pytest.raises(Exception, match="--model"):
        run(lambda: resnet.main(["--model", "none"]))
