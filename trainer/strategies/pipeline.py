"""Pipeline parallel: each rank has some stages of a model, and micro-batches go from stage to stage and back.

    stage 0   F0 F1 .. B0 F2 B1 F3 B2 .. B3      activations go down, their gradients come up:
    stage 1   .. F0 B0 F1 B1 F2 B2 F3 B3 ..      torch.distributed.pipelining has both sent

A rank's model has all names and shapes, but numbers for its own stages only: an optimizer is made of all parameters,
and a checkpoint has them under their names in one process. Ranks with the same stage reduce their gradients once a
step, as do stages that share a parameter (an embedding and the head that is tied to it).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from trainer.checkpoint.stand_ins import stand_in
from trainer.errors import BadSettings
from trainer.strategies.blocks import blocks_of
from trainer.strategies.broadcast import PersistentBuffers, broadcast_from_first
from trainer.strategies.finite import multiply, plain
from trainer.strategies.gradients import reduce_gradients
from trainer.strategies.paging import bring_whole
from trainer.strategies.part_times import part_times
from trainer.strategies.pipeline_cutting import Cut, Cuts, Sample, choose_cut
from trainer.strategies.pipeline_schedule import STAGES_OF_RANK, bubble, drawn, fits, micro_batches, parts_of, picture
from trainer.strategies.precision import autocasting, low_dtype
from trainer.strategies.settings import SHARDS, StrategySettings
from trainer.strategies.shards import SHARDED, STAGES, mesh_over, shard_stage
from trainer.world import World, call_on_first

_LEAST = 1e-6  # as torch's own clipping has it: no division by zero
_SHAPES = 8  # of batches, for which buffers are kept

LossOf = Callable[[Tensor, int], Tensor]  # of what the last stage gives for a micro-batch, and its number


class StageParts(nn.Module):
    """The parts of one stage, called one after the other, each with the output of the one before."""

    def __init__(self, parts: Sequence[nn.Module], casting: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._casting = casting

    def forward(self, given: Tensor) -> Tensor:
        """Return the last part's output."""
        with self._casting():
            for part in self.parts:
                given = part(given)
        return given


