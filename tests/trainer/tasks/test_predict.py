"""Predictions: the same file whatever the number of ranks, killed or not; each sample once."""

import json
import os
import random
import re
import shutil
import signal
import time

import pytest
import torch
from holding import wait_until
from nodes_apart import disk, start_apart
from ranks import Ranks, spawn_ranks
from torch.utils.data import TensorDataset

from tests.sizes import SEED
from trainer.checkpoint_files import catalog
from trainer.loop.settings import Settings
from trainer.metrics_files import read_metrics
from trainer.stopping import StopRequest
from trainer.strategies import EvaluatedModel
from trainer.tasks import gpt, predict, resnet
from trainer.tasks.answers import Answers
from trainer.tasks.predict import Prediction, Queue, _answered_shards, _in_step
from trainer.world import World, join

pytestmark = pytest.mark.nightly

NET = ["--model", "shufflenet_v2_x0_5", "--pixels", "16", "--validation-images", "230", "--validation-batch-size", "4"]
TEXT = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "32"]


def train(main, folder, *args):
    """A few steps; what the last validation of them found."""
    always = ["--checkpoint-dir", str(folder), "--out", str(folder.parent / "metrics")]
    assert spawn_ranks(main, 1, [*args, *always, "--strategy", "none"]) == [0]
    assert len(catalog.entries(folder)) == 1
    return read_metrics(folder.parent / "metrics")[-1]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net") / "checkpoints"
    info = train(resnet.main, folder, *NET, "--max-steps", "12", "--batch-size", "16", "--lr", "0.05")
    return folder, info


@pytest.fixture(scope="module")
def whole(net, tmp_path_factory):
    """Return the answers that one rank writes."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    assert predicted(net[0], out, 1) == [0]
    return out.read_bytes()


def arguments(folder, out):
    return [*NET, "--predict", str(out), "--checkpoint", str(folder)]


def predicted(folder, out, size, *more):
    return spawn_ranks(resnet.main, size, [*arguments(folder, out), *more])


@pytest.mark.daily
@pytest.mark.parametrize("size", [2, 3])
def test_the_number_of_ranks_does_not_matter(net, whole, tmp_path, size):
    assert predicted(net[0], tmp_path / "out.jsonl", size) == [0] * size
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.about.json"]


@pytest.mark.daily
def test_each_image_has_its_line_in_order(net, whole):
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [line["index"] for line in lines] == list(range(230))
    assert [line["label"] for line in lines] == [(4096 + index) % 10 for index in range(230)]
    assert all(0.1 <= line["probability"] <= 1 and 0 <= line["prediction"] < 10 for line in lines)
    right = sum(line["label"] == line["prediction"] for line in lines)
    assert right / 230 == pytest.approx(net[1]["val_accuracy"]), "what validation found in the training"


def killed_midway(ranks, out, chance, sig, rank=None):
    """Strike when some shards are there and others are not; how many were."""
    limit = time.monotonic() + 150
    wanted = chance.randint(1, 25)
    while len(shards(out)) < wanted:
        assert time.monotonic() < limit, "no shards appear"
        time.sleep(0.001)
    ranks.kill(rank, sig)
    (out.parent / f"struck {rank}").touch()
    return wanted


def held(out, args):
    """Predict, but stop near the end until this rank was killed, or all are to end."""
    struck = [out.parent / f"struck {rank}" for rank in (None, os.environ["RANK"], "elsewhere")]
    put, close = Answers.put, Queue.close

    def stand_still(answers, shard, *said):
        if shard.start >= 30 * len(shard):
            wait_until(lambda: any(path.exists() for path in struck))
        put(answers, shard, *said)

    def tell(queue):
        close(queue)
        struck[-1].touch()

    Answers.put, Queue.close = stand_still, tell
    return resnet.main(args)


def shards(out):
    folder = out.with_name(out.name + ".parts")
    return list(folder.glob("0*")) if folder.exists() else []


@pytest.mark.parametrize(("before", "first", "after", "then"), [(2, "ddp", 3, "fsdp"), (3, "fsdp", 1, "ddp")])
def test_killed_and_resumed_with_others(net, whole, tmp_path, capfd, before, first, after, then):
    seed = SEED
    print("seed", seed)
    out = tmp_path / "out.jsonl"
    ranks = Ranks(held, before, out, [*arguments(net[0], out), "--strategy", first])
    killed_midway(ranks, out, random.Random(seed), signal.SIGKILL)
    assert {kind for kind, _ in ranks.outcomes()} <= {"killed", "raised"}, "the fault did not fire"
    assert not out.exists()
    kept = {path.name: path.stat().st_mtime_ns for path in shards(out)}
    capfd.readouterr()
    ranks = Ranks(resnet.main, after, [*arguments(net[0], out), "--strategy", then])
    assert ranks.results() == [0] * after
    assert out.read_bytes() == whole
    said = re.search(r"230 samples in 58 shards, (\d+) of them to do", capfd.readouterr().out)
    assert said is not None and int(said[1]) == 58 - len(kept) < 58


@pytest.mark.parametrize(
    ("asked", "strategy"),
    [(None, "ddp"), (0, "ddp"), (1, "ddp"), (None, "fsdp")],
    ids=["all", "first", "second", "all that share a model"],
)
def test_asked_to_stop_it_keeps_what_is_done(net, whole, tmp_path, asked, strategy):
    seed = SEED
    print("seed", seed)
    out = tmp_path / "out.jsonl"
    ranks = Ranks(held, 2, out, [*arguments(net[0], out), "--strategy", strategy])
    at_least = killed_midway(ranks, out, random.Random(seed), signal.SIGTERM, asked)
    assert ranks.results() == [75, 75]
    assert at_least <= len(shards(out)) < 58 and not out.exists()
    assert predicted(net[0], out, 2) == [0, 0]
    assert out.read_bytes() == whole


@pytest.mark.daily
def test_each_batch_is_a_sign_of_life():
    world = World(0, 1, 0, 1, torch.device("cpu"))
    prediction = Prediction(
        task="none",
        model=torch.nn.Identity(),
        dataset=TensorDataset(torch.zeros(10, 1)),
        data="ten zeros",
        answer=lambda model, batch: ([{} for _ in batch[0]], []),
        mean="nothing",
        batch_size=3,
        settings=Settings(max_steps=1),
    )
    queue, signs = Queue([range(10)], 3, world), []
    [(shard, lines, _)] = _answered_shards(
        prediction, EvaluatedModel(prediction.model), queue, world, StopRequest(), lambda: signs.append(1)
    )
    assert (shard, len(lines), len(signs)) == (range(10), 10, 4)


def rounds(most):
    """Return the batches that this rank computes, and which of them count."""
    world = join(device="cpu")
    own = most[world.rank]
    return list(_in_step(((10 * world.rank + number, True) for number in range(own)), ["some"], world))


@pytest.mark.daily
def test_who_has_no_batch_left_goes_on_taking_part():
    filler = (["some"], False)
    many, none, few = spawn_ranks(rounds, 3, [3, 0, 1])
    assert many == [(0, True), (1, True), (2, True)]
    assert none == [filler] * 3
    assert few == [(20, True), filler, filler]


def on_own_disk(folder, lost):
    """Predict from a disk of this node's own; with `lost`, kill the process when answers are brought together."""
    if lost:
        predict.bring_answers = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    return resnet.main(arguments(folder / "checkpoints", folder / "out.jsonl"))


