"""Windows of bytes."""

import sys

import pytest
import torch

from trainer.errors import BadSettings
from trainer.tasks.text import Windows, open_text, python_library


def test_every_byte_but_the_first_is_predicted_once(tmp_path):
    text = torch.arange(101, dtype=torch.uint8)
    windows = Windows(text, 10)
    assert len(windows) == 10
    predicted = [byte for window in windows.__getitems__(list(range(10))) for byte in window[1:].tolist()]
    assert predicted == list(range(1, 101))
    assert torch.equal(windows[3], windows.__getitems__([3])[0]) and windows[3].dtype == torch.int64


def test_the_end_of_a_file_is_for_validation(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a" * 900 + b"b" * 100)
    text = open_text(path, length=9)
    assert set(torch.stack([text.train[i] for i in range(len(text.train))]).flatten().tolist()) == {ord("a")}
    assert set(torch.stack([text.validation[i] for i in range(len(text.validation))]).flatten().tolist()) == {ord("b")}


def test_the_file_is_not_changed_and_is_told_from_others(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"some text " * 100)
    first = open_text(path, length=8)
    first.train[0].zero_()
    assert path.read_bytes() == b"some text " * 100
    assert open_text(path, length=8).describe() == first.describe() != open_text(path, length=9).describe()
    before = first.describe()
    path.write_bytes(b"Some Text " * 100)
    assert open_text(path, length=8).describe() != before


def test_without_a_file_it_is_pythons_library():
    text = python_library(200_000)
    assert len(text) == 200_000 and torch.equal(text, python_library(200_000))
    assert b"import " in bytes(text.tolist())
    assert len(open_text(None, length=128).train) > 20_000, sys.version


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(BadSettings, match=r"--text: expected a file with text, .*/nothing: No such file"):
        open_text(tmp_path / "nothing", length=8)
    with pytest.raises(BadSettings, match="--text: expected a file with text, got a folder"):
        open_text(tmp_path, length=8)
    (tmp_path / "empty").touch()
    with pytest.raises(BadSettings, match="--text: expected a file with text, got nothing"):
        open_text(tmp_path / "empty", length=8)
    (tmp_path / "short").write_bytes(b"x" * 89)
    with pytest.raises(BadSettings, match="expected at least 90 bytes for a context of 8, got 89"):
        open_text(tmp_path / "short", length=8)
