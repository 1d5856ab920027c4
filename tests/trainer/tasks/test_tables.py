"""Answers as CSV and Parquet hold what the lines of JSON hold."""

import csv
import io
import json
import re
import sys

import pyarrow.parquet as pq
import pytest

from trainer.errors import BadSettings
from trainer.extras import install_hint
from trainer.tasks.answers import Answers, Job
from trainer.tasks.tables import table

ROWS = [
    {"index": 0, "label": 6, "share": 0.1 + 0.2, "text": 'a "quoted", line\nand another', "top": [6, 1]},
    {"index": 1, "label": 0, "share": 1e-300, "text": "straße", "top": []},
    {"index": 2, "label": None, "share": 3, "text": "", "top": [2], "certain": True},
]


def in_shards(rows, size=2):
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    return lambda: (b"".join(lines[begin : begin + size]) for begin in range(0, len(lines), size))


def test_csv_has_a_column_for_each_name_and_every_digit(tmp_path):
    text = b"".join(table(tmp_path / "out.csv", in_shards(ROWS))).decode()
    first, _, third = csv.DictReader(io.StringIO(text, newline=""))
    assert list(first) == ["index", "label", "share", "text", "top", "certain"]
    assert float(first["share"]) == ROWS[0]["share"] and first["text"] == ROWS[0]["text"]
    assert (json.loads(first["top"]), third["label"], third["certain"]) == ([6, 1], "", "true")


def test_parquet_has_types_that_hold_the_values_of_all_shards(tmp_path):
    path = tmp_path / "out.parquet"
    path.write_bytes(b"".join(table(path, in_shards(ROWS))))
    read = pq.ParquetFile(path)
    assert read.num_row_groups == 2
    names = ["index", "label", "share", "text", "top", "certain"]
    assert read.read().to_pylist() == [{name: row.get(name) for name in names} for row in ROWS]


def test_other_names_are_lines_of_json(tmp_path):
    assert b"".join(table(tmp_path / "out", in_shards(ROWS))) == b"".join(in_shards(ROWS)())


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_answers_become_the_table_of_their_name(tmp_path, name):
    job = Job("t", "d", 22, 5, "fp32", "w", 7)
    answers = Answers(tmp_path / name, job)
    assert answers.begin()
    for shard in reversed(job.shards()):
        answers.put(shard, [{"value": index / 10} for index in shard], [index / 10 for index in shard])
    assert answers.merge("mean") == pytest.approx(1.05)
    path = tmp_path / name
    if name == "out.csv":
        found = [float(row["value"]) for row in csv.DictReader(path.read_text().splitlines())]
    else:
        found = pq.read_table(path)["value"].to_pylist()
    assert found == [index / 10 for index in range(22)]


def test_without_pyarrow_it_is_said_before_the_first_answer(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadSettings, match=re.escape(f"not installed here\n{install_hint('parquet')}")):
        Answers(tmp_path / "out.parquet", Job("t", "d", 22, 5, "fp32", "w", 7)).begin()
    assert list(tmp_path.iterdir()) == []
