"""Choose the parameters of an optimizer by name, and divide them into groups."""

from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from trainer.checkpoint.names import clean
from trainer.errors import BadSettings

Rule = Callable[[str, nn.Parameter], bool]
Group = dict[str, Any]


class Parameters(list[nn.Parameter]):
    """A list of parameters for any optimizer, which also has their names."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.named = dict(named)
        super().__init__(self.named.values())

    def split(self, wanted: str | Rule) -> tuple["Parameters", "Parameters"]:
        """Return the parameters that fit a pattern (`*.bias`) or a rule `(name, parameter) -> bool`, and the others.

        Raises BadSettings if none fits.
        """
        chosen = self._having(wanted)
        if not chosen:
            shown = repr(wanted) if isinstance(wanted, str) else "the rule"
            raise BadSettings(f"optimizer: expected parameters that fit {shown}, got {few(self.named)}")
        return chosen, self._without(chosen)

    def groups(self, by_pattern: Mapping[str, Mapping[str, Any]]) -> list[Group]:
        """Return parameter groups for an optimizer: one of all other parameters, then one per name pattern.

        Each pattern is given with its group's options; of several patterns that fit a parameter the first one counts.
        Groups without parameters are left out. Raises BadSettings for a pattern that fits no parameter.
        """
        found: list[Group] = []
        rest = self
        for pattern, options in by_pattern.items():
            chosen, _ = self.split(pattern)  # of all: that another pattern came first is no mistake
            mine = [one for name, one in rest.named.items() if name in chosen.named]
            found.append({**options, "params": mine})
            rest = rest._without(chosen)
        return [group for group in ({"params": list(rest)}, *found) if group["params"]]

    def _having(self, wanted: str | Rule) -> "Parameters":
        """Return the parameters that fit a pattern for names (`*.bias`) or a rule `(name, parameter) -> bool`."""

        def fits(name: str, one: nn.Parameter) -> bool:
            """Return whether a parameter fits the pattern or rule."""
            return fnmatchcase(name, wanted) if isinstance(wanted, str) else wanted(name, one)

        return Parameters((name, one) for name, one in self.named.items() if fits(name, one))

    def _without(self, others: "Parameters") -> "Parameters":
        """Return the parameters that are not in `others`."""
        return Parameters((name, one) for name, one in self.named.items() if name not in others.named)


def parameters_of(module: nn.Module) -> Parameters:
    """Return the model's parameters by their names in a checkpoint, whatever wraps its parts."""
    return Parameters((clean(name), one) for name, one in module.named_parameters())


def few(names: Collection[str]) -> str:
    """Return up to five of the names, as text for a message, or `none`."""
    first = list(names)[:5]
    return ", ".join([*first, *([f"and {len(names) - 5} more"] if len(names) > 5 else [])]) or "none"
