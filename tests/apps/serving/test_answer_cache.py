"""Answers that are kept: how many, and for how long."""

from launcher.apps.serving.batching import AnswerCache


def test_the_one_that_was_not_asked_for_longest_goes_first():
    cache = AnswerCache(2, 100.0)
    cache.put(b"a", b"1", 0.0)
    cache.put(b"b", b"2", 0.0)
    assert cache.get(b"a", 1.0) == b"1"
    cache.put(b"c", b"3", 2.0)
    assert [cache.get(key, 3.0) for key in (b"a", b"b", b"c")] == [b"1", None, b"3"]
    assert (cache.hits, cache.misses, len(cache)) == (3, 1, 2)


def test_each_is_kept_for_a_while_however_often_it_is_asked_for():
    cache = AnswerCache(2, 10.0)
    cache.put(b"a", b"1", 0.0)
    assert cache.get(b"a", 9.9) == b"1"
    assert cache.get(b"a", 10.0) is None
    assert len(cache) == 0


def test_none_are_kept_where_none_are_wanted():
    cache = AnswerCache(0, 10.0)
    cache.put(b"a", b"1", 0.0)
    assert len(cache) == 0


def test_of_another_model_nothing_is_known():
    cache = AnswerCache(2, 10.0)
    cache.put(b"a", b"1", 0.0)
    cache.clear()
    assert cache.get(b"a", 0.0) is None
