"""Log metrics to MLflow."""

import os
import re
from collections.abc import Sequence
from typing import Any

from trainer.loggers.sender import Row
from trainer.loggers.tracking import PATIENCE_S, About, TrackingLogger

_TAG = "training_id"
_METRICS_AT_ONCE, _PARAMETERS_AT_ONCE = 1000, 100  # what a server takes in one request
_LONGEST_NAME, _LONGEST_VALUE = 250, 500
_STRANGE = re.compile(r"[^\w.\- :/]")


class MlflowLogger(TrackingLogger):
    """A callback that logs to a run of MLflow, which restarted processes find by its tag `training_id`.

    The run's metric `step` says up to which step MLflow has all values; only later steps are sent.
    """

    package = "mlflow"

    def __init__(
        self,
        experiment: str = "Default",
        *,
        tracking_uri: str | None = None,
        run_id: str | None = None,
        name: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Take the experiment, and optionally the run to continue.

        `tracking_uri`: by default MLFLOW_TRACKING_URI. `run_id`: of an existing run to continue. `patience_s`: how long
        the end of the training waits for unsent values.
        """
        super().__init__(run_id, patience_s)
        self._experiment, self._uri = experiment, tracking_uri
        self._name = name or os.environ.get("LAUNCH_RUN_ID")

    def tracker(self, about: About) -> "MlflowRun":
        """Return the connection to MLflow for the training `about`; `open` connects it."""
        return MlflowRun(about, self._experiment, self._uri, self._name, self._given)


class MlflowRun:
    """The connection of a running training to its MLflow run."""

    def __init__(
        self, about: About, experiment: str, uri: str | None, name: str | None, run_id: str | None = None
    ) -> None:
        from mlflow import MlflowClient, entities  # late: an optional package, and slow to import

        self._make_client, self._entities = MlflowClient, entities
        self._about, self._experiment, self._uri, self._name = about, experiment, uri, name
        self._run_id = run_id
        self._client: Any = None
        self._last = -1  # the step up to which the run has all

    def open(self) -> None:
        """Connect to the server, and find or create the run.

        It is the run whose id the logger was given, else the one tagged with this training's id. Raises MLflow's
        errors; the caller may then call this again.
        """
        self._client = client = self._make_client(tracking_uri=self._uri)
        run = self._find(client)
        self._run_id = run.info.run_id
        client.update_run(self._run_id, status="RUNNING")
        self._last = int(run.data.metrics.get("step", -1))
        if not run.data.params:  # those of the first start: MLflow takes no others
            params = [
                self._entities.Param(name, str(value)[:_LONGEST_VALUE]) for name, value in self._about.settings.items()
            ]
            client.log_batch(self._run_id, params=params[:_PARAMETERS_AT_ONCE])

    def _find(self, client: Any) -> Any:
        """Return the MLflow run: that of the id given to the logger, else the one tagged with this training's id.

        If there is none, which is so when a training first starts, make one.
        """
        if self._run_id is not None:
            return client.get_run(self._run_id)
        found = client.get_experiment_by_name(self._experiment)
        experiment = client.create_experiment(self._experiment) if found is None else found.experiment_id
        mine = f"tags.{_TAG} = '{self._about.training_id}'"
        runs = client.search_runs([experiment], filter_string=mine, max_results=1)
        if runs:
            return runs[0]
        return client.create_run(experiment, tags={_TAG: self._about.training_id}, run_name=self._name)

    def send(self, rows: Sequence[Row]) -> None:
        """Send the metrics of the rows that the run lacks, with all of a step in one request if they fit.

        It lacks the steps after the newest one that it had when `open` was last called; rows of tests are always sent.
        """
        metrics: list[Any] = []
        for row in rows:
            if row.of_test or row.step > self._last:
                more = self._metrics_of(row)
                if len(metrics) + len(more) > _METRICS_AT_ONCE:
                    self._log(metrics)
                    metrics = []
                metrics += more
        self._log(metrics)

    def _metrics_of(self, row: Row) -> list[Any]:
        """Return the row's values as MLflow's metrics."""
        # `step` comes last: with it, all of its step is there.
        values = row.values if row.of_test else {**row.values, "step": row.step}
        # Sent again, a metric has the same time, by which the server knows it.
        at_ms = int(1000 * row.at)
        return [self._entities.Metric(name_for_mlflow(name), value, at_ms, row.step) for name, value in values.items()]

    def _log(self, metrics: Sequence[Any]) -> None:
        """Send the metrics in requests of at most 1000 metrics."""
        for first in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _METRICS_AT_ONCE])

    def close(self, *, done: bool) -> None:
        """Set the run's status: finished if the training is `done`, else killed."""
        self._client.set_terminated(self._run_id, "FINISHED" if done else "KILLED")


def name_for_mlflow(name: str) -> str:
    """Return `name` as MLflow accepts it for a metric.

    Characters other than letters, digits, spaces and `_.-:/` become `_`. Parts between slashes that are empty, `.` or
    `..` are left out, and a long name is cut. Two names may become one, under which MLflow then has both metrics.
    """
    parts = [part for part in _STRANGE.sub("_", name).split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[:_LONGEST_NAME]
