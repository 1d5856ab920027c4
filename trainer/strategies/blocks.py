"""The parts of a model that are sharded, recomputed and compiled each by itself."""

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from trainer.errors import BadSettings

_CONTAINERS = (nn.Sequential, nn.ModuleList)
_SMALLEST_SHARE = 0.02  # of the largest block; smaller ones are not worth a message of their own


def blocks_of(module: nn.Module, wanted: Sequence[str] = ()) -> list[nn.Module]:
    """The wanted ones, by class or name; else the children of containers that hold most of the parameters."""
    if wanted:
        return _chosen(module, wanted)
    found = list(dict.fromkeys(_contained(module)))
    sizes = [_size(block) for block in found]
    least = max(sizes, default=0) * _SMALLEST_SHARE
    return [block for block, size in zip(found, sizes, strict=True) if size and size >= least]


def without_shared_parameters(module: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Blocks all of whose parameters are theirs alone. Tied ones have to be sharded together, by the root."""
    everywhere = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    return [block for block in blocks if _owns_all(block, everywhere)]


def _owns_all(block: nn.Module, everywhere: Counter[int]) -> bool:
    here = Counter(id(parameter) for _, parameter in block.named_parameters(remove_duplicate=False))
    return all(everywhere[key] == count for key, count in here.items())


def _contained(module: nn.Module) -> Iterator[nn.Module]:
    """What containers hold, outermost first."""
    for child in module.children():
        if _only_contains(child) or type(module) not in _CONTAINERS:
            yield from _contained(child)
        else:
            yield child


def _only_contains(module: nn.Module) -> bool:
    """A container of containers or blocks. One of single layers, as conv + norm + relu, makes a block.

    A subclass of a container has a meaning of its own: it is a block, too.
    """
    if type(module) is nn.ModuleList:
        return True  # cannot be called
    return type(module) is nn.Sequential and any(True for child in module.children() for _ in child.children())


def _chosen(module: nn.Module, wanted: Sequence[str]) -> list[nn.Module]:
    chosen: dict[str, nn.Module] = {}
    missing = set(wanted)
    for name, part in module.named_modules():
        fits = {
            pattern for pattern in wanted if type(part).__name__ == pattern or (name and fnmatchcase(name, pattern))
        }
        missing -= fits
        if fits and part is not module and not any(name.startswith(f"{outer}.") for outer in chosen):
            chosen[name] = part
    if missing:
        raise BadSettings(
            f"blocks: expected names or classes of parts of {type(module).__name__}, "
            f"got {', '.join(map(repr, sorted(missing)))}"
        )
    lists = [name for name, part in chosen.items() if type(part) is nn.ModuleList]
    if lists:
        raise BadSettings(f"blocks: {lists[0]} is a list of modules, not one to call\nhint: {lists[0]}.*")
    return list(chosen.values())


def _size(block: nn.Module) -> int:
    return sum(parameter.numel() for parameter in block.parameters())
