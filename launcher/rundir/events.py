"""events.jsonl: everything that happened to a run, one line each."""

from launcher.rundir.durable import append_line, read_lines
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Event


def append_event(run: RunDir, event: Event) -> None:
    append_line(run.events, event)


def read_events(run: RunDir) -> list[Event]:
    return read_lines(run.events, Event)
