import fcntl
import os
import threading

import pytest

from trainer.checkpoint_files.fence import check, read_token, take_token
from trainer.checkpoint_files.layout import FENCE, FENCE_DRAFT, FENCE_LOCK
from trainer.errors import EXIT_FENCED, CheckpointDamaged, Fenced, TrainerError


@pytest.fixture
def run_dir(memory):
    run_dir = memory / "run"
    run_dir.mkdir()
    return run_dir


def test_whoever_comes_last_may_write(folder):
    first = take_token(folder)
    check(folder, first)
    second = take_token(folder)
    check(folder, second)
    with pytest.raises(Fenced, match="has taken over"):
        check(folder, first)


def test_being_fenced_ends_the_process_with_a_code_of_its_own(folder):
    first = take_token(folder)
    take_token(folder)
    with pytest.raises(SystemExit) as caught:
        check(folder, first)
    assert caught.value.code == EXIT_FENCED == 22


@pytest.mark.parametrize("older", [(1, 9), (2, 3), (0, 0)])
def test_an_older_start_cannot_claim(folder, older):
    newest = take_token(folder, 2, 4)
    with pytest.raises(Fenced, match="attempt 2, generation 4 has taken over"):
        take_token(folder, *older)
    check(folder, newest)


@pytest.mark.parametrize("newer", [(2, 4), (2, 5), (3, 0)])
def test_the_same_or_a_newer_start_can(folder, newer):
    before = take_token(folder, 2, 4)
    check(folder, take_token(folder, *newer))
    with pytest.raises(Fenced):
        check(folder, before)


def test_a_later_claim_is_greater(folder):
    claims = [take_token(folder, *words) for words in ((), (1, 2), (), (1, 2), (None, 7), (2, 0), ())]
    order = [(one.attempt, one.generation, one.count) for one in claims]
    assert order == sorted(set(order))
    assert read_token(folder) == claims[-1]


def test_a_start_by_hand_does_not_lower_the_fence(folder):
    take_token(folder, 3, 5)
    take_token(folder)
    with pytest.raises(Fenced):
        take_token(folder, 3, 4)


def test_without_a_claim_nobody_may_write(folder):
    mine = take_token(folder)
    (folder / FENCE).unlink()
    with pytest.raises(Fenced, match="another start has taken over"):
        check(folder, mine)


def test_the_run_s_own_fence_is_asked_too(folder, run_dir):
    mine = take_token(folder, 2)
    check(folder, mine, run_dir)  # launch has raised none yet
    for attempt in (0, 1, 2):
        (run_dir / FENCE).write_text(f"{attempt}\n")
        check(folder, mine, run_dir)
    (run_dir / FENCE).write_text("3\n")
    with pytest.raises(Fenced, match="attempt 3 has taken over from attempt 2"):
        check(folder, mine, run_dir)


@pytest.mark.parametrize("text", [b"", b"two\n", b"\xff", b"-3\n", b"9" * 5000])
def test_a_damaged_fence_of_the_run_is_no_leave_to_write(folder, run_dir, text):
    mine = take_token(folder, 2)
    (run_dir / FENCE).write_bytes(text)
    with pytest.raises(CheckpointDamaged, match="FENCE: expected the number of an attempt"):
        check(folder, mine, run_dir)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"3\n", b"[" * 100_000, b'{"attempt":1}'])
def test_a_damaged_claim_is_no_leave_to_write_and_does_not_stop_the_next_start(folder, text):
    mine = take_token(folder, 1)
    (folder / FENCE).write_bytes(text)
    with pytest.raises(CheckpointDamaged, match="FENCE: not a fencing token"):
        check(folder, mine)
    second = take_token(folder, 1)
    check(folder, second)
    assert [path.read_bytes() for path in folder.glob(".bad-FENCE-*")] == [text]
    with pytest.raises(Fenced):
        check(folder, mine)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
@pytest.mark.parametrize("name", [FENCE, FENCE_DRAFT])
def test_what_is_in_the_place_of_a_claim_holds_nobody(folder, make, name):
    make(folder / name)
    check(folder, take_token(folder))
    assert not (folder / "nowhere").exists()


def test_what_is_in_the_place_of_the_lock_is_an_error_at_worst(folder):
    (folder / FENCE_LOCK).symlink_to("nowhere")
    with pytest.raises(OSError, match=FENCE_LOCK):
        take_token(folder)
    assert not (folder / "nowhere").exists()


def test_a_folder_that_is_not_there_is_an_error(folder):
    with pytest.raises(FileNotFoundError):
        take_token(folder / "none")
    assert read_token(folder / "none") is None


def test_of_many_that_claim_at_once_one_is_the_newest(folder):
    claims = []
    threads = [threading.Thread(target=lambda: claims.extend(take_token(folder) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.count for one in claims) == list(range(1, 81))
    newest = max(claims, key=lambda one: one.count)
    for one in claims:
        if one == newest:
            check(folder, one)
        else:
            with pytest.raises(Fenced):
                check(folder, one)


def test_one_that_is_frozen_while_it_claims_is_named(folder):
    take_token(folder)
    with open(folder / FENCE_LOCK) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TrainerError, match=r"held by another process(.|\n)*hint: `fuser") as caught:
            take_token(folder, lock_limit_s=0.2)
        assert not isinstance(caught.value, CheckpointDamaged), "nothing is to be set aside for it"
    take_token(folder)
