"""Divide layers over ranks that work on the same samples (tensor parallel), with torch's `parallelize_module`.

Each rank has some columns or rows of a layer, and the results are added up or concatenated. Layers that the plan does
not name are whole on each rank.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils._pytree import tree_map_only

from trainer.checkpoint.stand_ins import has_values
from trainer.errors import BadSettings
from trainer.strategies.broadcast import broadcast_from_first

_SEQUENCE = 1  # of (batch, time, width)


def _rowwise(**layouts: Any) -> Callable[[nn.Module], ParallelStyle]:
    """Return a function that makes torch's rowwise style for a layer; an embedding gets all tokens on every rank.

    `layouts` are the style's arguments.
    """

    def make(part: nn.Module) -> ParallelStyle:
        """Return the rowwise style for this layer."""
        return RowwiseParallel(input_layouts=Replicate() if isinstance(part, nn.Embedding) else None, **layouts)

    return make


def _colwise(**layouts: Any) -> Callable[[nn.Module], ParallelStyle]:
    """Return a function that makes torch's columnwise style for a layer; `layouts` are the style's arguments."""
    return lambda _: ColwiseParallel(**layouts)


# `..._sequence`: between these layers each rank has a part of the sequence alone, as in norms.
STYLES: dict[str, Callable[[nn.Module], ParallelStyle]] = {
    "colwise": _colwise(),
    "colwise_gather_output": _colwise(output_layouts=Replicate()),
    "rowwise": _rowwise(),
    "sequence_parallel": lambda _: SequenceParallel(sequence_dim=_SEQUENCE),
    "colwise_from_sequence": _colwise(input_layouts=Shard(_SEQUENCE)),
    "rowwise_to_sequence": _rowwise(output_layouts=Shard(_SEQUENCE)),
    "vocabulary": _colwise(use_local_output=False),
    "vocabulary_from_sequence": _colwise(input_layouts=Shard(_SEQUENCE), use_local_output=False),
}
_OLDER = {"colwise_rep": "colwise_gather_output", "embedding_rowwise": "rowwise"}  # Hugging Face's other names
_ON_COLUMNS = ("colwise", "vocabulary")  # how such styles begin

Plan = Mapping[str, "str | ParallelStyle"]


def plan_for(module: nn.Module, given: Plan | None) -> Plan:
    """Return the user's plan (`given`), or else the model's `tp_plan`, as Hugging Face models have one.

    A plan says how to divide the layers, by patterns of their names, such as {"blocks.*.up": "colwise"}. Raises
    BadSettings if there is none.
    """
    own = getattr(module, "tp_plan", None)
    found = given or (own() if callable(own) else own)
    if not found:
        raise BadSettings(
            f"mesh: tp: expected a plan of how to divide {type(module).__name__}, got none\n"
            'hint: tp_plan={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}'
        )
    return dict(found)


def has_divided_vocabulary(plan: Plan) -> bool:
    """Return whether logits, and with them the loss, stay divided over ranks: the plan has a `vocabulary` style."""
    return any(isinstance(style, str) and style.startswith("vocabulary") for style in plan.values())


def divide(module: nn.Module, mesh: DeviceMesh, plan: Plan, *, alike: bool = False) -> None:
    """Make every parameter of this rank a DTensor on `mesh`, whose ranks divide layers by `plan`, in place.

    All ranks call it and get rank 0's values. With `alike` the ranks have the same values before, and nothing is sent.
    Layers that `plan` does not name stay whole on each rank. Raises BadSettings if a layer cannot be divided as
    planned.
    """
    if not alike:
        broadcast_from_first(module.parameters())
    styles = dict(_styles(module, plan, mesh.size()))
    ties = _ties(module)
    for name, part in list(module.named_modules()):
        own = list(part.parameters(recurse=False))
        if not all(map(has_values, own)):
            continue  # of another stage
        if name in styles:
            parallelize_module(part, mesh, styles[name])
        elif own:
            _keep_whole(name, part, mesh)
    for holders in ties:
        _tie(holders)


def return_whole_outputs(module: nn.Module) -> None:
    """Make the module return whole tensors on each rank.

    A hook after its forward pass gathers each DTensor in the output, such as logits that are divided over ranks.
    """

    def put_together(_: nn.Module, __: object, given: Any) -> Any:
        """Return the output with each DTensor made whole, as a hook after the forward pass."""
        return tree_map_only(DTensor, DTensor.full_tensor, given)

    module.register_forward_hook(put_together)


def _styles(module: nn.Module, plan: Plan, ranks: int) -> Iterator[tuple[str, ParallelStyle]]:
    """Yield (name, style) of the layers to divide: those whose name matches a pattern of `plan`, with its style there.

    `ranks` is the number of ranks that divide a layer. Raises BadSettings at the end with all problems: unknown styles,
    layers that cannot be divided equally, and patterns that match no layer.
    """
    problems = []
    unmet = set(plan)
    for name, part in module.named_modules():
        pattern = next((pattern for pattern in plan if fnmatchcase(name, pattern)), None)
        if pattern is None:
            continue
        unmet.discard(pattern)
        style = plan[pattern]
        if not isinstance(style, str):
            yield name, style
            continue
        make = STYLES.get(_OLDER.get(style, style))
        if make is None:
            problems.append(f"tp_plan: {pattern}: expected one of {', '.join(STYLES)}, got {style!r}")
        elif problem := _indivisible(name, part, style, ranks):
            problems.append(problem)
        else:
            yield name, make(part)
    problems += [
        f"tp_plan: {pattern}: {type(module).__name__} has no part of this name" for pattern in plan if pattern in unmet
    ]
    if problems:
        raise BadSettings("\n".join(dict.fromkeys(problems)))


def _indivisible(name: str, part: nn.Module, style: str, ranks: int) -> str:
    """Return as text why `ranks` ranks cannot have equal parts of the layer, or "" if they can.

    `part` is the layer called `name`, and `style` says how it is divided, such as `rowwise` or `colwise`.
    """
    columns = style.startswith(_ON_COLUMNS)
    attribute = (
        {True: "embedding_dim", False: "num_embeddings"}
        if isinstance(part, nn.Embedding)
        else {True: "out_features", False: "in_features"}
    )[columns]
    size = getattr(part, attribute, 0)
    return f"mesh: tp={ranks} does not divide {attribute}={size} of {name}" if size % ranks else ""


def _keep_whole(name: str, part: nn.Module, mesh: DeviceMesh) -> None:
    """Keep the layer `part`, called `name`, whole on each rank.

    Its parameters become DTensors on the mesh, as optimizers and norms need them. Raises BadSettings if the layer has
    layers inside.
    """
    if any(True for _ in part.children()):
        own = next(key for key, _ in part.named_parameters(recurse=False))
        raise BadSettings(
            f"mesh: tp: {f'{name}.' if name else ''}{own} is a parameter of a part that has parts of its own: it can "
            "be neither divided nor kept\nhint: give it a module of its own, or divide by dp alone"
        )

    def come_in(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        """Make the inputs DTensors, as a hook before the forward pass."""
        return tree_map_only(Tensor, lambda one: DTensor.from_local(one, mesh, [Replicate()], run_check=False), inputs)

    def go_out(_: nn.Module, outputs: Any, mesh: DeviceMesh) -> Any:
        """Make the outputs whole tensors again, as a hook after the forward pass."""
        return tree_map_only(DTensor, lambda one: one.redistribute(mesh, [Replicate()]).to_local(), outputs)

    distribute_module(part, mesh, input_fn=come_in, output_fn=go_out)


def _ties(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return, for each parameter that several modules share, these modules with the parameter's name in each."""
    holders: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for part in module.modules():
        for key, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            holders[id(parameter)].append((part, key))
    return [found for found in holders.values() if len(found) > 1]


def _tie(holders: list[tuple[nn.Module, str]]) -> None:
    """Make all modules that share a parameter use the first one's again, after each was divided on its own.

    `holders` are (module, the parameter's name in it). Raises BadSettings if the modules divide it differently.
    """
    (first, key), *others = holders
    kept = getattr(first, key)
    for part, name in others:
        if getattr(part, name).placements != kept.placements:
            raise BadSettings(
                f"tp_plan: {type(first).__name__}.{key} and {type(part).__name__}.{name} are one parameter: both have "
                "to be divided in one way\nhint: an embedding rowwise and its head colwise, or neither"
            )
        setattr(part, name, kept)
