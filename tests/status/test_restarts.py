"""Test the lines about restarts between the generations of a log."""

from launcher.status.restarts import RestartReader


def test_a_restart_is_told_between_two_generations(folder):
    restarts = RestartReader(folder.run)
    folder.event("node 0 joined", kind="agent_joined")
    folder.event("rank 1 fell", kind="failure", generation=1, brief="KeyError in train.py:3, rank 1")
    folder.event("x", kind="regroup", generation=1, brief="restart 1 of 3: KeyError in train.py:3, rank 1")
    restarts.read()
    assert list(restarts.before(1, 1)) == []
    assert list(restarts.before(1, 2)) == ["── restart 1 of 3: KeyError in train.py:3, rank 1 ──"]
    assert list(restarts.all()) == []


def test_one_that_a_supervisor_wrote_is_told_by_its_text_after_all_of_its_attempt(folder):
    restarts = RestartReader(folder.run)
    folder.event("the agents\x1b[2J are gone", kind="requeue")
    restarts.read()
    assert list(restarts.before(1, 7)) == []
    assert list(restarts.before(2, 1)) == ["── the agents are gone ──"]


def test_a_resume_is_told_before_its_attempt(folder):
    restarts = RestartReader(folder.run)
    folder.event("resumed on local", kind="resumed", attempt=2)
    restarts.read()
    assert list(restarts.before(1, 7)) == []
    assert list(restarts.before(2, 1)) == ["── attempt 2: resumed on local ──"]


def test_what_is_torn_or_strange_is_passed_over(folder):
    restarts = RestartReader(folder.run)
    folder.event("x", kind="regroup", generation=1, brief="one")
    with folder.run.events.open("ab") as file:
        file.write(
            b'{"at": "soon"}\n\xb1\n{"text": "\xb1"}\n' + b"[" * 100_000 + b'\n{"at": 1.0, "attempt": 1, "kind": "reg'
        )
    restarts.read()
    with folder.run.events.open("ab") as file:
        file.write(b'roup", "text": "two"}\n')
    restarts.read()
    assert list(restarts.all()) == ["── one ──", "── two ──"]


def test_who_begins_later_is_not_told_of_what_was_before(folder):
    restarts = RestartReader(folder.run, late=True)
    for generation in (1, 2, 3):
        folder.event("x", kind="regroup", generation=generation, brief=f"after {generation}")
    restarts.read()
    assert list(restarts.before(1, 3)) == []
    assert list(restarts.all()) == ["── after 3 ──"]
