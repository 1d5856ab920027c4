"""The training loop: epochs, batches, micro-batches, and the work at the end of a step (log, validate, save)."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from trainer.checkpoint import Checkpointer
from trainer.checkpoint_files import catalog
from trainer.data import Batch, TrainData
from trainer.errors import EXIT_RESUME_ME, NotFinite, TrainerError
from trainer.loop.average import Average
from trainer.loop.callbacks import Callbacks
from trainer.loop.evaluation import Evaluation, SeveralEvaluations
from trainer.loop.flops import Flops
from trainer.loop.losses import Answer, LossFunction, StepCount, StepLosses, answer_of
from trainer.loop.phases import VALIDATION, Phases, Spent
from trainer.loop.pipeline_loss import Piped
from trainer.loop.placing import Placing
from trainer.loop.progress import Progress, Training
from trainer.loop.resuming import Given
from trainer.loop.schedules import Schedules
from trainer.loop.spikes import Spikes
from trainer.loop.stragglers import Stragglers, in_line, own_seconds, peak_memory_gb
from trainer.loop.sums import gathered
from trainer.loop.user_step import OwnStep
from trainer.stopping import Votes
from trainer.strategies import Strategy, number_of
from trainer.world import call_on_first

_TOO_FEW = "Expected more than 1 value per channel"  # BatchNorm's error for a single sample
_HALVINGS = 16  # from the scale that fp16 begins with to 1
Info = dict[str, str | int | float | bool | None]


class StepListener(Protocol):
    """The interface by which the loop reports each step, so that a training can continue in place after a kill.

    In place means in the running processes. The listener sets `step_samples` when training continues after a kill: it
    is the size of the step after which it continues, in samples over all ranks, or None before the first step.
    """

    step_samples: int | None  # of the step after which training continues; None: before the first step

    def save_rank_state(self, loop: "Loop") -> None:
        """Save the state that only this rank has, such as its random generators and the losses that it has summed.

        The loop calls it after the last forward pass of each step.
        """

    def update_done(self, loop: "Loop", step_samples: int) -> None:
        """Save the small state that all ranks share, such as counters and schedules.

        The loop calls it after each update. `step_samples` is the number of samples of that step over all ranks.
        """

    def before_save(self, loop: "Loop") -> None:
        """Seed the random generators again if the training continues on another number of ranks.

        The loop calls it once each time that training continues after a kill: before it saves the last step that was
        made, or at once if none was made.
        """

    def step_done(self, loop: "Loop") -> None:
        """Raise DistBackendError if new ranks wait to join, so that all ranks leave the loop and connect anew.

        The loop calls it last in a step, unless the training stops there.
        """


@dataclass(slots=True)
class Loop:
    """The parts of one `fit` call: model, data, schedules, evaluation, checkpointer, callbacks and the current step.

    `given` are the settings that checkpoints keep, and `own_step` is the user's own training step. `epoch_samples` and
    `left` count the samples of an epoch and those still to come (None: unknown). `logs` and `gathers` say whether the
    current step is logged, and its losses are gathered over ranks. `steps` and `samples` count since the last line of
    metrics, and `spent` is the time in them before ranks reconnected. `validated` is a step with the values that other
    ranks found after it. `goes_back` is True once a spike sends the training back to the newest checkpoint. `norm` is
    that of the last step's gradients, `means` the step's mean losses, `info` the values for a checkpoint's manifest,
    and `late` the vote on `max_time_s`. `begin_in_place` is called before the first step, `updating` before the weights
    change, and `survivor` gets each step, if ranks may continue in place.
    """

    training: Training
    loss: LossFunction
    data: TrainData
    epoch_samples: int | None  # of a whole epoch; None: unknown
    schedules: Schedules
    given: Given
    evaluation: Evaluation | SeveralEvaluations | None
    callbacks: Callbacks
    checkpointer: Checkpointer
    phases: Phases  # the stopwatch of a step's phases
    late: Votes  # by which ranks agree that `max_time_s` has passed on one of them
    stragglers: Stragglers
    spikes: Spikes | None = None
    own_step: OwnStep | None = None
    flops: Flops | None = None
    average: Average | None = None
    survivor: StepListener | None = None  # it saves each step's state, if ranks may continue in place
    updating: Callable[[], None] | None = (
        None  # called when the weights are about to change, where ranks may continue in place
    )
    begin_in_place: Callable[["Loop"], None] = lambda _loop: None

    strategy: Strategy = field(init=False)
    piped: Piped | None = field(init=False, default=None)  # where the model is in stages
    progress: Progress = field(init=False)
    losses: StepLosses = field(init=False)  # of the current step
    count: StepCount = field(init=False)  # of tokens or the like in the current step, if the loss function counts any
    place: Placing = field(init=False)  # moves a batch's data to this rank's device
    logs: bool = False  # the step under way is one to log
    gathers: bool = False  # the losses of the step under way are gathered over ranks
    rates: dict[str, float] = field(default_factory=dict)  # learning rates by name, of the last step that was logged
    means: dict[str, float] = field(default_factory=dict)  # mean losses of the step, if `spike_factor` is set
    validated: tuple[int, dict[str, float]] = (-1, {})  # a step, and the values that other ranks found after it
    goes_back: bool = False  # a spike sends the training back to the newest checkpoint, past its samples
    out_of_time: bool = False
    left: int | None = None  # samples of the epoch that are still to come
    steps: int = 0  # since the last line of metrics
    samples: int = 0  # since the last line of metrics
    spent: Spent = field(default_factory=lambda: ({}, 0.0))  # in these steps, before ranks reconnected
    norm: Tensor | None = None  # of the last step's gradients, if clipped or logged
    fingerprint: str = ""  # SHA-256 of the final model and optimizer; empty until the training has ended
    info: Info = field(default_factory=dict)  # values for a checkpoint's manifest

    def __post_init__(self) -> None:
        self.strategy, self.progress = self.training.strategy, self.training.progress
        self.losses, self.count = StepLosses(self.training.world), StepCount(self.training.world)
        self.place = Placing(self.training.world.device)
        if self.strategy.pipeline is not None:
            self.piped = Piped(self.strategy.pipeline)

    def run(self) -> int:
        """Train to the end and return 0, or return 75 (to be resumed) if asked to stop, with everything saved.

        It also returns 75, with `goes_back` True, if a spike of the loss sends the training back to a checkpoint.
        """
        self.callbacks.on_start(self.training)
        try:
            if self._train():
                if self.goes_back:
                    return EXIT_RESUME_ME
                self.training.say(f"stopped at step {self.progress.step}, to be resumed")
                return EXIT_RESUME_ME
            self._finish()
            return 0
        finally:
            self.callbacks.on_end(self.training)

    def _train(self) -> bool:
        """Train until the end and return False, or until something ends the training early and return True.

        That is a stop, after which everything is saved, or a spike of the loss that sends the training back to a
        checkpoint.
        """
        self.phases.lap("other")
        self.phases.take()  # loading, and what else comes before the first step, is no time of a step
        if self.survivor is not None:
            self.phases.go_on_from(self.spent)
            if self._continue_after_step(self.survivor):
                return True
        else:
            self._catch_up()
            self._begin_step()
            self.begin_in_place(self)
        while not self._is_over():
            if self.progress.epoch < self.data.epoch:
                self._end_epoch()  # of data without a length: that this was the last batch is known only now
            elif self._train_epoch():
                return True
        return False

    def _continue_after_step(self, survivor: StepListener) -> bool:
        """Finish the step whose update was done when a rank was lost: log, validate and save.

        `survivor` is the listener that continues the training; if its `step_samples` is None, no step was made yet, and
        there is nothing to finish. Returns True if a stop was requested.
        """
        if survivor.step_samples is None:
            survivor.before_save(self)
            return False
        return self._end_step(survivor.step_samples, before_saving=lambda: survivor.before_save(self))

    def _catch_up(self) -> None:
        """Do what earlier processes had not yet done after the step that was loaded, such as a validation.

        Raises TrainerError if an epoch that was complete in the checkpoint has more samples now.
        """
        limit, every = self.training.settings.max_time_s, self.training.settings.validate_every
        self.out_of_time = limit is not None and self.progress.seconds_before >= limit
        if self.data.samples_done == self.epoch_samples and self.progress.epoch == self.data.epoch:
            for _ in self.data.epoch_batches():
                raise TrainerError("data: more samples than there were when the checkpoint was saved")
            self._end_epoch()
        if isinstance(every, int) and self.progress.step and self.progress.step % every == 0:
            self._validate()

    def _train_epoch(self) -> bool:
        """Train the rest of an epoch; return True if the loop has to stop there, or go back to a checkpoint.

        Returns False at the end of the epoch or of the training. Raises TrainerError if a whole epoch has no batch.
        """
        begun, first = self.data.samples_done, self.progress.step
        self.left = None if self.epoch_samples is None else self.epoch_samples - begun
        for batch in self.data.epoch_batches():
            self.phases.lap("data")
            self._micro_batch(batch)
            if batch.ends_step:
                self._optimizer_step(batch)
                if self.goes_back or self._end_step(batch.step_samples):
                    return True
                if self._is_over():
                    return False
        if self.progress.step == first and not begun:
            raise TrainerError("data: an epoch without a single batch\nhint: is the data set empty?")
        return False

    def _micro_batch(self, batch: Batch) -> None:
        """Run the forward and backward pass of one micro-batch, and add its loss to those of the step."""
        if self.piped is not None:
            self._through_stages(self.piped, batch)
            return
        with self.strategy.forward_context(sync=batch.ends_step):
            answer = self.answer(batch)
        self.phases.lap("forward")
        if self.gathers:
            self.losses.add(answer, batch)
        if self.survivor is not None and batch.ends_step:
            self.survivor.save_rank_state(self)
        if self.own_step is None:
            self.strategy.backward(self.count.weighted(answer, batch))
        self.phases.lap("backward")

    def _through_stages(self, piped: Piped, batch: Batch) -> None:
        """Run a micro-batch's forward and backward passes, interleaved over the pipeline's stages.

        Its loss is added to those of the step, if this step's losses are needed for a log line or to find spikes.
        """
        data = self.place(batch.data)
        self.phases.lap("copy")
        answer = piped.train(self.loss, data, batch, self.count, known=self.gathers)
        self.phases.lap("backward")
        if self.gathers:
            self.losses.add(answer, batch)

    def answer(self, batch: Batch) -> Answer:
        """Return the result of the user's loss function, or own training step, for a batch.

        Raises TrainerError if BatchNorm cannot compute a variance, as the batch has a single sample.
        """
        data = self.place(batch.data)
        try:
            if self.own_step is not None:
                self.phases.lap("copy")
                return self.own_step.run(self.strategy.module, data, batch, self.progress.step + 1)
            return answer_of(self.strategy.do(lambda model: self._call_loss(model, data)))
        except ValueError as error:
            if not str(error).startswith(_TOO_FEW):
                raise
            raise TrainerError(
                f"a micro-batch of {batch.samples} sample: BatchNorm cannot compute a variance: {error}\n"
                "hint: drop_last=True leaves out an epoch's last, smaller batch; or another batch_size or accumulate"
            ) from error

    def _call_loss(self, model: nn.Module, data: Any) -> Any:
        """Return the result of the user's loss function for the batch `data`; DDP calls this in its forward pass.

        Rank 0's buffers have been broadcast by then.
        """
        self.phases.lap("copy")
        return self.loss(model, data)

    def _optimizer_step(self, batch: Batch) -> None:
        """Update weights, schedules and averages after `batch`, the last micro-batch of a step, and count the step.

        The weights are not updated if the loss is a spike. Raises NotFinite after too many spikes in a row.
        """
        if self.logs:
            self.rates = self.schedules.rates  # before they are scheduled again
        factor = self.count.factor(batch.step_samples)
        if self.own_step is not None:
            self.norm = self.own_step.end()
        elif self._is_spike():
            self.strategy.skip_step()
            self.norm = None
        else:
            self.norm = self.strategy.step(factor, measured=self.logs, updating=self.updating)
        if self.strategy.has_stepped:
            self.schedules.step()
        self.progress.step += 1
        if self.average is not None:
            self.average.update(self.progress.step, self.strategy.skips.learned)
        if self.survivor is not None:
            self.survivor.update_done(self, batch.step_samples)
        self.phases.lap("optimizer")

    def _is_spike(self) -> bool:
        """Return whether the step's loss is a spike, so that its update is skipped.

        A spike is over `spike_factor` times the median of recent losses. All ranks call it; they communicate if
        `spike_factor` is set. `goes_back` is set if the loop is to go back to the last checkpoint. Raises NotFinite
        after more than `skip_limit` spikes in a row.
        """
        spikes, step, settings = self.spikes, self.progress.step + 1, self.training.settings
        if spikes is None:
            return False
        self.means = self.losses.take()
        usual = spikes.usual
        if not spikes.take(self.means["loss"]):
            return False
        self.goes_back = settings.spike_action == "rewind" and self._has_a_checkpoint()
        what = "back to the last checkpoint and past these samples" if self.goes_back else "the step is left out"
        self.training.say(f"step {step}: loss {self.means['loss']:.4g}, while {usual:.4g} is usual: {what}")
        if spikes.in_a_row > settings.skip_limit:
            raise spikes.too_many_error(f"steps {step - spikes.in_a_row + 1} to {step}", settings.skip_limit)
        return True

    def _has_a_checkpoint(self) -> bool:
        """Return whether the checkpoint folder has a checkpoint of any step, once a save in progress is written.

        All ranks call it.
        """
        self.checkpointer.wait()
        folder = self.checkpointer.folder
        return call_on_first(self.training.world, lambda: any(one.kind == "step" for one in catalog.entries(folder)))

    def _end_step(self, step_samples: int, before_saving: Callable[[], None] = lambda: None) -> bool:
        """Log, call callbacks, validate and save, each if due; return True if a stop was requested.

        `step_samples` is the number of samples of the step over all ranks. `before_saving` is called just before the
        checkpointer.
        """
        self.steps += 1
        self.samples += step_samples
        if self.logs:
            self._log()
        self.callbacks.on_step(self.training)
        if self.left is not None:
            self.left -= step_samples
            if self.left <= 0:
                self._end_epoch()
        self._check_time_limit()
        if self._validation_is_due():
            self._validate(last=self._is_over())
        self._begin_step()
        before_saving()
        self.phases.lap("other")
        stop = self.checkpointer.after_step(self.progress.step, self.info)
        self.phases.lap("checkpoint")
        if self.survivor is not None and not stop:
            self.survivor.step_done(self)
        return stop

    def _begin_step(self) -> None:
        """Decide whether the next step is logged, and whether its losses are gathered over ranks.

        One step in `log_every` is logged. Losses are gathered in these, or in all if the training looks for spikes.
        """
        self.logs = (self.progress.step + 1) % self.training.settings.log_every == 0
        self.gathers = self.logs or self.spikes is not None

    def _end_epoch(self) -> None:
        """Validate if `validate_every` is `epoch`, count the epoch, and call the callbacks."""
        if self.training.settings.validate_every == "epoch":
            self._validate(last=self._is_over(epochs=self.progress.epoch + 1))
        self.progress.epoch += 1
        self.info["epoch"] = self.progress.epoch
        self.callbacks.on_epoch(self.training)

    def _is_over(self, epochs: int | None = None) -> bool:
        """Return whether the training is over: out of time, ended by a callback, or at `max_steps` or `max_epochs`.

        `epochs` is the number of finished epochs to assume (None: those finished so far).
        """
        settings, progress = self.training.settings, self.progress
        epochs = progress.epoch if epochs is None else epochs
        return (
            self.out_of_time
            or progress.ending != ""
            or (settings.max_steps is not None and progress.step >= settings.max_steps)
            or (settings.max_epochs is not None and epochs >= settings.max_epochs)
        )

    def _check_time_limit(self) -> None:
        """Set `out_of_time` if `max_time_s` has passed on some rank.

        All ranks call it after each step, and set it after the same one. They vote only about ten times a second: each
        vote fixes after which step the next one is.
        """
        limit = self.training.settings.max_time_s
        if limit is not None and self.late.due(self.progress.step):
            [self.out_of_time] = self.late.vote(self.progress.step, [self.progress.seconds >= limit])

    def _validation_is_due(self) -> bool:
        """Return whether to validate after this step.

        It is so if the step is a multiple of `validate_every`, where that is a number, or if the training is over. The
        caller that ends an epoch decides whether to validate then.
        """
        every, step = self.training.settings.validate_every, self.progress.step
        return (isinstance(every, int) and step % every == 0) or self._is_over()

    def _validate(self, *, last: bool = False) -> None:
        """Validate after this step, unless that was done already.

        Do nothing without validation data, or if `validate_every` is never. With `last`, the training ends after it, so
        everything is saved before, in case validation fails.
        """
        never = self.training.settings.validate_every == "never"
        if never or self.evaluation is None or self.progress.validated == self.progress.step:
            return
        self.phases.lap("other")
        if last:
            self.info = {name: value for name, value in self.info.items() if name not in self.progress.values}
            self.checkpointer.save(self.progress.step, self.info)
            self.phases.lap("checkpoint")
        try:
            known = self.validated[0] == self.progress.step
            values = self.validated[1] if known else self.evaluation.run(self.still_here)
        except BaseException:
            if last:
                self.checkpointer.wait()
            raise
        self.phases.lap(VALIDATION)
        self.progress.validated, self.progress.values = self.progress.step, values
        self.schedules.validated(values, self.training.settings.monitor)
        self.info.update(noted(values))
        self.callbacks.on_validation(self.training, values)

    def still_here(self) -> None:
        """Report progress during long work between steps, so that launch does not take the rank for hung."""
        self.checkpointer.still_at(self.progress.step)

    def _log(self) -> None:
        """Log the step's losses, and the speed and times since the last log line; all ranks call it and communicate.

        Raises NotFinite if the last `skip_limit` steps (16 more with fp16) had a loss or gradient that is not finite.
        """
        sums, passed = self.phases.take()
        seconds = {phase: spent / self.steps for phase, spent in sums.items()}
        means, of_ranks = self._losses_of_step(seconds)
        speed = self.samples / passed if passed else 0.0
        line = {
            "step": self.progress.step,
            "epoch": self.progress.epoch,
            **means,
            **self.rates,
            **({} if self.norm is None else {"norm": number_of(self.norm)}),
            "samples_per_s": speed,
            **({} if self.flops is None else self.flops.in_line(speed)),
            "seconds": seconds,
            "elapsed_s": self.progress.seconds,
            **in_line(of_ranks),
            **self._skipped(),
        }
        if slow := self.stragglers.take(line, passed / self.steps):
            line["slow_rank"] = line["slowest_rank"]
            self.training.say(f"step {self.progress.step}: {slow}")
        self.steps = self.samples = 0
        self.info.update(noted({"loss": means["loss"], **self.rates}))
        self.callbacks.on_log(self.training, line)
        self._refuse_to_continue()

    def _losses_of_step(self, seconds: Mapping[str, float]) -> tuple[dict[str, float], list[list[float]]]:
        """Return the step's mean losses by name, and two numbers for each rank; all ranks call it.

        The numbers are the seconds of the rank's step in phases in which it waited for no other rank, and its peak
        memory in GB. `seconds` are this rank's, by phase of the step, such as `data` or `forward`.
        """
        world, settings = self.training.world, self.training.settings
        meets = self.strategy.is_sharded or settings.sync_batchnorm or self.own_step is not None
        mine = [own_seconds(seconds, meets_in_forward=meets), peak_memory_gb(world.device)]
        if self.spikes is not None:  # the losses are known by now
            return self.means, gathered(mine, world)
        return self.losses.take(mine), self.losses.of_ranks

    def _skipped(self) -> dict[str, int]:
        """Return how many steps were skipped so far, by reason, for a line of metrics; empty if none were."""
        total, _ = self.strategy.skips.read()
        spikes = self.spikes.total if self.spikes is not None else 0
        return {**({"skipped": total} if total else {}), **({"spikes": spikes} if spikes else {})}

    def _refuse_to_continue(self) -> None:
        """Raise NotFinite if `skip_limit` steps in a row were left out because a loss or gradient was not finite.

        With fp16, 16 more are allowed, in which its loss scale becomes small enough.
        """
        settings, last = self.training.settings, self.progress.step
        _, in_a_row = self.strategy.skips.read()
        # fp16 begins with a scale that is meant to be too large, and halves it until it is not.
        if in_a_row >= settings.skip_limit + (_HALVINGS if settings.precision == "fp16" else 0):
            first = last - in_a_row + 1
            raise NotFinite(
                f"steps {first} to {last}: the loss or a gradient was NaN or infinite, and nothing was learned\n"
                f"hint: a smaller learning rate, clip_norm, or a look at the data of step {first}; "
                f"up to skip_limit={settings.skip_limit} such steps are left out"
            )

    def _finish(self) -> None:
        """Validate, save the last step, log the fingerprint of the weights and optimizers, and call `on_done`.

        Nothing of this is done, and NotFinite is raised, if `skip_limit` steps in a row were left out because a loss or
        gradient was not finite.
        """
        self._refuse_to_continue()
        self._validate()
        if self.progress.ending:
            self.training.say(self.progress.ending)
        self.fingerprint = self.checkpointer.finish(self.progress.step, self.info)
        self.training.say(f"fingerprint sha256={self.fingerprint}")
        self.callbacks.on_done(self.training)

    def try_step(self, batches: Iterator[Batch]) -> float:
        """Do one optimizer step with the next batches for the learning-rate finder, and return its loss.

        Raises TrainerError if the data ends in the middle of the step.
        """
        self.gathers = True
        for batch in batches:
            self._micro_batch(batch)
            if batch.ends_step:
                self.strategy.step(self.count.factor(batch.step_samples))
                self.still_here()
                return self.losses.take()["loss"]
        raise TrainerError("data: it ended in the middle of a step")


def noted(values: Mapping[str, float]) -> dict[str, float | str]:
    """Return the values for a checkpoint's manifest, in which NaN and infinity are text."""
    return {name: value if math.isfinite(value) else repr(value) for name, value in values.items()}
