"""What a last word that is not the coordinator's carries on."""

import msgspec
import pytest
from run_folder import plan_of

from launcher.agent.coordinator_server import time_used
from launcher.clusters.keeping.attempt_end import first_state, write_failure
from launcher.rundir.attempts import new_attempt
from launcher.rundir.durable import write_record
from launcher.rundir.layout import RunDir
from launcher.words import Cause


@pytest.mark.parametrize(("reason", "used_s"), [("resume", 0.0), ("requeue", 50.0)])
@pytest.mark.parametrize("told", [True, False])
def test_a_resume_begins_the_time_anew_even_where_its_first_attempt_dies_at_once(tmp_path, reason, used_s, told):
    run, plan = RunDir(tmp_path), plan_of(tmp_path)
    new_attempt(run, "local", "submit", None)
    write_record(run.state, msgspec.structs.replace(first_state(plan, 1), used_s=50.0))
    second, _ = new_attempt(run, "local", reason, None)
    assert time_used(run, second) == used_s
    if told:
        write_failure(run, second, plan, Cause.NODE_LOST, "its agent is gone")
    third, _ = new_attempt(run, "local", "requeue", Cause.NODE_LOST)
    assert time_used(run, third) == used_s
