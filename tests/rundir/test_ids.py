import re

from launcher.rundir.ids import new_run_id, new_token


def test_an_id_is_the_name_and_four_letters_that_nobody_mixes_up():
    ids = {new_run_id("resnet-ddp", lambda run_id: False) for _ in range(500)}
    assert len(ids) > 490
    assert all(re.fullmatch(r"resnet-ddp-[2-9a-hjkmnp-z]{4}", run_id) for run_id in ids)


def test_an_id_grows_where_the_short_ones_are_taken():
    assert len(new_run_id("x", lambda run_id: len(run_id) < len("x-") + 7)) == len("x-") + 7


def test_a_taken_id_is_never_given():
    taken: set[str] = set()
    for _ in range(200):
        run_id = new_run_id("x", taken.__contains__)
        assert run_id not in taken
        taken.add(run_id)


def test_tokens_are_long_and_differ():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"[0-9a-f]{64}", token) for token in tokens)