@dataclass(slots=True, eq=False)
class Pipeline:
    """The stages of a model that this rank has, and its connections to the other stages.

    `stages` has this rank's stages by number, and `layers` is the number of layers over all stages. `cut` says how the
    model was cut. `casting` returns the autocast context of a forward pass. `_holders` has for each parameter the
    pipeline ranks with it, and `_in_common` the parameters that stages share, each with their group. A
    shared parameter is in `_counted` only at its first stage, so that it counts once.
    """

    world: World
    settings: StrategySettings
    mesh: DeviceMesh
    stages: dict[int, StageParts]  # this rank's, by number
    layers: int  # of all stages
    cut: Cut
    casting: Callable[[], AbstractContextManager[None]]
    _holders: dict[str, tuple[int, ...]]  # by parameter name, the ranks within a pipeline that have it
    _groups: dict[tuple[int, ...], dist.ProcessGroup]  # by such ranks, if several have a parameter
    _around: Callable[[], AbstractContextManager[None]] = nullcontext  # the context in which passes run
    _in_common: list[tuple[nn.Parameter, dist.ProcessGroup]] = field(default_factory=list)  # with other stages
    _counted: set[int] = field(default_factory=set)  # ids of parameters that count here in a norm over all stages
    _scaler: GradScaler | None = None  # of losses, in fp16
    _loss_of: LossOf | None = None  # the loss of a micro-batch from the last stage's output; None except in `train`
    _schedules: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # torch's, by shape of a batch

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first stage."""
        return 0 in self.stages

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage."""
        return self._stage_count - 1 in self.stages

    @property
    def _stage_count(self) -> int:
        """The number of stages over all ranks."""
        return self.world.stages * len(self.stages)

    @property
    def _group(self) -> dist.ProcessGroup:
        """The process group of the ranks that make up this pipeline."""
        return self.mesh.get_group(STAGES)

    def shard(self, module: nn.Module, parts: Sequence[nn.Module]) -> None:
        """Shard the parameters of each stage of this rank over the ranks that have the same stage.

        Each block in `parts` is sharded separately, then the rest of the stage. `module` is the whole model. If it uses
        a parameter of a stage elsewhere too (tied), the sharded parameter replaces the original there as well.
        """
        holders: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
                holders[id(parameter)].append((part, name))
        here = {id(part) for stage in self.stages.values() for part in stage.modules()}
        for number, stage in self.stages.items():
            last = number == self._stage_count - 1
            shard_stage(stage, parts, self.world, self.settings, self.mesh, last=last)
        for tied in holders.values():
            own = [part._parameters[name] for part, name in tied if id(part) in here]  # noqa: SLF001 - as in the next line
            for part, name in tied if own else ():
                part._parameters[name] = own[0]  # noqa: SLF001 - setattr() might be a property's

    def finish_setup(
        self, module: nn.Module, around: Callable[[], AbstractContextManager[None]], scaler: GradScaler | None
    ) -> None:
        """Store what each forward and backward pass needs, and find the parameters of `module` that stages share.

        All ranks call it, once. `around` makes the context in which a pass runs, such as torch's `loss_parallel`;
        `scaler` is the scaler of the loss, None except for fp16.
        """
        self._around, self._scaler = around, scaler
        if scaler is not None:
            scaler.scale(torch.zeros((), device=self.world.device))  # it has a scale from then on, without a loss too
        for name, parameter in module.named_parameters():
            having = self._holders[name]
            if having[0] == self.world.stage:
                self._counted.add(id(parameter))
            if len(having) > 1 and self.world.stage in having:
                self._in_common.append((parameter, self._groups[having]))

    def micro_batches(self, samples: int) -> int:
        """Return the number of equal parts into which a rank's batch of so many samples is divided.

        It is `pp_microbatches`, by default four for each stage, or the next smaller number that divides the batch.
        """
        return micro_batches(samples, self.world.stages, self.settings.pp_microbatches)

    def train(self, inputs: Tensor, loss_of: LossOf) -> None:
        """Run all forward and backward passes of a batch, which add to the gradients; the optimizers are not stepped.

        All ranks of the pipeline call it, with the same inputs. `loss_of(output, number)` is called on the last stage
        alone, and returns the loss of the micro-batch with this number from the model's output for it.
        """
        self._loss_of = loss_of
        try:
            self._run(inputs, learns=True)
        finally:
            self._loss_of = None

    @torch.no_grad()
    def ask(self, inputs: Tensor) -> Tensor | None:
        """Return the model's output for a batch on the last stage, None on others; without gradients.

        All ranks of the pipeline call it with the same inputs.
        """
        found = self._run(inputs, learns=False)
        whole: Tensor | None = found.full_tensor() if hasattr(found, "full_tensor") else found
        return whole

    def whole(self, name: str, parameter: Tensor) -> Tensor:
        """Return the parameter `name`, whole, on every rank; the first stage that has it broadcasts it.

        All ranks call it, each with its own `parameter`: on ranks without the values, a stand-in of the same shape.
        """
        first = self._holders[name][0]
        if self.world.stage == first:
            found = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
        else:
            found = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.world.device)
        found = found.contiguous()
        dist.broadcast(found, group=self._group, group_src=first)
        return found

    def broadcast_from_last(self, value: Any) -> Any:
        """Return, on all ranks of this pipeline, the value that the rank with the last stage passes.

        All these ranks call it; what others pass is ignored.
        """
        shared = [value]
        dist.broadcast_object_list(shared, group=self._group, group_src=self.world.stages - 1)
        return shared[0]

    def broadcast_numbers_from_last(self, numbers: Tensor) -> Tensor:
        """Return, on all ranks of this pipeline, the tensor that the last stage passes, without waiting for the device.

        Other ranks pass a tensor of the same shape, which is overwritten.
        """
        dist.broadcast(numbers, group=self._group, group_src=self.world.stages - 1)
        return numbers

    def reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum a step's gradients over stages that share a parameter, and average them over ranks with the same stage.

        FSDP2 has averaged those of a sharded stage already. All ranks call it.
        """
        for parameter in parameters:
            if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):  # it may be a part of a sum
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        for parameter, group in self._in_common:
            if parameter.grad is not None:
                dist.all_reduce(plain(parameter.grad), group=group)
        if self.settings.strategy not in SHARDS:  # else FSDP2 has done it
            reduce_gradients(parameters, self.world, self.mesh.get_group(SHARDED), self.world.dp_size)

    def clip(self, parameters: Iterable[Tensor], most: float | None) -> Tensor:
        """Scale this rank's gradients so that the norm over all stages is at most `most`; return the norm before.

        `most` None scales nothing. All ranks call it.
        """
        known = [one for one in parameters if one.grad is not None]
        mine = [one.grad for one in known if one.grad is not None and id(one) in self._counted]
        norm = get_total_norm(mine)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        squares = whole.detach().to(self.world.device, torch.float64, copy=True).square_()
        dist.all_reduce(squares, group=self._group)
        total = squares.sqrt_().float()
        if most is not None:
            multiply((one.grad for one in known if one.grad is not None), (most / (total + _LEAST)).clamp(max=1.0))
        return total

    def described(self) -> str:
        """Return the pipeline in few words for the log, such as `pp 2 (1f1b, 8 layers)`."""
        return f"pp {self.world.stages} ({self.settings.pp_schedule}, {self.layers} layers)"

    def summary_of_step(self, samples: int) -> str:
        """Return lines about a step with `samples` samples per rank.

        They have the number of micro-batches, the share of the step in which stages wait for others, the timetable (for
        up to 8 micro-batches), and how the model was cut.
        """
        micros, ranks, kind = self.micro_batches(samples), self.world.stages, self.settings.pp_schedule
        way = kind if fits(kind, ranks, micros) else f"gpipe, as there are too few of them for {kind}"
        share = bubble(kind, ranks, micros)
        lines = f"{micros} micro-batches, {way}: each stage waits for others {share:.0%} of a step"
        rows = drawn(kind, ranks, micros)
        return "\n".join(one for one in (lines, rows, f"stages cut {self.cut.summary()}") if one)

    def picture(self, samples: int) -> str:
        """Return an SVG drawing of a step with so many samples per rank."""
        micros = self.micro_batches(samples)
        return picture(self.settings.pp_schedule, self.world.stages, micros, self.cut.lines())

    def _run(self, inputs: Tensor, *, learns: bool) -> Any:
        """Run a batch through the pipeline, after making a schedule if there is none for its shape; all ranks call it.

        The first stage reads `inputs`; the other ranks only need their shape and type. With `learns`, backward passes
        follow and None is returned. Else the rank with the last stage returns the output, and other ranks return None.
        """
        # Without a way back there is nothing to keep: as few parts as there are stages have all of them at work.
        most = self.world.stages if not learns else self.settings.pp_microbatches
        micros = micro_batches(len(inputs), self.world.stages, most)
        key = (tuple(inputs.shape), inputs.dtype, learns)
        known = self._schedules.pop(key, None)
        begins = self._needs_new_schedule(known is None)
        with self._keeping_gradients() if begins else nullcontext():
            schedule = self._new_schedule(micros, learns=learns) if begins else known
            self._schedules[key] = schedule  # the last one now: the first one is let go of
            if len(self._schedules) > _SHAPES:
                del self._schedules[next(iter(self._schedules))]
            numbers = torch.arange(micros) if learns and self.is_last else None
            with self._around():
                return schedule.step(*([inputs] if self.is_first else []), target=numbers, return_outputs=not learns)

    def _needs_new_schedule(self, wanted: bool) -> bool:
        """Return whether this rank has to make a schedule; all ranks call it.

        That is so if `wanted`: it has none yet for the shape of its batch. If the strategy shards parameters over ranks
        (such as fsdp), it is so on all ranks if any of them wants one: a new schedule runs a batch to discover shapes,
        in which all ranks that have the same stage take part.
        """
        if self.settings.strategy not in SHARDS:
            return wanted
        any_of = torch.tensor(wanted, dtype=torch.uint8)
        dist.all_reduce(any_of, dist.ReduceOp.MAX, group=self.world.control)
        return bool(any_of)

    @contextmanager
    def _keeping_gradients(self) -> Iterator[None]:
        """Keep gradients of earlier micro-batches, which FSDP2 drops when a new schedule runs its first batch."""
        before = [(one, one.grad) for stage in self.stages.values() for one in stage.parameters()]
        for one, _ in before:
            one.grad = None
        try:
            yield
        finally:
            for one, gradient in before:
                if gradient is not None:
                    one.grad = gradient if one.grad is None else one.grad.add_(gradient)

    def _new_schedule(self, micros: int, *, learns: bool) -> Any:
        """Return torch's schedule for `micros` micro-batches; with `learns` it has backward passes.

        The first batch that runs in it also finds the shapes of the tensors that pass between stages, so that a
        schedule serves only batches of one shape.
        """
        from torch.distributed import pipelining  # late: half a second, and only some want it
        from torch.distributed.pipelining.schedules import ScheduleLoopedBFS  # late: with it

        stages: list[Any] = [
            pipelining.PipelineStage(module, number, self._stage_count, self.world.device, group=self._group)
            for number, module in self.stages.items()
        ]
        kind = (
            self.settings.pp_schedule if learns and fits(self.settings.pp_schedule, self.world.stages, micros) else ""
        )
        how: dict[str, Any] = {"loss_fn": self._scaled_loss if learns else None, "scale_grads": False}
        if len(stages) > 1:
            several = pipelining.ScheduleInterleaved1F1B if kind else ScheduleLoopedBFS
            return several(stages, micros, **how)
        one = pipelining.Schedule1F1B if kind == "1f1b" else pipelining.ScheduleGPipe
        return one(stages[0], micros, **how)

    def _scaled_loss(self, output: Tensor, number: Tensor) -> Tensor:
        """Return the loss of micro-batch `number` from the last stage's `output`; with fp16 it is scaled.

        torch's pipeline schedule calls it, while `train` runs. Raises RuntimeError outside of `train`.
        """
        if self._loss_of is None:
            raise RuntimeError("a loss is asked for outside of a step")
        loss = self._loss_of(output, int(number))
        return loss if self._scaler is None else self._scaler.scale(loss)


def staged(
    module: nn.Module,
    world: World,
    settings: StrategySettings,
    mine: dict[str, Tensor] | None = None,
    cuts: Cuts | None = None,
) -> Pipeline:
    """Cut the model in place so that this rank keeps its own stages on its device; return the Pipeline.

    All ranks call it. The weights are rank 0's or, if `mine` is given, those in `mine`: this rank's rows of every
    parameter of a model on the meta device. `cuts` is the interface to cut by measured time; without it the model is
    cut by layers. Raises BadSettings if it cannot be cut.
    """
    parts = parts_of(module)
    _refuse_what_stages_cannot_hold(module, parts)
    blocks = blocks_of(module, settings.blocks)
    named = dict(module.named_modules())
    layers = [name for name in parts if named[name] in set(blocks)]
    ranks, many = world.stages, STAGES_OF_RANK.get(settings.pp_schedule, 1)
    low = low_dtype(settings.precision)

    def casting() -> AbstractContextManager[None]:
        """Return the context of a forward pass."""
        return autocasting(world.device, low)

    def measured(sample: Sample) -> list[float]:
        """Return the seconds of each part, measured on rank 0."""
        recomputed = blocks[:: settings.recompute_every] if settings.activation_checkpointing else []
        row = [(name, named[name]) for name in parts]
        return call_on_first(world, lambda: part_times(row, sample, world.device, casting, recomputed))

    cut = choose_cut(
        settings.pp_cut, parts, layers, [_is_trained(named[name]) for name in parts], ranks * many, cuts, measured
    )
    rows = cut.rows
    for number, row in enumerate(rows):
        if not any(_is_trained(named[name]) for name in row):
            raise BadSettings(f"mesh: pp: stage {number} ({', '.join(row)}) has no parameter to train")
    _refuse_what_is_in_two_stages(module, rows, ranks, settings)
    mesh = mesh_over(world, settings)

    holders: dict[int, set[int]] = defaultdict(set)  # of each parameter, the ranks of a pipeline
    for number, row in enumerate(rows):
        for name in row:
            for parameter in named[name].parameters():
                holders[id(parameter)].add(number % ranks)
    own = {number: rows[number] for number in range(world.stage, ranks * many, ranks)}
    having = {name: tuple(sorted(holders[id(one)])) for name, one in module.named_parameters()}
    others = {key for key, ranks_of in holders.items() if world.stage not in ranks_of}
    groups = _groups(sorted(set(having.values())), world)
    if mine is None:
        first = next(module.parameters())
        broadcast_from_first(module.parameters(), world.control if first.device.type == "cpu" else None)
    else:
        bring_whole(module, mine, world, holders.keys() - others, world.device)
    _put_away(module, others, world.device)
    stages = {number: StageParts([named[name] for name in row], casting) for number, row in own.items()}
    for stage in stages.values():
        stage.to(world.device)
    return Pipeline(world, settings, mesh, stages, len(layers), cut, casting, having, groups)


def _is_trained(part: nn.Module) -> bool:
    """Return whether the part has parameters that are trained."""
    return any(one.requires_grad for one in part.parameters())


def _groups(wanted: Iterable[tuple[int, ...]], world: World) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """Make process groups of the ranks whose pipeline stages share a parameter; return those that this rank is in.

    `wanted` has one tuple for each set of such ranks, by their positions in a pipeline (from 0), which is the key of
    the group in the result; a tuple of one rank gets no group. All ranks call it with the same `wanted`, in the same
    order, because all take part in making each group.
    """
    found: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for having in wanted:
        for place in range(world.ranks_per_stage) if len(having) > 1 else ():
            group = dist.new_group([stage * world.ranks_per_stage + place for stage in having])
            if isinstance(group, dist.ProcessGroup) and place == world.rank % world.ranks_per_stage:
                found[having] = group
    return found


def _put_away(module: nn.Module, others: set[int], device: torch.device) -> None:
    """Replace the parameters in `others` (by their `id()`), which only other ranks have, by stand-ins on `device`.

    A stand-in has the same shape and type, and no memory for values. A parameter that is in several places of the
    module (tied) gets the same stand-in in all of them.
    """
    known: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():  # noqa: SLF001 - setattr() might be a property's
            if parameter is not None and id(parameter) in others:
                if id(parameter) not in known:
                    known[id(parameter)] = stand_in(parameter, device)
                part._parameters[name] = known[id(parameter)]  # noqa: SLF001 - for the same reason


def _refuse_what_is_in_two_stages(
    module: nn.Module, rows: Sequence[Sequence[str]], ranks: int, settings: StrategySettings
) -> None:
    """Raise BadSettings if two stages of one rank share a parameter and the strategy shards parameters.

    Such a strategy shards each stage by itself, so the parameter would be sharded twice. `rows` has the names of each
    stage's parts, and `ranks` is the number of ranks in a pipeline.
    """
    known: dict[tuple[int, int], tuple[int, str]] = {}
    for number, row in enumerate(rows if settings.strategy in SHARDS else ()):
        for name in row:
            for parameter in module.get_submodule(name).parameters():
                stage, first = known.setdefault((id(parameter), number % ranks), (number, name))
                if stage != number:
                    raise BadSettings(
                        f"mesh: pp: {first} and {name} have a parameter in common, and are in two stages of one rank: "
                        f"{settings.strategy} cannot shard it\nhint: another pp_schedule, or strategy ddp"
                    )


def _refuse_what_stages_cannot_hold(module: nn.Module, parts: Sequence[str]) -> None:
    """Raise BadSettings for parameters outside of `parts`, the names of the submodules of which the stages consist.

    Raises it also for persistent buffers and extra state anywhere in the model, which would differ between ranks.
    """
    known = {id(one) for name in parts for one in module.get_submodule(name).parameters()}
    title = type(module).__name__
    if left := [name for name, one in module.named_parameters() if id(one) not in known]:
        raise BadSettings(
            f"mesh: pp: {left[0]} of {title} is a parameter of none of the parts in its pipeline\n"
            "hint: give it a module of its own, and the pipeline that module"
        )
    if PersistentBuffers(module).tensors():
        name = next(name for name, _ in module.named_buffers())
        raise BadSettings(
            f"mesh: pp: {title} keeps buffers ({name}), as BatchNorm does, which a pipeline would change once a "
            "micro-batch\nhint: a norm without statistics, as LayerNorm or GroupNorm"
        )
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise BadSettings(f"mesh: pp: {name} of {title} has extra state, which is kept of the first stage alone")
