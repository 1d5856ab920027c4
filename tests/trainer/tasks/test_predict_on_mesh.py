"""Predictions by ranks that share each layer, or its stages: the lines of one rank, each sample once, killed or not."""

import json
import os
import signal

import pytest
from ranks import Ranks, spawn_ranks

from trainer.checkpoint.stand_ins import has_values
from trainer.errors import TrainerError
from trainer.tasks import gpt, predict
from trainer.tasks.answers import Answers

pytestmark = pytest.mark.nightly

TEXT = ["--layers", "3", "--width", "16", "--heads", "2", "--context", "32", "--batch-size", "8"]
SAMPLES = 54
MESHES = [
    (2, "pp=2", "ddp", ["--pp-cut", "blocks.2"]),
    (2, "tp=2", "fsdp", []),
    (4, "pp=2,dp=2", "fsdp", ["--by-parts"]),
    (4, "pp=2,tp=2", "ddp", ["--workers", "1"]),
    (4, "dp=2,tp=2", "zero2", []),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the options that select a trained model's text and checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    text = folder / "text"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 400)
    own = [*TEXT, "--text", str(text)]
    always = ["--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder / "metrics")]
    assert spawn_ranks(gpt.main, 1, [*own, *always, "--max-steps", "10", "--strategy", "none"]) == [0]
    return [*own, "--validation-batch-size", "4", "--checkpoint", str(folder / "checkpoints")]


@pytest.fixture(scope="module")
def whole(trained, tmp_path_factory):
    """Return one rank's answers, and the weights that gave them."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    assert spawn_ranks(gpt.main, 1, [*trained, "--predict", str(out)]) == [0]
    return lines_of(out), about(out)


def lines_of(out):
    return [json.loads(line) for line in out.read_text().splitlines()]


def about(out):
    return json.loads(out.with_name(out.name + ".about.json").read_text())


def on_mesh(trained, out, mesh, strategy, more=()):
    return [*trained, "--predict", str(out), "--mesh", mesh, "--strategy", strategy, *more]


def same(out, whole):
    """Check that predictions are in the order of the samples, each once, and equal but for rounding."""
    lines, words = whole
    found = lines_of(out)
    assert [line["index"] for line in found] == list(range(SAMPLES))
    for name in ("loss", "bits_per_byte"):
        assert [line[name] for line in found] == pytest.approx([line[name] for line in lines], rel=1e-5)
    assert about(out)["weights"] == words["weights"]
    assert [path.name for path in sorted(out.parent.iterdir())] == ["out.jsonl", "out.jsonl.about.json"]


def share_of_model(args):
    """Predict; how many of the model's numbers this rank has meanwhile."""
    counts = []
    build = predict.build_for_evaluation

    def built(*given, **named):
        asked = build(*given, **named)
        own = [one for one in asked.module.parameters() if has_values(one)]
        counts.append(sum(getattr(one, "to_local", lambda one=one: one)().numel() for one in own))
        return asked

    predict.build_for_evaluation = built
    return gpt.main(args), *counts


@pytest.mark.parametrize(("ranks", "mesh", "strategy", "more"), MESHES)
def test_ranks_that_share_the_model_say_what_one_says(trained, whole, tmp_path, ranks, mesh, strategy, more):
    found = spawn_ranks(share_of_model, ranks, on_mesh(trained, tmp_path / "out.jsonl", mesh, strategy, more))
    same(tmp_path / "out.jsonl", whole)
    all_of_it = 256 * 16 + 3 * (12 * 16 * 16 + 2 * 2 * 16) + 2 * 16
    assert [code for code, _ in found] == [0] * ranks
    assert max(count for _, count in found) < 0.8 * all_of_it, "a rank has all of the model"


def struck_after(shards, target, sig, out, args):
    """Predict until this many shards exist, then send the signal to one rank."""
    (out.parent / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    put = Answers.put
    done = []

    def put_and_strike(answers, shard, *said):
        put(answers, shard, *said)
        done.append(shard)
        if len(done) == shards:
            os.kill(int((out.parent / f"pid-{target}").read_text()), sig)

    Answers.put = put_and_strike
    return gpt.main(args)


@pytest.mark.parametrize(("which", "target", "workers"), [(0, 0, "0"), (0, 1, "1"), (1, 1, "0"), (2, 0, "1")])
def test_asked_to_stop_all_of_them_keep_what_is_done(trained, whole, tmp_path, which, target, workers):
    ranks, mesh, strategy, more = MESHES[which]
    out = tmp_path / "done" / "out.jsonl"
    out.parent.mkdir()
    args = on_mesh(trained, out, mesh, strategy, [*more, "--workers", workers])
    assert spawn_ranks(struck_after, ranks, 2, target, signal.SIGTERM, out, args) == [75] * ranks
    kept = {*(out.parent / "out.jsonl.parts").glob("0*")}
    assert 2 <= len(kept) < 14 and not out.exists()
    stamps = {path.name: path.stat().st_mtime_ns for path in kept}
    for path in out.parent.glob("pid-*"):
        path.unlink()
    assert stamps == {path.name: path.stat().st_mtime_ns for path in kept}
    assert spawn_ranks(gpt.main, ranks, on_mesh(trained, out, mesh, strategy, more)) == [0] * ranks
    same(out, whole)


@pytest.mark.parametrize("target", [0, 1])
def test_killed_it_goes_on_with_what_is_missing_on_another_mesh(trained, whole, tmp_path, capfd, target):
    out = tmp_path / "done" / "out.jsonl"
    out.parent.mkdir()
    ranks = Ranks(struck_after, 2, 3, target, signal.SIGKILL, out, on_mesh(trained, out, "pp=2", "ddp"))
    assert "killed" in {kind for kind, _ in ranks.outcomes()} <= {"killed", "raised"}
    for path in out.parent.glob("pid-*"):
        path.unlink()
    there = len([*(out.parent / "out.jsonl.parts").glob("0*")])
    capfd.readouterr()
    assert spawn_ranks(gpt.main, 4, on_mesh(trained, out, "dp=2,tp=2", "fsdp")) == [0] * 4
    assert f"54 samples in 14 shards, {14 - there} of them to do" in capfd.readouterr().out
    same(out, whole)


def refusal(args):
    try:
        return gpt.main(args)
    except TrainerError as error:
        return str(error)


@pytest.mark.parametrize(
    ("mesh", "strategy", "said"),
    [
        ("tp=2", "ddp", "mesh: expected with strategy zero2, fsdp, hsdp only, got it with ddp"),
        ("pp=2,tp=2", "ddp", "pp=2 x tp=2 does not divide the world's 2 ranks\nhint: ranks share the model as in the"),
        ("pp=4", "ddp", "pp=4 does not divide the world's 2 ranks\nhint: ranks share the model as in the training"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_asked(trained, tmp_path, mesh, strategy, said):
    out = tmp_path / "out.jsonl"
    told = spawn_ranks(refusal, 2, on_mesh(trained, out, mesh, strategy))
    assert all(said in one for one in told), told
    assert not [*tmp_path.iterdir()]
