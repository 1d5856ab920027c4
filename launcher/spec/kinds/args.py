"""What a program is given on its command line."""

import re
from dataclasses import dataclass
from functools import partial

from launcher.spec.kinds.groups import refuse_surprise
from launcher.spec.kinds.leaf import Json, Unfit
from launcher.spec.kinds.text import Text
from launcher.spec.problems import Gather, Wrong, got, wrong
from launcher.spec.tree import Mapping, Node, Scalar, Sequence, Unusable

WORD = Text(lines=True, empty=True)
_OPTION = r"[^\s=]+"


@dataclass(frozen=True, slots=True)
class ArgsTable:
    """A mapping that becomes `--key value`; true is the bare `--key`, false leaves it out, a list `--key a b c`."""

    def words(self) -> str:
        return "a mapping that becomes `--key value`"

    def parse(self, node: Node) -> tuple[str, ...]:
        if not isinstance(node, Mapping):
            raise Wrong
        gather = Gather()
        words: list[str] = []
        for entry in node:
            words += gather.take(entry.key.text, partial(_option, entry.key), entry.value) or []
        gather.close()
        return tuple(words)

    def schema(self) -> Json:
        value = WORD.schema()
        either = {"anyOf": [value, {"type": "array", "items": value}]}
        return {"type": "object", "propertyNames": {"pattern": f"^{_OPTION}$"}, "additionalProperties": either}

    def show(self, value: tuple[str, ...]) -> list[str]:
        return list(value)


def _option(key: Scalar, value: Node) -> list[str]:
    return [WORD.parse(word) for word in option_words(key, value)]


def option_words(key: Scalar, value: Node) -> list[Scalar]:
    """One entry of the mapping as the words of a command line. Raises Wrong."""
    if not re.fullmatch(_OPTION, key.text):
        raise wrong(key, "expected the name of an option, without white space and =")
    option = Scalar(key.text if key.text.startswith("-") else f"--{key.text}", False, key.mark)
    WORD.parse(option)
    match value:
        case Scalar():
            return _with_scalar(option, value)
        case Sequence():
            return [option, *_scalars(value)]
        case Mapping():
            raise wrong(value, "expected a value or a list, got a mapping", "quote it if the program reads JSON")
        case Unusable():
            raise Wrong


def _with_scalar(option: Scalar, value: Scalar) -> list[Scalar]:
    if not value.plain:
        return [option, value]
    if value.text in ("true", "false"):
        return [option] if value.text == "true" else []
    try:
        refuse_surprise(value)
    except Unfit as error:
        raise wrong(value, f"expected true, false, text or a list, got {got(value)}", error.hint) from None
    return [option, value]


def _scalars(values: Sequence) -> list[Scalar]:
    gather = Gather()
    for index, item in enumerate(values.items):
        gather.take(index, WORD.parse, item)
    gather.close()
    return [item for item in values.items if isinstance(item, Scalar)]
