"""Log metrics to Weights & Biases."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.loggers.sender import Row
from trainer.loggers.tracking import PATIENCE_S, About, TrackingLogger


class WandbLogger(TrackingLogger):
    """A callback that logs to a run of Weights & Biases with the id of the training.

    W&B accepts no step that the run has already, so repeated steps are not sent. With mode="offline" the processes of
    each restart write a folder of their own, with the same id and all steps from the first on. W&B lets one folder
    replace another when they are uploaded, so that the newest is the whole run.
    """

    package = "wandb"

    def __init__(
        self,
        project: str | None = None,
        *,
        run_id: str | None = None,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> None:
        """Take the project, and options of `wandb.init` such as `name`, `entity`, `group`, `tags`, `mode`, `dir`.

        `dir`: by default WANDB_DIR, or else the folder of the metrics. `patience_s`: how long the end of the training
        waits for unsent values.
        """
        super().__init__(run_id, patience_s)
        self._options = {"project": project, **options}

    def tracker(self, about: About) -> "WandbRun":
        """Return the connection to W&B for the training `about`; `open` connects it."""
        # What W&B itself waits for, also when the process ends; no wait at all is no limit there.
        finish_s = max(0.8 * self._patience_s, 0.1)
        return WandbRun(about, {"settings": {"finish_timeout": finish_s}, **self._options})


class WandbRun:
    """The connection of a running training to its W&B run; call `open`, then `send`, and `close` at the end."""

    def __init__(self, about: About, options: Mapping[str, Any]) -> None:
        import wandb  # late: an optional package, and slow to import

        config = {**about.settings, **options.get("config", {})}
        self._folder = os.environ.get("WANDB_DIR", about.folder)  # never the working folder, which may be a copy
        usual = {"id": about.training_id, "resume": "allow", "reinit": "create_new", "dir": self._folder}
        self._wandb, self._options = wandb, {**usual, **options, "config": config}
        self._run: Any = None
        self._next = 0  # the first step that the run does not have

    def open(self) -> None:
        """Start the run, or resume it if W&B has one with the training's id, and look up its next step.

        Raises what W&B raises, as without a login.
        """
        os.makedirs(self._folder, exist_ok=True)  # W&B takes a temporary folder where there is none
        self._run = self._wandb.init(**self._options)
        self._next = self._run.starting_step

    def send(self, rows: Sequence[Row]) -> None:
        """Log the rows whose steps come after the last one that the W&B run has; skip earlier ones.

        Values of a test go to the run's summary, whatever their step.
        """
        for row in rows:
            if row.of_test:
                self._run.summary.update(row.values)
            elif row.step >= self._next:
                self._run.log(dict(row.values), step=row.step, commit=True)  # not when the next one comes
                self._next = row.step + 1

    def close(self, *, done: bool) -> None:
        """Finish the run, as successful if `done`, else as failed."""
        self._run.finish(exit_code=0 if done else 1)