def test_nodes_with_a_disk_each_share_the_checkpoint_of_one_and_the_first_gets_all_answers(net, whole, tmp_path, capfd):
    first, second = disk(tmp_path, 0), disk(tmp_path, 1)
    shutil.copytree(net[0], second / "checkpoints")
    ranks = start_apart(on_own_disk, tmp_path, True, nodes=(1, 1))
    assert {kind for kind, _ in ranks.outcomes()} == {"killed"}
    counts = [len(shards(one / "out.jsonl")) for one in (first, second)]
    assert sum(counts) == 58
    assert all(counts)
    assert start_apart(on_own_disk, tmp_path, False, nodes=(1, 1)).results() == [0, 0]
    assert "230 samples in 58 shards, 0 of them to do" in capfd.readouterr().out
    assert (first / "out.jsonl").read_bytes() == whole
    assert sorted(path.name for path in first.iterdir()) == ["checkpoints", "out.jsonl", "out.jsonl.about.json"]
    assert [path.name for path in second.iterdir()] == ["checkpoints"]


def test_a_second_start_finds_it_done(net, whole, tmp_path, capfd):
    out = tmp_path / "out.jsonl"
    predicted(net[0], out, 1)
    before = out.stat().st_mtime_ns
    capfd.readouterr()
    assert predicted(net[0], out, 2) == [0, 0]
    assert "is there already" in capfd.readouterr().out
    assert out.stat().st_mtime_ns == before


def test_workers_make_no_difference(net, whole, tmp_path):
    out = tmp_path / "out.jsonl"
    assert spawn_ranks(resnet.main, 1, [*arguments(net[0], out), "--workers", "1"]) == [0]
    assert out.read_bytes() == whole


def failed(main, args):
    """The message that ends it; the same on all ranks."""
    outcomes = Ranks(main, 2, args).outcomes()
    texts = {what.strip().rpartition("trainer.errors.")[2] for kind, what in outcomes if kind == "raised"}
    assert len(texts) == 1 and len(outcomes) == 2, outcomes
    return texts.pop()


@pytest.mark.daily
def test_an_unknown_checkpoint(net, tmp_path):
    said = failed(resnet.main, arguments(tmp_path / "nowhere", tmp_path / "out"))
    assert said == f"BadSettings: --checkpoint: expected a folder with checkpoints, found none at {tmp_path}/nowhere"
    assert "expected a checkpoint, found none" in failed(resnet.main, arguments(tmp_path, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.daily
def test_a_checkpoint_of_another_model(net, tmp_path):
    args = [*arguments(net[0], tmp_path / "out"), "--model", "squeezenet1_1"]
    assert "is of another model" in failed(resnet.main, args)


def test_one_checkpoint_by_its_folder(net, whole, tmp_path):
    assert predicted(net[0] / "step-00000012", tmp_path / "out", 1) == [0]
    assert (tmp_path / "out").read_bytes() == whole


def test_bits_per_byte_of_each_window(tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 400)
    args = [*TEXT, "--text", str(text), "--batch-size", "8", "--validation-batch-size", "7"]
    info = train(gpt.main, tmp_path / "checkpoints", *args, "--max-steps", "20")
    found = []
    for size, strategy in ((1, "none"), (2, "ddp"), (3, "fsdp")):
        out = tmp_path / f"out-{size}"
        ask = [*args, "--predict", str(out), "--checkpoint", str(tmp_path / "checkpoints"), "--strategy", strategy]
        assert spawn_ranks(gpt.main, size, ask) == [0] * size
        found.append(out.read_bytes())
    assert len({*found}) == 1
    lines = [json.loads(line) for line in found[0].splitlines()]
    assert [line["index"] for line in lines] == list(range((1760 - 1) // 32))
    mean = sum(line["bits_per_byte"] for line in lines) / len(lines)
    assert mean == pytest.approx(info["val_bits_per_byte"], abs=1e-4)
