"""Find the parts of a model that are sharded, recomputed and compiled separately."""

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from trainer.errors import BadSettings
from trainer.strategies.settings import Choice

_CONTAINERS = (nn.Sequential, nn.ModuleList)
_SMALLEST_SHARE = 0.02  # of the largest block; smaller ones are not worth a message of their own


def blocks_of(module: nn.Module, wanted: Choice = ()) -> list[nn.Module]:
    """Return the blocks that `wanted` chooses, or, if `wanted` is empty, those found in containers.

    `wanted` has names of classes and patterns of module names (`layers.*`), or is a rule `(name, module) -> bool`.
    Containers are Sequential, ModuleList and the like; children much smaller than the largest are left out. Raises
    BadSettings if a part of `wanted` fits no module.
    """
    if wanted:
        return chosen(module, wanted)
    found = list(dict.fromkeys(_contained(module)))
    sizes = [_size(block) for block in found]
    least = max(sizes, default=0) * _SMALLEST_SHARE
    return [block for block, size in zip(found, sizes, strict=True) if size and size >= least]


def without_shared_parameters(module: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return those of the blocks that share no parameter with other parts of the model.

    Tied parameters have to be sharded together, with the root.
    """
    everywhere = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    return [block for block in blocks if _owns_all(block, everywhere)]


def _owns_all(block: nn.Module, everywhere: Counter[int]) -> bool:
    """Return whether all uses of the block's parameters are inside it.

    `everywhere` counts, by the parameter's id, the uses of each parameter in the whole model.
    """
    here = Counter(id(parameter) for _, parameter in block.named_parameters(remove_duplicate=False))
    return all(everywhere[key] == count for key, count in here.items())


def _contained(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children of containers (Sequential, ModuleList and the like), in the order of the model.

    A child that only holds other containers or blocks is entered instead; nothing inside a yielded module is yielded.
    """
    for child in module.children():
        if _only_contains(child) or type(module) not in _CONTAINERS:
            yield from _contained(child)
        else:
            yield child


def _only_contains(module: nn.Module) -> bool:
    """Return whether the module is no block itself, because it only holds blocks or other containers.

    That is so for a ModuleList, and for a Sequential if some module in it has children. A Sequential of single layers,
    such as conv + norm + relu, is itself a block, and so is a subclass of a container.
    """
    if type(module) is nn.ModuleList:
        return True  # cannot be called
    return type(module) is nn.Sequential and any(True for child in module.children() for _ in child.children())


def chosen(module: nn.Module, wanted: Choice, setting: str = "blocks") -> list[nn.Module]:
    """Return the modules inside of `module` that `wanted` chooses, without those inside of another chosen one.

    `wanted` has names of classes and patterns of module names (`layers.*`), or is a rule `(name, module) -> bool`.
    Raises BadSettings, which names `setting`, if one of the patterns fits no module, the rule chooses none, or an
    nn.ModuleList, which cannot be called, is chosen.
    """
    if not callable(wanted):
        _refuse_unmatched(module, wanted, setting)
    found: dict[str, nn.Module] = {}
    for name, part in module.named_modules():
        if name and not any(name.startswith(f"{outer}.") for outer in found) and _fits(name, part, wanted):
            found[name] = part
    if callable(wanted) and not found:
        raise BadSettings(f"{setting}: expected a rule that chooses parts of {type(module).__name__}, it chose none")
    lists = [name for name, part in found.items() if type(part) is nn.ModuleList]
    if lists:
        raise BadSettings(f"{setting}: {lists[0]} is a list of modules, not one to call\nhint: {lists[0]}.*")
    return list(found.values())


def _fits(name: str, part: nn.Module, wanted: Choice) -> bool:
    """Return whether the module `part`, called `name` in the model, fits `wanted`.

    `wanted` has names of classes and patterns of module names, or is a rule `(name, module) -> bool`.
    """
    if callable(wanted):
        return wanted(name, part)
    return any(type(part).__name__ == pattern or fnmatchcase(name, pattern) for pattern in wanted)


def _refuse_unmatched(module: nn.Module, wanted: Sequence[str], setting: str) -> None:
    """Raise BadSettings, which names `setting`, if a pattern in `wanted` fits no part of the model.

    A part fits if its class has that name, or if its name in the model matches the pattern, which may have wildcards.
    """
    unmatched = [
        pattern
        for pattern in wanted
        if not any(_fits(name, part, (pattern,)) for name, part in module.named_modules() if name)
    ]
    if unmatched:
        raise BadSettings(
            f"{setting}: expected names or classes of parts of {type(module).__name__}, "
            f"got {', '.join(map(repr, sorted(unmatched)))}"
        )


def _size(block: nn.Module) -> int:
    """Return the number of the block's parameters."""
    return sum(parameter.numel() for parameter in block.parameters())
