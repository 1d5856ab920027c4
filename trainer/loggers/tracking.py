"""The common base class of loggers for tracking servers: MLflow and Weights & Biases."""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from trainer.errors import BadSettings
from trainer.extras import install_hint
from trainer.loggers.sender import Row, Sender, Tracker
from trainer.loop.callbacks import Callback, Line, Values
from trainer.loop.metrics import metrics_folder, numbers_of
from trainer.loop.progress import Training
from trainer.loop.settings import Settings
from trainer.metrics_files import files_in, read_metrics

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a training that a tracking server gets beside its metrics.

    `settings` are its settings by name, `folder` is that of the metrics files, which earlier processes may have
    written.
    """

    training_id: str
    settings: Mapping[str, Any]
    folder: Path  # of its metrics


class TrackingLogger(Callback):
    """A callback that sends metrics from a thread of rank 0, so that no slow or absent server delays the training.

    The training's id is kept in the checkpoint: restarted processes write into the same run, and leave out the steps
    that the run has. Values that a kill kept from the server are sent again from `metrics.jsonl`. All values of a step
    are sent together, when the next step comes or the training ends: the values of its validation, if a restart repeats
    that, would else be left out as those of a known step. `package` is the server's Python package, which a subclass
    names.
    """

    package = ""

    def __init__(self, run_id: str | None, patience_s: float) -> None:
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:  # none: a folder of that name, as W&B leaves one behind
            raise BadSettings(
                f"{type(self).__name__}: the package {self.package} is missing\n{install_hint(self.package)}"
            )
        self._given, self._patience_s = run_id, patience_s
        self._training_id: str | None = None
        self._row: Row | None = None  # of the newest step
        self._loaded_id: str | None = None
        self._sender: Sender | None = None
        self._done = False

    def tracker(self, about: About) -> Tracker:
        """Return the connection to the server; a subclass has to define this method.

        `about` has the training's id, its settings, and the folder of its metrics files.
        """
        raise NotImplementedError

    def on_start(self, training: Training) -> None:
        """Begin sending: into the tracking server's run that the loaded checkpoint names, else into one of a new id.

        In a dev run, a short trial of the code (`fast_dev_run`), nothing is sent.
        """
        self._training_id, self._loaded_id = self._loaded_id, None
        self._begin(training)

    def on_log(self, training: Training, line: Line) -> None:
        """Add the logged values to the values of this step; they are sent when the next step's come."""
        self._add(training.step, line)

    def on_validation(self, training: Training, values: Values) -> None:
        """Add the validation's results to the values of this step; they are sent when the next step's come."""
        self._add(training.step, values)

    def on_test(self, training: Training, values: Values) -> None:
        """Connect to the server, send the values of a test run, which trains nothing, and disconnect.

        The server's run is then ended as a finished one.
        """
        self._begin(training)
        if self._sender is not None:
            self._sender.put(Row(training.step, dict(numbers_of(values)), time.time(), of_test=True))
        self._done = True
        self.on_end(training)

    def on_done(self, _training: Training) -> None:
        """Send the last step's values, as the training has finished.

        When `on_end` closes the connection, the tracking server's run is then marked as finished.
        """
        self._send_row()
        self._done = True

    def on_end(self, _training: Training) -> None:
        """Send the waiting values within the time that the logger allows for it, and end the connection.

        If the training has not finished, the values of its newest step are dropped: when it is resumed they are sent
        from the metrics files, or the step is repeated.
        """
        self._row = None  # where it is not done it comes back: from metrics.jsonl, or by doing it again
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.end(self._patience_s, done=self._done)

    def state_dict(self) -> dict[str, Any]:
        """Return the training's id for the checkpoint, under `training`; {} before the training has one."""
        return {} if self._training_id is None else {"training": self._training_id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the training's id from a checkpoint; `on_start` continues the tracking server's run with that id."""
        self._loaded_id = state["training"]

    def _begin(self, training: Training) -> None:
        """Start the sender on rank 0, unless this is a dev run (`fast_dev_run`)."""
        self._done = False
        if not training.world.is_first or training.settings.fast_dev_run is not None:
            return
        if self._training_id is None or self._given is not None:
            self._training_id = self._given or training_id(training.settings, os.environ)
        facts = {**asdict(training.settings), "world_size": training.world.size}
        folder = metrics_folder(training.settings)
        tracker = self.tracker(About(self._training_id, facts, folder))
        began = time.time()
        self._sender = Sender(type(self).__name__, tracker, lambda last: rows_in(folder, last, began))

    def _add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add the numbers in `values` to the row of step `step`; other values are left out.

        A row of another step, which is complete now, is sent first. Does nothing if no sender runs.
        """
        if self._sender is None:
            return
        if self._row is not None and self._row.step != step:
            self._send_row()
        before = {} if self._row is None else self._row.values
        self._row = Row(step, {**before, **dict(numbers_of(values))}, time.time())

    def _send_row(self) -> None:
        """Send the row that is being filled, if there is one."""
        row, self._row = self._row, None
        if self._sender is not None and row is not None:
            self._sender.put(row)


def training_id(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the training's id: under launch the run's, else a random one.

    With a checkpoint folder a digest of its path is appended to the run's id, so that several trainings in one run get
    different ids.
    """
    run = environ.get("LAUNCH_RUN_ID")
    if not run:
        return uuid4().hex[:16]
    folder = settings.checkpoint_dir
    return run if folder is None else f"{run}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def rows_in(folder: Path, last: int | None, at: float) -> list[Row]:
    """Return the rows that a training wrote into `folder`, up to step `last` (None: all).

    `at` becomes the time of every row. A caller that sends rows again has to give the same time again, because MLflow
    treats a value with another time as another value.
    """
    known = read_metrics(folder) if files_in(folder) else []
    return [Row(line["step"], dict(numbers_of(line)), at) for line in known if last is None or line["step"] <= last]
