"""Stand-ins for W&B and MLflow: servers in memory that outlive a start and can be away."""

import sys
import threading
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace


@dataclass
class Run:
    words: dict  # what it was begun with
    rows: dict = field(default_factory=dict)  # by step, the values by name
    again: list = field(default_factory=list)  # what was written a second time
    ended: list = field(default_factory=list)
    starts: int = 0
    params: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)

    def write(self, step, values):
        row = self.rows.setdefault(step, {})
        self.again += [(step, name) for name in values if name in row]
        row.update(values)


class Server:
    """`away`: refuses everything. `holds`: answers nothing until it is let go. `loses`: the next answer of MLflow."""

    def __init__(self):
        self.runs = {}
        self.experiments = []  # MLflow's
        self.away = self.loses = False
        self.refused = threading.Event()
        self.holds = None

    def reach(self):
        if self.holds is not None:
            self.holds.wait()
        if self.away:
            self.refused.set()
            raise ConnectionError("nobody there")


def install(monkeypatch, name, **content):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin="in memory")
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


def wandb(monkeypatch):
    server = Server()

    class Started:
        def __init__(self, run):
            self.run, self.starting_step, self.summary = run, max(run.rows, default=-1) + 1, run.summary

        def log(self, values, step, commit):
            server.reach()
            assert commit and step >= self.starting_step  # W&B would throw it away
            self.run.write(step, values)

        def finish(self, exit_code):
            self.run.ended.append(exit_code)

    def init(**words):
        server.reach()
        assert words["resume"] == "allow"
        run = server.runs.setdefault(words["id"], Run(words))
        run.starts += 1
        return Started(run)

    install(monkeypatch, "wandb", init=init)
    return server


def mlflow(monkeypatch):
    server, known = Server(), set()

    class Client:
        def __init__(self, tracking_uri):
            self.uri = tracking_uri

        def get_experiment_by_name(self, name):
            server.reach()
            return SimpleNamespace(experiment_id=name) if name in server.experiments else None

        def create_experiment(self, name):
            assert name not in server.experiments
            server.experiments.append(name)
            return name

        def get_run(self, run_id):
            server.reach()
            run = server.runs[run_id]
            last = {name: value for step in sorted(run.rows) for name, value in run.rows[step].items()}
            data = SimpleNamespace(metrics=last, params=run.params)
            return SimpleNamespace(info=SimpleNamespace(run_id=run_id), data=data)

        def search_runs(self, experiments, filter_string, max_results):
            wanted = [run_id for run_id, run in server.runs.items() if f"'{run.words['training_id']}'" in filter_string]
            return [self.get_run(run_id) for run_id in wanted]

        def create_run(self, experiment, tags, run_name):
            assert experiment in server.experiments
            run_id = f"made-by-the-server-{len(server.runs)}"
            server.runs[run_id] = Run(tags)
            return self.get_run(run_id)

        def update_run(self, run_id, status):
            server.runs[run_id].starts += 1

        def log_batch(self, run_id, metrics=(), params=()):
            server.reach()
            assert len(metrics) <= 1000 and len(params) <= 100
            server.runs[run_id].params.update(dict(params))
            for metric in metrics:
                name, value, _, step = metric
                if (run_id, *metric) not in known:  # as the server's database has it
                    server.runs[run_id].write(step, {name: value})
            known.update((run_id, *metric) for metric in metrics)
            if metrics and server.loses:
                server.loses = False
                server.refused.set()
                raise ConnectionError("no answer")

        def set_terminated(self, run_id, status):
            server.runs[run_id].ended.append(status)

    entities = SimpleNamespace(Param=lambda *parts: parts, Metric=lambda *parts: parts)
    install(monkeypatch, "mlflow", MlflowClient=Client, entities=entities)
    return server
