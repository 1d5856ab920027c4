"""CIFAR-10's files are pickles. They are read here without pickle and without numpy: as numbers, text, lists, dicts and
arrays of bytes, which are all that a file of the set is made of. What asks for anything else is refused.
"""

import math
import pickletools
from typing import Any

_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_KNOWN = {*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode"}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# How many of the last values these put together; None: all since the last mark.
_GATHERED = {
    "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None, "LIST": None, "DICT": None,
    "APPEND": 1, "APPENDS": None, "SETITEM": 2, "SETITEMS": None,
}  # fmt: skip
_SAYS_NOTHING = ("PROTO", "FRAME", "STOP")
_WORDS = ("STRING", "UNICODE", "UNICODE8", "BYTES", "BYTES8", "INT", "INT1", "INT2", "LONG", "LONG1", "LONG4", "FLOAT")


class NotPlain(Exception):
    """No data of the kind that is read here."""


class _Known:
    """Something that a pickle asks for by name, which is never looked up."""

    def __init__(self, name: str) -> None:
        if name not in _KNOWN:
            raise NotPlain(f"it asks for {name[:100].replace(' ', '.')}, which is no data")
        self.name = name


class PickledArray:
    """An array as it stands in the file."""

    shape: tuple[int, ...] = ()
    data = b""

    def fill(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        if not (isinstance(kind, _Type) and kind.name in ("u1", b"u1") and by_columns in (0, False)):
            raise NotPlain("an array of something else than bytes in rows")
        if not all(type(size) is int and size >= 0 for size in shape) or len(data) != math.prod(shape):
            raise NotPlain("an array that is longer or shorter than its shape says")
        self.shape, self.data = tuple(shape), bytes(data)


class _Type:
    """A type of numbers, by its name."""

    def __init__(self, name: object) -> None:
        self.name = name

    def fill(self, state: Any) -> None:
        """Its byte order and the like: of bytes there is only one."""


class _Reader:
    """The stack of a pickle's program; each step only puts together what stands in the file."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []  # how high the stack was at each mark
        self._memo: dict[int, Any] = {}

    def step(self, name: str, word: Any) -> None:
        if name == "MARK":
            self._marks.append(len(self.stack))
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else word] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[word])
        elif name in _GATHERED:
            self._gather(name)
        elif name in ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"):
            self._make(name, word)
        elif name not in _SAYS_NOTHING:
            if not name.endswith(_WORDS):
                raise NotPlain(f"it asks for {name}, which is no data")
            self.stack.append(word)

    def _gather(self, name: str) -> None:
        stack = self.stack
        count = _GATHERED[name]
        items = self._to_mark() if count is None else [stack.pop() for _ in range(count)][::-1]
        match name:
            case "LIST":
                stack.append(items)
            case "DICT":
                stack.append(_pairs(items))
            case "APPEND" | "APPENDS":
                _expect(list, stack[-1]).extend(items)
            case "SETITEM" | "SETITEMS":
                _expect(dict, stack[-1]).update(_pairs(items))
            case _:
                stack.append(tuple(items))

    def _make(self, name: str, word: Any) -> None:
        stack = self.stack
        last = None if name == "GLOBAL" else stack.pop()
        match name:
            case "GLOBAL":
                stack.append(_Known(word))
            case "STACK_GLOBAL":
                stack.append(_Known(f"{stack.pop()} {last}"))
            case "REDUCE":
                stack.append(_made(_expect(_Known, stack.pop()).name, _expect(tuple, last)))
            case "BUILD":
                _expect((_Type, PickledArray), stack[-1]).fill(last)

    def _to_mark(self) -> list[Any]:
        at = self._marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items


def read_plain(data: bytes) -> object:
    """What the file holds. Raises NotPlain."""
    reader = _Reader()
    try:
        for code, word, _ in pickletools.genops(data):
            reader.step(code.name, str(word).encode("latin-1") if code.name.endswith("STRING") else word)
        return reader.stack.pop()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise NotPlain(str(error)[:200]) from error


def _expect(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        raise NotPlain(f"a {type(value).__name__} where it cannot be")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {_expect((str, bytes), key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _made(name: str, arguments: tuple[Any, ...]) -> Any:
    if name in _RECONSTRUCT:
        return PickledArray()
    if name == "numpy dtype":
        return _Type(arguments[0])
    if name == "_codecs encode":  # how Python 3 writes bytes in the old protocol
        return _expect(str, arguments[0]).encode("latin-1")
    raise NotPlain(f"it asks for {name}, which is no data")
