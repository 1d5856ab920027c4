"""Answers on disk: whole shards, one file at the end, and nothing of another job among them."""

import json
import random

import pytest

from tests.sizes import SEED
from trainer.errors import BadSettings
from trainer.tasks.answers import Answers, Job


def a_job(**more):
    facts = {"task": "t", "data": "d", "samples": 22, "batch_size": 5, "precision": "fp32", "weights": "w", "step": 7}
    return Job(**{**facts, **more})


def put(answers, shard):
    answers.put(shard, [{"value": index / 10} for index in shard], [index / 10 for index in shard])


def missing(answers):
    return [shard for shard in answers.shards if shard not in answers.whole()]


@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (22, 5), (5, 5), (1000, 1), (1001, 1), (123_457, 50)])
def test_shards_are_whole_batches_and_hold_each_sample_once(samples, batch):
    shards = a_job(samples=samples, batch_size=batch).shards()
    assert [index for shard in shards for index in shard] == list(range(samples))
    assert len(shards) <= 1000 and all(shard.start % batch == 0 for shard in shards)


def test_shards_in_any_order_become_one_file_in_order(tmp_path):
    seed = SEED
    print("seed", seed)
    answers = Answers(tmp_path / "out.jsonl", a_job())
    assert answers.begin() and missing(answers) == a_job().shards()
    for shard in random.Random(seed).sample(a_job().shards(), 5):
        put(answers, shard)
    assert missing(answers) == []
    assert answers.merge("mean") == pytest.approx(1.05)
    answers.clean_up()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [{"index": index, "value": index / 10} for index in range(22)]
    about = json.loads((tmp_path / "out.jsonl.about.json").read_text())
    assert about["mean"] == pytest.approx(1.05) and about["step"] == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.about.json"]
    assert not Answers(tmp_path / "out.jsonl", a_job()).begin(), "it is all there"


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "of another place", "without its proof"])
def test_a_shard_that_is_not_whole_is_missing(tmp_path, damage):
    answers = Answers(tmp_path / "out", a_job())
    answers.begin()
    for shard in a_job().shards():
        put(answers, shard)
    path = tmp_path / "out.parts" / "00000010-00000015"
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(
        {
            "truncated": data[:-30],
            "empty": b"",
            "flipped": data.replace(b"1.2", b"1.3"),
            "of another place": (tmp_path / "out.parts" / "00000005-00000010").read_bytes(),
            "without its proof": b"".join(lines[:-1]),
        }[damage]
    )
    assert missing(answers) == [range(10, 15)]
    put(answers, range(10, 15))
    assert missing(answers) == [] and path.read_bytes() == data


def test_what_a_killed_rank_left_is_no_shard(tmp_path):
    answers = Answers(tmp_path / "out", a_job())
    answers.begin()
    put(answers, range(5))
    draft = tmp_path / "out.parts" / ".draft-0123456789ab"
    draft.write_bytes(b'{"index": 5')
    again = Answers(tmp_path / "out", a_job())
    assert again.begin() and missing(again) == a_job().shards()[1:]
    assert not draft.exists()


def test_a_kill_between_the_file_and_the_word_about_it(tmp_path):
    answers = Answers(tmp_path / "out", a_job())
    answers.begin()
    for shard in a_job().shards():
        put(answers, shard)
    answers.merge("mean")
    before = (tmp_path / "out").read_bytes()
    (tmp_path / "out.about.json").unlink()
    again = Answers(tmp_path / "out", a_job())
    assert again.begin() and missing(again) == []
    again.merge("mean")
    again.clean_up()
    assert (tmp_path / "out").read_bytes() == before and not again.begin()


@pytest.mark.parametrize(
    "other", [{"weights": "x"}, {"step": 8}, {"batch_size": 4}, {"data": "e"}, {"precision": "bf16"}]
)
def test_another_job_does_not_go_on_with_them(tmp_path, other):
    answers = Answers(tmp_path / "out", a_job())
    answers.begin()
    put(answers, range(5))
    [(name, value)] = other.items()
    with pytest.raises(
        BadSettings, match=f"{name} {getattr(a_job(), name)!r} there, {value!r} here\nhint: give another"
    ):
        Answers(tmp_path / "out", a_job(**other)).begin()
    for shard in missing(answers):
        put(answers, shard)
    answers.merge("mean")
    answers.clean_up()
    with pytest.raises(BadSettings, match=f"{name} "):
        Answers(tmp_path / "out", a_job(**other)).begin()


def test_a_strangers_file_is_not_overwritten(tmp_path):
    (tmp_path / "out").write_text("precious")
    with pytest.raises(BadSettings, match="expected nothing, or answers of this job, found others"):
        Answers(tmp_path / "out", a_job()).begin()
    assert (tmp_path / "out").read_text() == "precious" and not (tmp_path / "out.parts").exists()
