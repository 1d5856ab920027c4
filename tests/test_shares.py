"""What the days are dealt."""

import shares


def test_each_comes_once_and_the_days_have_about_as_many(monkeypatch):
    monkeypatch.setattr(shares, "SHARE", 1)
    marked = {f"{of} {number}": of for of, many in ((3, 7), (6, 20), (8, 1)) for number in range(many)}
    days = []
    for day in range(24):
        monkeypatch.setattr(shares, "_DAY", day)
        days.append(marked.keys() - shares.of_other_days(marked.items()))
    assert all(sum(one in day for day in days) == 24 // of for one, of in marked.items())
    for of in (3, 6, 8):
        counts = [sum(marked[one] == of for one in day) for day in days]
        assert max(counts) - min(counts) <= 1


def test_at_the_nightly_size_all_are_tried(monkeypatch):
    monkeypatch.setattr(shares, "SHARE", 2)
    assert shares.of_other_days([("one", 3), ("other", 3)]) == set()
