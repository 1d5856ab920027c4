"""Test how slow ranks are found, from numbers, and on ranks with controlled clocks."""

import json
import os

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import run_tiny

from trainer.loop import loop, phases, read_metrics
from trainer.loop import trainer as putting_together
from trainer.loop.stragglers import Stragglers, in_line, own_seconds, peak_memory_gb

SLOW = [(1.0, 2.0), (1.1, 9.0), (1.9, 2.0), (0.9, 3.0)]  # seconds and GB by rank
ALIKE = [(1.0, 2.0), (1.1, 2.0), (1.2, 2.0), (0.9, 2.0)]
OTHER = [(1.9, 2.0), *SLOW[1:2], (1.0, 2.0), SLOW[3]]


def verdicts(lines, factor=1.5, step_s=2.0):
    """Return what `Stragglers` returns for each of these lines, one step after another."""
    watch = Stragglers(factor)
    return [watch.take(in_line(told), step_s) for told in lines]


def test_a_line_names_the_slowest_rank_and_the_most_memory():
    spread = {"least": 0.9, "median": 1.0, "most": 1.9}
    assert in_line(SLOW) == {"memory_gb": 9.0, "own_seconds": spread, "slowest_rank": 2}
    assert in_line([(1.0, 2.0)]) == {"memory_gb": 2.0}, "of a world of one there is no spread"


def test_a_rank_that_stays_slow_is_told_of_once():
    words = verdicts([SLOW] * 12)
    assert [bool(one) for one in words] == [False] * 4 + [True] + [False] * 7
    assert words[4].startswith("rank 2 is slow: its own work takes 1.9 s of each step, the usual rank's 1 s")


@pytest.mark.parametrize(
    "lines", [[ALIKE] * 9, [SLOW] * 4 + [ALIKE] + [SLOW] * 4, [SLOW, OTHER] * 6, [[(1.0, 2.0)]] * 9]
)
def test_a_hiccup_is_no_straggler(lines):
    assert not any(verdicts(lines))


def test_what_is_short_beside_a_step_does_not_matter():
    assert not any(verdicts([SLOW] * 9, step_s=20.0))
    assert not any(verdicts([SLOW] * 9, factor=2.0))


def test_another_rank_is_told_of_too():
    assert [one.split()[1] for one in verdicts([SLOW] * 6 + [OTHER] * 6) if one] == ["2", "0"]


def test_own_work_is_what_is_done_without_the_others():
    seconds = {"data": 1.0, "copy": 2.0, "forward": 4.0, "backward": 8.0, "optimizer": 16.0}
    assert own_seconds(seconds, meets_in_forward=False) == 5.0
    assert own_seconds(seconds, meets_in_forward=True) == 1.0


def test_memory_is_that_of_the_tensors_on_a_gpu_and_of_the_process_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3e9)
    assert peak_memory_gb(torch.device("cuda", 0)) == 3.0
    assert 0.05 < peak_memory_gb(torch.device("cpu")) < 1000


class Told(phases.HostPhases):
    """A stopwatch on which rank 1 needs thrice as long, whatever the time."""

    rank = 0

    def take(self):
        super().take()
        return {"data": 2.0 if self.rank else 0.5, "forward": 1.0 if self.rank else 0.5}, 4.0


def _slow(folder, settings):
    def tell(device):
        watch = Told()
        watch.rank = torch.distributed.get_rank()
        return watch

    putting_together.phases_on = tell
    os.environ["LAUNCH_PROGRESS"] = str(folder / "told")  # what the first rank would say to launch
    loop.peak_memory_gb = lambda device: 2.0 + torch.distributed.get_rank()
    return run_tiny(folder, {"max_epochs": 1, **settings})["code"]


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({"spike_factor": 100.0}, {"least": 1.0, "median": 1.0, "most": 3.0}),
        ({"strategy": "fsdp"}, {"least": 0.5, "median": 0.5, "most": 2.0}),
    ],
)
def test_ranks_find_the_slow_one_among_them(tmp_path, capfd, settings, own):
    os.mkfifo(tmp_path / "told")
    ear = os.open(tmp_path / "told", os.O_RDWR | os.O_NONBLOCK)
    assert spawn_ranks(_slow, 2, tmp_path, settings) == [0, 0]
    for line in read_metrics(tmp_path / "metrics"):
        assert (line["own_seconds"], line["slowest_rank"], line["memory_gb"]) == (own, 1, 3.0)
    assert capfd.readouterr().out.count("rank 1 is slow") == 1
    assert [line["slow_rank"] for line in read_metrics(tmp_path / "metrics") if "slow_rank" in line] == [1]
    told = [json.loads(line) for line in os.read(ear, 1 << 20).splitlines()]
    os.close(ear)
    slow = {"slow_rank": 1, "slow_s": own["most"], "usual_s": own["median"]}
    assert [words for words in told if "slow_rank" in words] == [slow]
