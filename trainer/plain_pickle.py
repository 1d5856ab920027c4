"""Read pickles as data: no function or class that a pickle names is looked up, imported or called."""

import pickletools
from collections.abc import Callable
from typing import Any, TypeVar

_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# How many values from the top of the stack each opcode joins; None: all since the last mark.
_GATHERED = {
    "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None, "LIST": None, "DICT": None,
    "APPEND": 1, "APPENDS": None, "SETITEM": 2, "SETITEMS": None,
}  # fmt: skip
_IGNORED = ("PROTO", "FRAME", "STOP")
_LITERALS = (
    "STRING", "UNICODE", "UNICODE8", "BYTES", "BYTES8", "INT", "INT1", "INT2", "LONG", "LONG1", "LONG4", "FLOAT",
)  # fmt: skip


class NotPlain(Exception):
    """Raised for a pickle that is damaged or asks for something other than data."""


class Name:
    """The name of a function or class in a pickle, as "MODULE NAME"; it is never looked up."""

    def __init__(self, name: str) -> None:
        self.name = name


class Built:
    """Base class of the objects that take the place of those that a pickle builds; they are compared by identity."""

    def fill(self, state: Any) -> None:
        """Set the state that the pickle gives the object. Raises NotPlain if it does not fit."""


class Record(Built):
    """An object as its pickle describes it: the name of its class, its arguments and its state."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments, self.state = name, arguments, None

    def fill(self, state: Any) -> None:
        """Store `state`, which the pickle gives the object after it was built, without interpreting it."""
        self.state = state


T = TypeVar("T")
Make = Callable[[str, tuple[Any, ...]], Any]


class _Reader:
    """The stack machine of the pickle format: `step` executes one opcode, and in the end the object is on `stack`.

    Where a pickle calls a function or class, `make(name, arguments)` is called instead, and returns what takes the
    place of the result; `name` is "MODULE NAME".
    """

    def __init__(self, make: Make) -> None:
        self.stack: list[Any] = []
        self._make_object = make
        self._marks: list[int] = []  # how high the stack was at each mark
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Execute the opcode of this name with its argument.

        Raises NotPlain for an opcode that does not build data, or that does not fit the items on the stack.
        """
        if name == "MARK":
            self._marks.append(len(self.stack))
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name in _GATHERED:
            self._gather(name)
        elif name in ("GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD"):
            self._make(name, argument)
        elif name not in _IGNORED:
            if not name.endswith(_LITERALS):
                raise NotPlain(f"it asks for {name}, which is no data")
            self.stack.append(argument)

    def _gather(self, name: str) -> None:
        """Execute the opcode `name`, which joins items at the top of the stack to a list, tuple or dict.

        It makes a new one of them, or adds them to the one below them. Raises NotPlain if they do not fit.
        """
        stack = self.stack
        count = _GATHERED[name]
        items = self._to_mark() if count is None else [stack.pop() for _ in range(count)][::-1]
        match name:
            case "LIST":
                stack.append(items)
            case "DICT":
                stack.append(_pairs(items))
            case "APPEND" | "APPENDS":
                expect(list, stack[-1]).extend(items)
            case "SETITEM" | "SETITEMS":
                expect(dict, stack[-1]).update(_pairs(items))
            case _:
                stack.append(tuple(items))

    def _make(self, name: str, argument: Any) -> None:
        """Execute the opcode `name`, which names or makes an object.

        `argument` is used for GLOBAL only, as the object's name; the other opcodes take all they need from the stack.
        Raises NotPlain if the items on the stack do not fit.
        """
        stack = self.stack
        last = None if name == "GLOBAL" else stack.pop()
        match name:
            case "GLOBAL":
                stack.append(Name(argument))
            case "STACK_GLOBAL":
                stack.append(Name(f"{expect(str, stack.pop())} {expect(str, last)}"))
            case "REDUCE" | "NEWOBJ":
                stack.append(self._make_object(expect(Name, stack.pop()).name, expect(tuple, last)))
            case "BUILD":
                expect(Built, stack[-1]).fill(last)

    def _to_mark(self) -> list[Any]:
        """Remove the last mark and the items above it from the stack, and return these items."""
        at = self._marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items


def read_plain(data: bytes, make: Make = Record) -> object:
    """Return the object in the pickle `data`: numbers, text, lists, tuples, dicts, Name and results of `make`.

    Where the pickle calls a function or class, `make` is called instead, with a text "MODULE NAME" that names it and
    the arguments. Raises NotPlain for a damaged pickle, or one with other objects.
    """
    reader = _Reader(make)
    try:
        for code, argument, _ in pickletools.genops(data):
            reader.step(code.name, str(argument).encode("latin-1") if code.name.endswith("STRING") else argument)
        return reader.stack.pop()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise NotPlain(str(error)[:200]) from error


def expect(kind: type[T], value: object) -> T:
    """Return `value` if it is of the type `kind`, else raise NotPlain."""
    if not isinstance(value, kind):
        raise NotPlain(f"a {type(value).__name__} where it cannot be")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return alternating keys and values as a dict.

    Raises NotPlain for keys that are neither text, bytes nor Built (hashed by identity): hashing a hostile nested tuple
    may take for ever.
    """
    keys = items[::2]
    if odd := [key for key in keys if not isinstance(key, (str, bytes, Built))]:
        raise NotPlain(f"a {type(odd[0]).__name__} where it cannot be")
    return dict(zip(keys, items[1::2], strict=True))
