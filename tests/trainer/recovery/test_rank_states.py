"""Test that a rank's state in memory is read whole or not at all."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.generators import seed_all
from trainer.recovery.rank_states import (
    NumpyDraws,
    RankState,
    RankStateFile,
    bytes_of,
    encoded,
    generator_states,
    put_bytes,
    restore_generator_states,
)

LIFE = "a0001.g0001"


def note(step, **more):
    return step, encoded(RankState(step, generator_states(), **more))


def draws():
    return random.random(), np.random.random(), random.gauss(0, 1), torch.rand(3).tolist(), np.random.normal()  # noqa: NPY002


def test_the_last_ones_are_found_by_a_successor(tmp_path):
    file = RankStateFile.begin(tmp_path / "rank", LIFE)
    for step in range(7):
        assert file.write(*note(step, names=("loss",), losses=[0.1 + step, 2.0]))
    from_files = RankStateFile.from_files(tmp_path / "rank")
    assert (from_files.start, from_files.steps()) == (LIFE, (4, 5, 6))
    assert from_files.read(5).losses == [5.1, 2.0]
    assert from_files.read(3) is None


def test_generators_go_on_as_noted(tmp_path):
    seed_all(5, 1)
    random.gauss(0, 1)  # the second of two is kept for the next call
    file = RankStateFile.begin(tmp_path / "rank", LIFE)
    file.write(*note(1))
    wanted = [draws() for _ in range(3)]
    seed_all(7)
    restore_generator_states(RankStateFile.from_files(tmp_path / "rank").read(1).drawn)
    assert [draws() for _ in range(3)] == wanted


DRAWS = {
    "a number": np.random.random,
    "a normal one": np.random.normal,
    "many": lambda: np.random.normal(size=700),  # noqa: NPY002
    "anew": lambda: np.random.seed(3),  # noqa: NPY002
    "none": lambda: None,
}


@given(st.lists(st.sampled_from(sorted(DRAWS)), max_size=12))
def test_what_numpy_draws_is_noticed(names):
    noted = NumpyDraws()
    for name in names:
        DRAWS[name]()
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002
        assert noted.state() == (kind, keys.tobytes(), *rest)


def test_a_number_that_was_kept_and_is_put_back_is_seen_where_that_is_said():
    np.random.seed(1)  # noqa: NPY002
    np.random.normal()  # noqa: NPY002
    state, noted = np.random.get_state(), NumpyDraws()  # noqa: NPY002
    np.random.normal()  # noqa: NPY002
    noted.state()
    np.random.set_state(state)  # noqa: NPY002
    noted.forget()
    assert noted.state()[3] == state[3] == 1


def test_numpy_is_not_asked_for_its_state_while_nothing_is_drawn(monkeypatch):
    np.random.seed(3)  # noqa: NPY002
    noted, asked, ask = NumpyDraws(), [], np.random.get_state
    monkeypatch.setattr(np.random, "get_state", lambda: asked.append(1) or ask())
    for _ in range(5):
        noted.state()
    assert len(asked) == 1
    np.random.random()  # noqa: NPY002
    noted.state()
    assert len(asked) == 2


def test_the_generator_of_a_gpu_goes_on_as_noted_too(tmp_path, monkeypatch):
    gpu = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", gpu.get_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", gpu.set_state)
    gpu.manual_seed(5)
    file = RankStateFile.begin(tmp_path / "rank", LIFE)
    assert file.write(*note(1))
    wanted = torch.rand(3, generator=gpu).tolist()
    gpu.manual_seed(7)
    restore_generator_states(RankStateFile.from_files(tmp_path / "rank").read(1).drawn)
    assert torch.rand(3, generator=gpu).tolist() == wanted


def test_without_memory_for_it_the_older_ones_are_kept(tmp_path):
    file = RankStateFile.begin(tmp_path / "rank", LIFE)
    assert file.write(*note(1))
    (tmp_path / "rank.new").mkdir()  # nothing can be written there
    assert not file.write(*note(2))
    assert file.steps() == RankStateFile.from_files(tmp_path / "rank").steps() == (1,)


def test_what_a_killed_rank_was_writing_is_not_there(tmp_path):
    file = RankStateFile.begin(tmp_path / "rank", LIFE)
    assert file.write(*note(1))
    (tmp_path / "rank.new").write_bytes((tmp_path / "rank.1").read_bytes()[:100])
    assert RankStateFile.from_files(tmp_path / "rank").read(1).step == 1


def test_no_file_or_a_damaged_one_is_none(tmp_path):
    assert RankStateFile.from_files(tmp_path / "rank") is None
    (tmp_path / "rank.0").write_bytes(b"short")
    assert RankStateFile.from_files(tmp_path / "rank") is None


def test_a_new_file_knows_nothing_of_the_one_before(tmp_path):
    RankStateFile.begin(tmp_path / "rank", LIFE).write(*note(3))
    assert RankStateFile.begin(tmp_path / "rank", "a0002.g0001").steps() == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool])
def test_buffers_come_back(dtype):
    before = [torch.arange(6).to(dtype).reshape(2, 3), torch.tensor(1).to(dtype), torch.zeros(0, dtype=dtype)]
    after = [torch.zeros_like(one) for one in before]
    put_bytes(bytes_of(before), after)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
