"""Test the report of a run's last hang, as text and as JSON."""

import json

import pytest

from launcher.run.hangs import Collective, Frame, GroupLook, HangKind, HangReport, HangVerdict, RankLook

TEXT = "rank 1 on node 0 never entered all_reduce #7; it has been in data.py:88 in load for 41 s; 1 rank waits in it"


@pytest.fixture
def hung(desk):
    call = Collective(7, "all_reduce", age_s=41.0)
    waits = RankLook(0, 0, 11, "S", answered=True, groups=(GroupLook("0/gloo", entered=7, last=(call,)),))
    late = RankLook(1, 0, 12, "S", stack=(Frame("/job/data.py", 88, "load"),), problem="an escape \x1b[31m")
    verdict = HangVerdict(HangKind.NEVER_ENTERED, TEXT, (1,), "data.py:88 in load", ("rank 0: waits",), "look there")
    folder = desk.run("hung-aaaa").running()
    for number, one in enumerate((HangVerdict(HangKind.UNKNOWN, "older"), verdict), 1):
        place = folder.run.attempt(1).hang(number)
        folder.write(place, HangReport(1.0, 1, 2, one, (waits, late)))
    desk.run("calm-aaaa").running()
    return desk


def test_the_last_hang_begins_with_who_the_others_wait_for(hung):
    shown = hung.launch("stacks", "hung", "--last").stdout
    first, kind, hint, evidence, *rest = shown.splitlines()
    assert (first, kind, hint) == (TEXT, "attempt 1, generation 2: never entered", "hint: look there")
    assert evidence == "rank 0: waits"
    assert "group 0/gloo, newest #7: waits in all_reduce #7 for 41 s" in rest
    assert '  File "/job/data.py", line 88 in load' in rest
    assert "\x1b" not in shown


def test_it_is_there_for_programs_and_of_some_ranks(hung):
    told = json.loads(hung.launch("stacks", "hung", "--last", "--json", "--rank", "1").stdout)
    assert (told["verdict"]["kind"], told["verdict"]["ranks"]) == ("never_entered", [1])
    assert [one["rank"] for one in told["ranks"]] == [1]


def test_a_run_that_has_not_hung_has_none(hung):
    assert "no hang of it was looked at" in hung.launch("stacks", "calm", "--last", check=4).stderr
