from launcher.run.durable import append_line, read_lines
from launcher.run.layout import RunDir
from launcher.run.records import Event
from launcher.states import Cause


def test_events_come_back_in_order(tmp_path):
    run = RunDir(tmp_path)
    assert read_lines(run.events, Event) == []
    events = [Event(1.0, 1, "submitted", "one\nline"), Event(2.0, 1, "failure", "x", rank=3, cause=Cause.HANG)]
    for event in events:
        append_line(run.events, event)
    assert read_lines(run.events, Event) == events
    assert len(run.events.read_bytes().splitlines()) == 2
