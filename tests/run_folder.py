"""Builds run directories as a run leaves them, without running anything."""

import os
import subprocess
import time

import msgspec

from launcher.clock import boottime
from launcher.plan.model import FrozenCode, NodePlan, Plan, RankCommand
from launcher.run.code.origin import origin_of
from launcher.run.identity import boot_id, host, this_process
from launcher.run.layout import STORE, RunDir, times_of
from launcher.run.records import (
    AgentRecord,
    AttemptEnd,
    Endpoint,
    Event,
    Handle,
    Intent,
    ProcessId,
    RankExit,
    RunState,
    StopRequest,
)
from launcher.spec.model import JobSpec, RunOptions
from launcher.states import Cause, State


def dead_process():
    """A process of this machine and this boot that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return ProcessId(host(), boot_id(), child.pid, 1)


def before_this_boot():
    """A process of this machine that went with an earlier boot: what it had is lost, and nobody carries it on."""
    return ProcessId(host(), "an-earlier-boot", 1, 1)


def of_another_machine():
    return ProcessId("another-machine", "its-boot", 1, 1)


class RunFolder:
    """One run's folder; every method writes what its process would have written, and gives the folder back."""

    def __init__(self, path):
        self.run = RunDir(path)
        path.mkdir(parents=True)

    @property
    def path(self):
        return self.run.path

    def write(self, path, record):
        """Write the record atomically, as processes do: another process may read it meanwhile."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        draft.write_bytes(msgspec.json.encode(record))
        draft.replace(path)
        return self

    def of_commit(self, committed, code):
        """The project's one commit, in a repository beside the run, had this train.py; the run's code has that."""
        project = self.path.parent / f"{self.path.name}-project"
        project.mkdir()
        (project / "train.py").write_text(committed)
        by = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "-A"], [*by, "commit", "-qm", "one"]):
            subprocess.run(["git", *words], cwd=project, check=True)
        pristine = self.path.parent / STORE / ("c" * 64)
        pristine.mkdir(parents=True, exist_ok=True)
        (pristine / "train.py").write_text(code)
        plan = msgspec.structs.replace(plan_of(self.path), project=str(project), code=FrozenCode(pristine.name, 1, 1))
        return self.write(self.run.plan, plan).write(self.run.origin, origin_of(project))

    def plan(self, nodes=1, ranks=2):
        return self.write(self.run.plan, plan_of(self.path, nodes, ranks))

    def intent(self, attempt=1, by=None, reason="submit", kind="local"):
        record = Intent(attempt, "0" * 64, kind, reason, None, time.time(), by or dead_process(), kind)
        return self.write(self.run.attempt(attempt).intent, record)

    def supervisor(self, process, attempt=1):
        self.write(self.run.attempt(attempt).started, process)
        return self.write(self.run.attempt(attempt).handle, Handle("local", supervisor=process))

    def agent(self, process, node=0, attempt=1):
        if node == 0:
            self.write(self.run.attempt(attempt).endpoint, Endpoint("127.0.0.1", 1, process))
        return self.write(self.run.attempt(attempt).agent(node), AgentRecord(node, "127.0.0.1", process))

    def attempt(self, number=1, supervisor=None):
        """An attempt whose supervisor, and agent, is this process: alive; or the one that is given."""
        supervisor = supervisor or this_process()
        return self.intent(number).supervisor(supervisor, number).agent(supervisor, 0, number)

    def state(self, state=State.RUNNING, attempt=1, **more):
        return self.write(self.run.state, state_of(self.path.name, state, attempt, **more))

    def end(self, state, cause=None, exit_code=0, attempt=1, ended_at=None, **more):
        at = ended_at or time.time()
        return self.write(self.run.attempt(attempt).end, AttemptEnd(state, cause, exit_code, at, **more))

    def stop(self, kind="cancel", attempt=1):
        return self.write(self.run.attempt(attempt).stop, StopRequest(kind, time.time(), this_process()))

    def event(self, text, kind="generation_opened", ago_s=0.0, attempt=1, **more):
        return self._append(self.run.events, Event(time.time() - ago_s, attempt, kind, text, **more))

    def trained(self, *, for_s, starting_s):
        """The events of a run that nothing befell."""
        self.event("job", "submitted", for_s + starting_s)
        self.event("node 0", "agent_joined", for_s + starting_s)
        return self.event("generation 1 trains", "training", for_s, generation=1, step=1)

    def exit(self, rank, node, generation=1, attempt=1):
        return self._append(self.run.attempt(attempt).exits, RankExit(generation, rank, 0, node, pid=1))

    def log(self, rank, text, times=(), attempt=1, generation=1):
        path = self.run.rank_log(attempt, generation, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        if times:
            with times_of(path).open("a") as file:
                file.writelines(f"{int(at * 1000)} {offset}\n" for at, offset in times)
        return self

    def succeeded(self, **more):
        """A whole run that ended well."""
        now = time.time()
        values = {"exit_code": 0, "step": 100, "total_steps": 100, "ended_at": now, **more}
        run = self.plan().attempt(supervisor=dead_process()).state(State.SUCCEEDED, **values)
        return run.end(State.SUCCEEDED, ended_at=now)

    def running(self, **more):
        """A run whose supervisor, this process, lives."""
        values = {"step": 40, "total_steps": 100, "rate": 2.0, "started_at": time.time() - 20, "world_size": 2}
        values["monotonic_s"] = boottime() + 120  # it is no old word yet when a slow machine comes to read it
        return self.plan().attempt().state(State.RUNNING, **values | more)

    def failed(self, failure=None, **more):
        now = time.time()
        values = {"cause": Cause.USER_ERROR, "exit_code": 10, "failure": failure, "ended_at": now, **more}
        run = self.plan().attempt(supervisor=dead_process()).state(State.FAILED, **values)
        return run.end(State.FAILED, Cause.USER_ERROR, 10, ended_at=now)

    def _append(self, path, record):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
        return self


def state_of(run, state=State.RUNNING, attempt=1, **more):
    values = {
        "generation": 1,
        "submitted_at": time.time() - 30,
        "updated_at": time.time(),
        "boot_id": boot_id(),
        "monotonic_s": boottime(),
        **more,
    }
    return RunState(run=run, name="job", cluster="local", state=state, attempt=attempt, **values)


def plan_of(path, nodes=1, ranks=2):
    return Plan(
        run_id=path.name,
        name="job",
        cluster="local",
        cluster_kind="local",
        submitted_at=1000.0,
        spec_file=os.fspath(path / "spec.yaml"),
        project=os.fspath(path),
        run_dir=os.fspath(path),
        workdir="code",
        spec=JobSpec("job", RunOptions(script="train.py")),
        overrides=(),
        entry=RankCommand("script", "train.py", ("--lr", "0.1"), "/usr/bin/python3", ("torch",)),
        setup=None,
        nodes=tuple(NodePlan(index, f"127.0.0.{index + 1}", False, None) for index in range(nodes)),
        nodes_min=1,
        nodes_max=nodes,
        ranks_per_node=ranks,
        cpus_per_rank=1,
        gpus_per_node=0,
        env={"OMP_NUM_THREADS": "1"},
        secrets=("TOKEN",),
        code=FrozenCode("d" * 64, 2, 100),
    )
