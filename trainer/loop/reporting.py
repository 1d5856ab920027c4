"""Report metrics to launch for its status, on rank 0; outside of launch it does nothing."""

from trainer.loop.callbacks import Callback, Line, Values
from trainer.loop.progress import Training
from trainer.wire import Wire

_SAID = ("loss", "lr", "samples_per_s", "mfu", "skipped")


class Reports(Callback):
    """Sends loss, rate and validation values to launch."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def on_log(self, training: Training, line: Line) -> None:
        words = {name: line[name] for name in _SAID if name in line}
        self._wire.report_step(training.step, training.total_steps, **words)
        if "slow_rank" in line:
            own = line["own_seconds"]
            self._wire.report(slow_rank=line["slow_rank"], slow_s=own["most"], usual_s=own["median"])

    def on_validation(self, _training: Training, values: Values) -> None:
        self._wire.report(**values)

    def on_test(self, training: Training, values: Values) -> None:
        self.on_validation(training, values)
        self.on_end(training)

    def on_end(self, _training: Training) -> None:
        self._wire.close()
