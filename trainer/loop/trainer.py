"""Trainer: train, validate, test and export a user's model, given its loss function, data and optimizer."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from trainer.checkpoint import Checkpointer
from trainer.checkpoint.generators import restore_generators, seed_all, state_of_generators
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.export import ExportOptions, Written
from trainer.checkpoint_files.manifest import BEST_BY
from trainer.data import SharedPlace, TrainData
from trainer.data.iterable import is_iterable
from trainer.data.loaders import is_loader
from trainer.errors import BadSettings, TrainerError
from trainer.loop.argument_checks import refuse_wrong_callbacks, refuse_wrong_kinds
from trainer.loop.average import Average
from trainer.loop.callbacks import Callback, Callbacks
from trainer.loop.console import Console
from trainer.loop.evaluation import Evaluation, Metrics, RankBatches, SeveralEvaluations, answer_alone
from trainer.loop.garbage_collection import Collecting
from trainer.loop.kept_cuts import NOTED, KeptCuts, first_sample
from trainer.loop.loop import Loop, noted
from trainer.loop.losses import LossFunction, own_loss
from trainer.loop.metrics import JsonLines, Reports, TensorBoard, metrics_folder
from trainer.loop.monitors import BestModel, EarlyStopping, check_name
from trainer.loop.phases import Phases, phases_on
from trainer.loop.pipeline_loss import refuse_unfit_batch, samples_at_once
from trainer.loop.profiling import MarkedPhases, Profiler
from trainer.loop.progress import Training
from trainer.loop.rehearsing import count_operations, find_rate, touch, try_first_pass
from trainer.loop.resuming import Given, refuse_to_begin, refuse_to_resume
from trainer.loop.schedules import MakeSchedules, Schedules
from trainer.loop.settings import Settings, first_and_last
from trainer.loop.spikes import Spikes
from trainer.loop.stragglers import Stragglers
from trainer.loop.survivor import Survivor
from trainer.loop.train_data import epoch_samples, is_several, refuse_no_data_set, train_data
from trainer.loop.trials import begin_dev_run, first_batches, trial_settings
from trainer.loop.user_step import OwnStep, StepFunction, refuse_beside_own_step
from trainer.loop.weights_and_export import StartFrom, begin_average, begin_with, export_checkpoint, take_weights
from trainer.recovery.control import await_rank
from trainer.stopping import Votes
from trainer.strategies import (
    REPLICAS,
    Optimizers,
    Strategy,
    StrategySettings,
    Turns,
    build,
    make_deferred,
    needs_group,
    summary,
    warn_of_low_weights,
)
from trainer.strategies.mesh import on_mesh
from trainer.strategies.pipeline_cutting import BY_TIME
from trainer.wire import Launched, Wire
from trainer.world import World, be_deterministic, membership

if TYPE_CHECKING:
    from trainer.loop.flops import Flops
    from trainer.strategies.tensor_parallel import Plan

MakeOptimizer = Callable[[Any], Optimizer | Optimizers]  # of trainer.strategies.Parameters


class Trainer:
    """A training of a model by given settings, loss, optimizer and data.

    `fit()` trains it to the end: from its newest checkpoint if there is one, else from the beginning.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: nn.Module | Callable[[], nn.Module],
        loss: LossFunction = own_loss,
        step: StepFunction | None = None,
        data: Dataset[Any] | DataLoader[Any],
        validation: Dataset[Any] | Mapping[str, Dataset[Any]] | None = None,
        metrics: Metrics | None = None,
        optimizer: MakeOptimizer,
        schedule: MakeSchedules | None = None,
        callbacks: Sequence[Callback] = (),
        start_from: StartFrom | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        validation_collate: Callable[[list[Any]], Any] | None = None,
        tp_plan: "Plan | None" = None,
    ) -> None:
        """`model` may be a function that makes it: then `seed` decides its first weights too.

        `loss(model, batch)` is the mean over the batch, or a pair of a sum and a count; alone or with more such values
        by name. Left out, it is what the model gives by itself: `model(**batch).loss`. `metrics(model, batch)` gives
        means over a validation batch by name, numbers of its samples as whole numbers, or pairs of sum and count; what
        is reported is the mean over all samples. Or tuples of a metric of torchmetrics and what it is updated with.
        `validation`: a data set, or several by name, whose values are `val_<name>_loss` and so on.
        `collate` makes a batch of samples, `validation_collate` one for validation, tests and predictions; left out,
        it is the same.
        `step(model, batch, turns)` is a training step of your own; `loss` is what is validated then, if it is given.
        `optimizer(parameters)` makes one, or several by name; `parameters` is a list that can be chosen from by name.
        `schedule(optimizer, total_steps)` makes a scheduler that is stepped after each optimizer step; a
        ReduceLROnPlateau after each validation, with the monitored value. Of several optimizers each has its own: made
        by this function, or by that of the same name where several are given.
        `data`: a data set, or a loader that keeps its own place, as torchdata's StatefulDataLoader.
        `tp_plan`: how layers are divided where `mesh` has tp, as `{"blocks.*.up": "colwise"}`; else the model's own.
        `start_from`: weights to begin with where there is no checkpoint, a path for `load_weights` or what calls it.
        """
        refuse_wrong_kinds(
            settings=settings, model=model, loss=loss, metrics=metrics, optimizer=optimizer, schedule=schedule
        )
        refuse_wrong_callbacks(callbacks)
        if not is_loader(data):
            refuse_no_data_set(data=data)
        refuse_no_data_set(several=True, validation=validation)
        if validation is None and (settings.patience is not None or settings.keep_best):
            raise BadSettings("patience, keep_best: expected validation data, got none")
        if step is not None:
            refuse_beside_own_step(settings)
            if validation is not None and loss is own_loss and metrics is None:
                raise BadSettings(
                    "validation: with a step of your own expected loss or metrics to validate by, got none"
                )
        self.settings, self._given_settings, self._step = trial_settings(settings), settings, step
        self._tp_plan = tp_plan
        self._model, self._loss, self._metrics = model, loss, metrics
        self._dataset, self._collate = first_batches(settings, data), collate
        self._validation_collate = validation_collate or collate
        self._validation = validation if validation is None or settings.overfit_batches is None else self._dataset
        self._make_optimizer, self._make_schedule = optimizer, schedule
        self._callbacks, self._start_from = callbacks, start_from
        self.fingerprint = ""  # of the end; SHA-256 of model and optimizer
        self._built: Strategy | None = None
        self._made: nn.Module | None = None  # before the others are met, without weights
        self._flops: Flops | None = None

    def fit(self, world: World | None = None) -> int:
        """Train to the end and return 0, or return 75 (EX_TEMPFAIL) if asked to stop, with everything saved.

        `world` is the ranks to use; None: all that were started together. Raises BadSettings for what cannot work
        together, and NotFinite if too many steps in a row were not finite.
        """
        with self._world(world) as met:
            wire = Wire.from_environment()
            wire.take_back_done()  # reported by another training of this script
            wire.close()
            begin_dev_run(self, self.settings, met)
            past: dict[str, Any] | None = None
            starts: list[int] = []
            made = not isinstance(self._model, nn.Module)
            survivor = Survivor.of(met, self.settings, made=made)
            here = dataclasses.replace(met, rejoined=False) if survivor.loads else met
            restored = not here.rejoined and self._will_be_restored()
            while True:
                loop: Loop | None = None
                try:
                    with self._loop(here, trains=True, restored=restored) as loop:
                        start = self._begin(loop, past, survivor)
                        if start is None:
                            restored = False
                            continue
                        starts.append(start)
                        code = loop.run()
                        if not loop.goes_back:
                            self.fingerprint = loop.fingerprint
                            survivor.close()
                            return code
                        self._check_progress(loop, starts)
                        past = loop.data.state_dict()
                except Exception as error:  # noqa: BLE001 - raised again where it is about no other rank
                    here = survivor.rejoin(error, self._built, loop)
                    restored = not here.rejoined and self._will_be_restored()

    def _begin(self, loop: Loop, past: Mapping[str, Any] | None, survivor: Survivor) -> int | None:
        """Restore or load the state that the first step needs, and return the step to begin from.

        Returns None if the model was made without weights and no checkpoint has any. `past` is the position in the data
        that this call of fit() had reached before a spike (a jump of the loss) sent it back to a checkpoint (None: it
        begins). `survivor` brings the state if other ranks are in the middle of the training. Raises BadSettings for a
        monitored value that nothing reports.
        """
        loop.begin_in_place = lambda loop: survivor.begin(loop, self.settings, self._dataset)
        if survivor.arriving and (step := survivor.arrive(loop)) is not None:
            survivor.go_on(loop)
            return step
        start = self._resume(loop, again=past is not None)
        if survivor.arriving:
            survivor.report_reload(loop)
        if start is None:
            return None
        if past is not None:
            loop.data.load_state_dict(past)
        if loop.checkpointer.loaded is None:
            begin_with(self._start_from, loop)
        begin_average(loop)
        self._check_monitors(loop)
        if self.settings.lr_find and start == 0:
            find_rate(loop)
        return start

    def _check_progress(self, loop: Loop, starts: Sequence[int]) -> None:
        """Raise NotFinite if spikes sent the training back to the same checkpoint more than `skip_limit` times.

        A spike is a step with a far too high loss, after which fit() begins again from a checkpoint. `starts` has the
        step at which fit() began at first and each time again; its last element is for the present time.
        """
        limit = self.settings.skip_limit
        if loop.spikes is not None and starts.count(starts[-1]) > limit + 1:
            raise loop.spikes.too_many_error(f"{limit + 1} times after step {starts[-1]}", limit)

    def _will_be_restored(self) -> bool:
        """Return whether a checkpoint replaces the model's first weights, so that they need not be drawn.

        This is so if the checkpoint directory has one, unless operations are to be counted first, which needs weights.
        """
        return bool(catalog.steps(self._folder)) and not (self.settings.count_flops and self._flops is None)

    @property
    def _folder(self) -> Path:
        """The folder of the checkpoints: `checkpoint_dir` of the settings, else that of the run, else `checkpoints`."""
        return Path(self.settings.checkpoint_dir or Launched.from_environment().checkpoint_dir or "checkpoints")

    def _resume(self, loop: Loop, *, again: bool) -> int | None:
        """Load the newest checkpoint and return its step, or 0 if there is none.

        Returns None if there is none and the model was made without weights, so that it has to be made again. `again`
        is True for a second call in one fit(), which does not repeat the check of the setting `resume`.
        """
        launched, checkpointer, say = Launched.from_environment(), loop.checkpointer, loop.training.say
        if not again:
            refuse_to_resume(self.settings, checkpointer.folder, loop.training.world, launched)
        start = checkpointer.load()
        refuse_to_begin(self.settings, checkpointer.folder, checkpointer.loaded is not None, launched)
        if loop.strategy.deferred and checkpointer.loaded is None:
            return None
        self._log_start(loop, start)
        if checkpointer.loaded is not None:
            say(f"resumes from {checkpointer.loaded.path}")
            for change in loop.given.changes:
                say(change)
            if self.settings.hyperparameters == "given":
                loop.schedules.take_given()
        return start

    def _check_monitors(self, loop: Loop) -> None:
        """Raise BadSettings if validation reports no value of the name that a setting or callback monitors.

        They monitor a value to stop early, to keep the best checkpoint, or to set the learning rate. Nothing is checked
        without validation data.
        """
        wanted = {one.monitor for one in self._callbacks if isinstance(one, (EarlyStopping, BestModel))}
        if self.settings.patience is not None or self.settings.keep_best or loop.schedules.needs_validation:
            wanted.add(self.settings.monitor)
        known = set() if self._validated_loss is None or is_several(self._validation) else {"val_loss"}
        names = loop.evaluation.names() if loop.evaluation is not None and wanted - known else None
        for name in sorted(wanted) if names is not None else ():
            check_name(names or (), name)

    def validate(self, world: World | None = None) -> dict[str, float]:
        """Return the values on the validation data by name, with the weights of the newest complete checkpoint.

        Without a checkpoint, the model is validated as it is. The checkpoint folder is not changed, so the training may
        run at the same time. `world` is the ranks to use; None: all that were started together. Raises BadSettings
        without validation data.
        """
        with self._world(world) as here, self._loop(here) as loop:
            if loop.evaluation is None:
                raise BadSettings("validate: expected validation data, got none")
            take_weights(self._start_from, loop)
            return loop.evaluation.run(loop.still_here)

    @property
    def model(self) -> nn.Module:
        """The model as it is now: after fit() with the weights of its last step, wrapped as the strategy has it.

        Raises TrainerError while there is none, as `model` is a function that was not called yet.
        """
        module = self._built.module if self._built is not None else self._model
        if not isinstance(module, nn.Module):
            raise TrainerError("model: there is none before fit(), validate(), test() or predict() makes it")
        return module

    def predict(
        self,
        data: Dataset[Any],
        answer: Callable[[nn.Module, Any], Any] = answer_alone,
        *,
        step: int | None = None,
        best: bool = False,
        world: World | None = None,
    ) -> list[Any]:
        """Return the result of `answer(model, batch)` for each batch of `data`, in the order of the data.

        The ranks share the work, and each returns the results of all, with tensors on the CPU; all ranks call it.

        The weights are those of the newest complete checkpoint. `best` or `step` chooses the best checkpoint, or that
        of a step, instead. Without a checkpoint they are those that the model has. By default `answer` calls the model
        with a batch that is a tensor, with the first part of a tuple or list, and with the names of a dict. `world` is
        the ranks to use; None: all that were started together. Raises BadSettings with pipeline stages, or for a stream
        on several ranks.
        """
        refuse_no_data_set(data=data)
        with self._world(world) as here, self._loop(here) as loop:
            if here.stages > 1:
                raise BadSettings("predict: does not go with a mesh that has pp, whose ranks each have some layers")
            if is_iterable(data) and here.dp_size > 1:
                raise BadSettings("predict: expected data with a length on several ranks, got a stream")
            with closing(self._evaluation(loop.training, data, "")) as evaluation:
                take_weights(self._start_from, loop, step, best=best)
                return evaluation.predict(answer, loop.still_here)

    def test(
        self,
        data: Dataset[Any] | Mapping[str, Dataset[Any]],
        *,
        step: int | None = None,
        best: bool = False,
        world: World | None = None,
    ) -> dict[str, float]:
        """Return loss and metrics on test data by name, with the weights of the newest complete checkpoint.

        `best` or `step` chooses the best checkpoint, or that of a step, instead. Without a checkpoint the model is
        tested as it is. Values are named `test_loss`, …, or `test_<name>_loss`, … with a dict of data sets by name, and
        given to the callbacks, which log them at the checkpoint's step. They are measured as in a validation, and
        nothing in the checkpoint folder changes. `world` is the ranks to use; None: all that were started together.
        Raises BadSettings if there is neither a loss function nor metrics.
        """
        refuse_no_data_set(several=True, data=data)
        if self._validated_loss is None and self._metrics is None:
            raise BadSettings("test: with a step of your own expected loss or metrics to test by, got none")
        with (
            self._world(world) as here,
            self._loop(here) as loop,
            closing(self._evaluations(loop.training, data, "test_")) as evaluation,
        ):
            take_weights(self._start_from, loop, step, best=best)
            values = evaluation.run(loop.still_here)
            loop.callbacks.on_test(loop.training, values)
            return values

    def export(
        self, target: str | Path, *, step: int | None = None, best: bool = False, dtype: str | None = None,
        most_bytes_per_file: int | None = None, overwrite: bool = False, averaged: bool = True,
        world: World | None = None,
    ) -> Written:  # fmt: skip
        """Write the weights of the newest complete checkpoint to `target`, and return a description of the export.

        `best` or `step` chooses the best checkpoint, or that of a step, instead. If the training keeps averages of the
        weights (the setting `ema`), they are written, unless `averaged` is False. All ranks call it, and the first one
        writes. If `target` is a folder, a Hugging Face model's configuration is written too. `dtype` is the type of
        floating-point tensors (None: as saved), `most_bytes_per_file` the limit of each file in a folder (None: 5 GB),
        and `overwrite` replaces an existing target. `world` is the ranks to use; None: all that were started together.
        """
        module = self._model if isinstance(self._model, nn.Module) else self._built.module if self._built else None
        # What a dev run has made takes the place of nothing.
        overwrite = overwrite and self.settings.fast_dev_run is None
        options = ExportOptions(dtype, None, most_bytes_per_file, overwrite, averaged)
        with self._world(world) as here:
            return export_checkpoint(self._folder, Path(target), here, module, options, step, best=best)

    @contextmanager
    def _world(self, given: World | None) -> Iterator[World]:
        """Yield the world `given`, or join the other ranks for the context and yield theirs.

        Either gets the mesh that the settings ask for. A process in reserve first waits here until it becomes a rank.
        """
        settings = self.settings
        if given is not None:
            yield on_mesh(given, settings.mesh)
            return
        launched = Launched.from_environment()
        if launched.reserve is not None:
            self._prepare_in_reserve()
            await_rank(launched)
            launched = Launched.from_environment()
        group = needs_group(settings.strategy) or launched.rank_states_copied  # others may come
        if launched.joins:  # those that it meets may train meanwhile
            self._make_deferred()
            wire = Wire(launched.progress)
            wire.report(waits=True)
            wire.close()
        with membership(group=group, timeout_s=settings.timeout_s, device=settings.device) as world:
            yield on_mesh(world, settings.mesh)

    def _make_deferred(self) -> nn.Module | None:
        """Make the model without weights, which will come from a checkpoint or from other ranks, and return it.

        A second call returns the same model. Returns None if the strategy does not allow this, if the user gave a
        module and no function that makes one, or if that function needs the values of weights.
        """
        alone = self.settings.strategy in REPLICAS and self.settings.mesh is None
        if self._made is None and alone and not isinstance(self._model, nn.Module):
            seed_all(self.settings.seed)  # whatever it draws for other things than weights is as on the others
            self._made = make_deferred(self._model)
        return self._made

    def _prepare_in_reserve(self) -> None:
        """Make the model and run a first pass, so that the process can become a rank quickly.

        It is called in a process in reserve, which waits to replace a lost rank. The random generators are left as they
        were.
        """
        generators = state_of_generators()
        module = self._make_deferred()
        if module is not None and self._step is None:
            try_first_pass(module, self.settings, self._loss, self._dataset, self._collate)
            del module
            self._made = None  # whatever that has left in it
            if (module := self._make_deferred()) is not None:
                touch(module)
        restore_generators(generators)

    @contextmanager
    def _loop(self, world: World, *, trains: bool = False, restored: bool = False) -> Iterator[Loop]:
        """Make the Loop with all its parts for the context, without loading weights.

        With `trains`, a pipeline may measure the time of its layers to choose where its stages begin; with `restored`,
        a state will be loaded into the Loop, so that first weights need not be drawn. Raises BadSettings if parts do
        not go together, such as a ReduceLROnPlateau without validation data.
        """
        settings = self.settings
        refuse_unfit_batch(settings, world)
        if settings.deterministic:
            be_deterministic()
        console = Console() if world.is_first else None
        with ExitStack() as stack:
            data = train_data(settings, self._dataset, self._collate, world)
            stack.callback(data.close)
            strategy = self._strategy(world, self._cuts(world, data if trains else None), restored=restored)
            training = Training(settings, world, strategy, console.say if console is not None else _do_nothing)
            training.total_steps = _total_steps(settings, data.steps_per_epoch)
            average = Average(strategy.module, settings.ema) if settings.ema is not None else None
            evaluation = None
            if self._validation is not None:
                evaluation = self._evaluations(training, self._validation, "val_", average)
                stack.callback(evaluation.close)
            scheduled = _total_steps(self._given_settings, data.steps_per_epoch) or training.total_steps
            schedules = Schedules(self._make_schedule, strategy.optimizers, scheduled)
            if schedules.needs_validation and evaluation is None:
                raise BadSettings("schedule: ReduceLROnPlateau expected validation data, got none")
            given = Given(settings, schedules)
            spikes = Spikes(settings.spike_factor) if settings.spike_factor is not None else None
            callbacks = Callbacks(
                self._all_callbacks(
                    console,
                    lambda step, values: checkpointer.save(
                        step, {**noted(values), BEST_BY: settings.monitor}, best=True
                    ),
                )
            )
            checkpointer = self._checkpointer(
                training,
                {
                    "scheduler": schedules,
                    "progress": training.progress,
                    "callbacks": callbacks,
                    "given": given,
                    **({"spikes": spikes} if spikes is not None else {}),
                },
                data,
                average,
            )
            stack.enter_context(checkpointer)  # after an error it waits for nobody
            loop = Loop(
                training=training,
                loss=self._loss,
                data=data,
                epoch_samples=epoch_samples(settings, self._dataset, data),
                schedules=schedules,
                given=given,
                evaluation=evaluation,
                callbacks=callbacks,
                checkpointer=checkpointer,
                phases=_phases(settings, world),
                late=Votes(world.control),
                stragglers=Stragglers(settings.straggler_factor),
                spikes=spikes,
                own_step=None if self._step is None else OwnStep(self._step, Turns(strategy)),
                average=average,
            )
            if settings.count_flops and self._flops is None:
                self._flops = count_operations(loop, settings)
            loop.flops = self._flops
            if strategy.pipeline is not None and strategy.pipeline.cut.way == BY_TIME:
                loop.info[NOTED] = ",".join(strategy.pipeline.cut.begins)
            yield loop

    def _cuts(self, world: World, data: TrainData | None) -> KeptCuts | None:
        """Return the object that finds and saves where a pipeline cuts the model into stages.

        Return None if there is no pipeline, or it is not cut by measured time. `data` has the samples to measure the
        parts of the model with; None: nothing is measured.
        """
        settings, loss = self.settings, self._loss
        if settings.pp_cut != BY_TIME or world.stages == 1:
            return None
        measure = partial(first_sample, settings, world, loss, data) if data is not None else None
        return KeptCuts(self._folder, world, measure)

    def _strategy(self, world: World, cuts: KeptCuts | None, *, restored: bool) -> Strategy:
        """Return the strategy with its model: a given model is wrapped once, a function makes a new one each time.

        The strategy of an earlier call is kept if its ranks have met again after a kill, or if the model was given and
        the ranks are the same. With `restored`, the first weights will be replaced and need not be drawn. `cuts` reads
        and saves where a pipeline cuts the model into stages; None without a pipeline.
        """
        settings, built = self.settings, self._built
        goes_on = built is not None and built.world is world and world.rejoined
        if built is None or (not goes_on and (built.world != world or not isinstance(self._model, nn.Module))):
            self._built = built = None  # before there is another one
            seed_all(settings.seed)
            # Each strategy setting is a setting of the same name.
            wanted = {field.name: getattr(settings, field.name) for field in dataclasses.fields(StrategySettings)}
            made, self._made = self._made, None
            self._built = built = build(
                self._model,
                world,
                StrategySettings(**wanted),
                self._make_optimizer,
                own_step=self._step is not None,
                tp_plan=self._tp_plan,
                cuts=cuts,
                restored=restored,
                made=made,
            )
            if world.is_first:
                warn_of_low_weights(built.module)
        # So that dropout differs, over stages too, but not among ranks that divide a layer.
        seed_all(settings.seed, world.dp_rank + world.stage * world.dp_size)
        return built

    def _evaluations(
        self, training: Training, data: Any, prefix: str, average: Average | None = None
    ) -> Evaluation | SeveralEvaluations:
        """Return the evaluation, not run yet, of the data set `data`, or of several if it is a dict of these by name.

        `prefix` begins the names of the values, such as the loss, that it computes; with several sets, a set's name
        follows. With `average`, the averaged weights are evaluated.
        """
        if not is_several(data):
            return self._evaluation(training, data, prefix, average)
        each = [self._evaluation(training, one, f"{prefix}{name}_", average) for name, one in data.items()]
        return SeveralEvaluations(each)

    def _evaluation(self, training: Training, data: Any, prefix: str, average: Average | None = None) -> Evaluation:
        """Return an object that evaluates the model on the data set `data` when it is called for.

        `prefix` begins the names of the values that it computes; with `average`, it evaluates the averaged weights.
        """
        settings, world = self.settings, training.world
        samples = settings.validation_samples(world.dp_size)
        shares = RankBatches(data, samples, world, settings.workers, self._validation_collate, settings.fast_dev_run)
        return Evaluation(training, shares, self._validated_loss, self._metrics, average, prefix)

    @property
    def _validated_loss(self) -> LossFunction | None:
        """The loss function to validate with, or None if there is only the user's own training step."""
        return None if self._step is not None and self._loss is own_loss else self._loss

    def _all_callbacks(self, console: Console | None, save_best: Callable[..., None]) -> list[Callback]:
        """Return the user's callbacks, followed by those that the settings ask for.

        `console` is None except on rank 0; `save_best(step, values)` saves the best checkpoint.
        """
        settings, out = self.settings, metrics_folder(self.settings)
        found = list(self._callbacks)
        if settings.gc_every is not None:
            found.append(Collecting(settings.gc_every))
        if settings.patience is not None:
            found.append(EarlyStopping(settings.patience, settings.monitor, settings.mode, settings.min_delta))
        lines: list[JsonLines] = []
        if console is not None:
            if settings.fast_dev_run is None:
                lines.append(JsonLines(out, Launched.from_environment()))
            found += [console, *lines, Reports(Wire.from_environment())]
            if settings.tensorboard:
                found.append(TensorBoard(out / "tensorboard"))
        if settings.profile is not None:
            tell = lines[0].on_trace if lines else _do_nothing
            found.append(Profiler(*first_and_last(settings.profile), out / "profile", tell))
        if settings.keep_best:  # last: what the others keep is in the checkpoint that it asks for
            found.append(BestModel(save_best, settings.monitor, settings.mode))
        return found

    def _checkpointer(
        self, training: Training, state: dict[str, Any], data: TrainData, average: Average | None
    ) -> Checkpointer:
        """Return the checkpointer of everything that this training saves.

        `state` has objects with a state_dict() by name. Added to it here are the counts of skipped steps, the scaler of
        fp16 and the position in the data. `average` is the average of the weights, or None.
        """
        settings, strategy = self.settings, training.strategy
        state["skips"] = strategy.skips
        if strategy.scaler is not None:
            state["scaler"] = strategy.scaler
        state["data"] = SharedPlace(data) if data.per_rank else data
        return Checkpointer(
            settings.checkpoint_dir,
            model=strategy.model,  # wrapped: so it is known whether ranks share their buffers
            optimizer=strategy.optimizers,
            state=state,
            per_rank={"data": data} if data.per_rank else None,
            averages=average.tensors if average is not None else None,
            every=settings.checkpoint_every,
            keep=settings.checkpoint_keep,
            total_steps=training.total_steps,
            world=training.world,
            in_memory=settings.fast_dev_run is None,  # those are of the real training
        )

    def _log_start(self, loop: Loop, start: int) -> None:
        """Log the strategy, and the step `start` from which the training begins."""
        total = loop.training.total_steps
        where = f"step {start}" + (f" of {total}" if total is not None else "")
        loop.training.say(f"{summary(loop.strategy)}, {where}")
        if (pipeline := loop.strategy.pipeline) is not None:
            samples = samples_at_once(self.settings, loop.training.world)
            loop.training.say(pipeline.summary_of_step(samples))
            if loop.training.world.is_first and self.settings.fast_dev_run is None:
                _write_picture(metrics_folder(self.settings) / "pipeline.svg", pipeline.picture(samples), loop.training)
        if self.settings.fast_dev_run is not None:
            loop.training.say("fast_dev_run: neither checkpoints nor metrics are kept")


def _write_picture(path: Path, picture: str, training: Training) -> None:
    """Write `picture`, the SVG drawing of the pipeline, to the file `path`; a failure is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture)
    except OSError as error:
        training.say(f"no picture of the pipeline: {error}")


def _do_nothing(*_: object) -> None: ...


def _phases(settings: Settings, world: World) -> Phases:
    """Return the stopwatch for the phases of a step on the device; with a profiler, it marks them in the trace."""
    phases = phases_on(world.device)
    return phases if settings.profile is None else MarkedPhases(phases)


def _total_steps(settings: Settings, steps_per_epoch: int | None) -> int | None:
    """Return the number of optimizer steps of the whole training, or None if it is unknown.

    It is the smaller of `max_steps` and the steps of `max_epochs`, as far as they are set; `steps_per_epoch` is None
    for data of unknown length.
    """
    limits = [] if settings.max_steps is None else [settings.max_steps]
    if settings.max_epochs is not None and steps_per_epoch is not None:
        limits.append(settings.max_epochs * steps_per_epoch)
    return min(limits, default=None)
