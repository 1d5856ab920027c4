"""On a pool the first host tells; where that is lost the next one goes on."""

import json

import pytest
from lab import whole_lines

pytestmark = pytest.mark.nightly


def test_where_the_first_host_is_lost_the_next_tells_the_rest_and_nothing_twice(desk, tmp_path):
    heard = tmp_path / "heard"

    def kinds():
        return [json.loads(line)["kind"] for line in whole_lines(heard) if line]

    notify = f"notify: {{to: {{command: '(cat; echo) >> {heard}'}}, on: [started, ended]}}\n"
    spec = desk.job(100, more=f"recovery: {{spares: 1, lease: 10s}}\n{notify}", hold=25)
    run = desk.submit(spec, "--on", "pool")
    desk.until_step_there(0, run, 20)
    assert (desk.there(0, run, "notify.json").stat().st_mode & 0o777) == 0o600
    desk.until("its start is told, as the next in line knows", lambda: "notified" in events_text(desk, 1, run))
    desk.hosts.nodes[0].power_off()
    desk.let_go()
    status = desk.wait(run)
    assert status["state"] == "succeeded" and status["attempt"] >= 2
    desk.until("its end is told", lambda: "ended" in kinds())
    desk.until("the messenger has left", lambda: not desk.own("launcher.programs\0notify"))
    assert kinds() == ["started", "ended"]


def events_text(desk, index, run):
    """Return the text of the run's event log on the host; empty if there is none."""
    events = desk.there(index, run, "events.jsonl")
    return events.read_text() if events.exists() else ""
