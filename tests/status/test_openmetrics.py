"""Test the metrics for Prometheus, read by its own parser."""

import math
import time

import msgspec
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from run_folder import RunFolder

from launcher.run.records import GpuLoad, NodeLoad, NodeState, NotFinite, RankLoad, RankState
from launcher.states import State
from launcher.status.derive import Restarts, derive
from launcher.status.facts import read_facts
from launcher.status.openmetrics import exposition, exposition_now

EVIL = 'a "b"\\c\nd'


def samples(text):
    """Return the values by name and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def of(text, name, /, **labels):
    return samples(text)[name, frozenset(labels.items())]


@pytest.fixture
def running(folder):
    folder.running(metrics={"loss": 0.25}, not_finite={"ppl": NotFinite("NaN"), "far": NotFinite("-Infinity")})
    return derive(read_facts(folder.path))


def test_states_are_counted_those_that_none_is_in_too(tmp_path, running):
    ended = derive(read_facts(RunFolder(tmp_path / "job-wxyz").succeeded().path))
    text = exposition([running, ended], [], {})
    counted = {state: of(text, "launch_runs", state=state) for state in State}
    assert counted == {state: float(state in ("running", "succeeded")) for state in State}
    assert len(samples(text)) == len(State)


def test_how_a_run_is(running):
    status = msgspec.structs.replace(
        running, step=40, total_steps=100, rate=2.5, checkpoint=30, restarts=Restarts(3, {"killed": 2, "hang": 1})
    )
    text = exposition([status], [status], {})
    run = {"run": status.run}
    assert of(text, "launch_run_info", **run, name=status.name, cluster="local") == 1
    assert of(text, "launch_run_state", **run, state="running") == 1
    assert of(text, "launch_run_step", **run) == 40
    assert of(text, "launch_run_steps", **run) == 100
    assert of(text, "launch_run_step_rate", **run) == 2.5
    assert of(text, "launch_run_checkpoint_step", **run) == 30
    assert of(text, "launch_run_restarts_total", **run, cause="killed") == 2
    assert of(text, "launch_run_submitted_timestamp_seconds", **run) == status.submitted_at
    assert of(text, "launch_run_metric", **run, metric="loss") == 0.25
    assert math.isnan(of(text, "launch_run_metric", **run, metric="ppl"))
    assert of(text, "launch_run_metric", **run, metric="far") == -math.inf
    assert "launch_run_ended" not in text  # what is not known is left out
    older = {sample.name for family in parser.text_string_to_metric_families(text) for sample in family.samples}
    assert older == {name for name, _ in samples(text)}


def test_what_nodes_gpus_and_ranks_use(running):
    gpu = GpuLoad(3, memory=5, memory_total=10, busy=25)
    rank = RankLoad(1, cpu=0.5, memory=7, gpus=(3,), gpu_memory=5)
    load = NodeLoad(0, 1.0, 8, 1.5, 20, 40, received=2, gpus=(gpu, GpuLoad(4, 1, 2)), ranks=(rank,))
    nodes, ranks = (NodeState(0, "10.0.0.1", "up", host="gpu-a"),), (RankState(1, 0, 99, "running", step=12),)
    status = msgspec.structs.replace(running, loads=(load,), nodes=nodes, ranks=ranks)
    text = exposition([status], [status], {})
    node = {"run": status.run, "node": "0", "host": "gpu-a"}
    assert of(text, "launch_node_cores_used", **node) == 1.5
    assert of(text, "launch_node_memory_bytes", **node) == 40
    assert of(text, "launch_node_received_bytes_per_second", **node) == 2
    assert of(text, "launch_gpu_busy_ratio", **node, gpu="3") == 0.25
    assert ("launch_gpu_busy_ratio", frozenset((node | {"gpu": "4"}).items())) not in samples(text)
    assert of(text, "launch_rank_memory_used_bytes", **node, rank="1") == 7
    assert of(text, "launch_rank_gpu_memory_used_bytes", **node, rank="1") == 5
    assert of(text, "launch_rank_step", run=status.run, rank="1") == 12


def test_what_the_time_of_a_run_went_into(folder, tmp_path):
    old = RunFolder(tmp_path / "old-wxyz").succeeded(ended_at=1.0)
    folder.trained(for_s=3000, starting_s=1000).running()
    text = exposition_now([derive(read_facts(one.path)) for one in (folder, old)], time.time())
    run = {"run": folder.path.name}
    assert of(text, "launch_run_goodput_ratio", **run) == pytest.approx(0.75, abs=0.02)
    assert of(text, "launch_run_spent_seconds", **run, on="starting") == pytest.approx(1000, abs=0.1)
    assert "old-wxyz" not in text


def test_words_of_a_run_stay_words(running):
    status = msgspec.structs.replace(running, name=EVIL, metrics={EVIL: 1.0})
    text = exposition([status], [status], {})
    assert of(text, "launch_run_info", run=status.run, name=EVIL, cluster="local") == 1
    assert of(text, "launch_run_metric", run=status.run, metric=EVIL) == 1
