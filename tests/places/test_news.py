import pytest

from launcher.copies import news


@pytest.fixture
def messages(monkeypatch):
    lines = []
    monkeypatch.setattr(news, "_listeners", [])
    monkeypatch.setattr(news, "_watchers", [])
    return lines


def test_what_takes_longer_than_a_second_is_told_to_those_who_watch(messages):
    news.listen(messages.append, watching=True)
    clock = iter([0.0, 0.0, 0.9, 1.0, 1.0, 3.0, 5.9, 6.1, 6.1, 7.0])
    assert list(news.counted([*range(2000, 2007)], "freezing the code", lambda: next(clock))) == [*range(2000, 2007)]
    assert messages == ["freezing the code: 2 of 7 files", "freezing the code: 5 of 7 files"]


def test_what_is_done_at_once_is_not_worth_a_word(messages):
    news.listen(messages.append, watching=True)
    assert list(news.counted("abc", "freezing the code", lambda: 0.0)) == ["a", "b", "c"]
    assert messages == []


def test_who_only_listens_is_told_what_is_said(messages):
    news.listen(messages.append)
    clock = iter(range(0, 1000, 100))
    list(news.counted("abc", "freezing the code", lambda: float(next(clock))))
    news.say("warning: this is for everybody")
    assert messages == ["warning: this is for everybody"]
