"""Call a Python function as each rank of a run, and write what it returns or raises to a file beside the code: a
pickled dict, called a record. Plain data are numbers, text, and lists, tuples, sets and dicts of these. The text of
this file, with a last line that names the function, is the script of such a run. It uses only the standard library and
the syntax of Python 3.9, because the ranks' interpreter may lack `launcher`, and may be older.
"""

import contextlib
import importlib
import os
import pickle  # nosec - what was frozen is code
import sys
import time
import traceback
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT, ARGUMENTS, MODULES = "launch_function.py", "launch_function.pkl", "launch_modules"
RESULTS = "launch_result"
PLAIN = (type(None), bool, int, float, str, bytes)


class NotPlain(Exception):
    """Raised if a value is more than numbers, text, and lists, tuples, sets and dicts of these."""


def main(module: str, name: str, folders: list[str], python: tuple[int, int]) -> None:
    """Call the function as this rank. Write what it returns (rank 0 only), or write its exception and raise it again.

    The function is `name` in the module `module`. If `module` is "", it was pickled with its arguments, by a Python of
    version `python` (major, minor); an interpreter of another version raises RuntimeError. `folders`, relative to this
    file, are added to the import path.
    """
    rank = int(os.environ.get("RANK", "0"))
    path = os.path.join(HERE, RESULTS, f"rank-{rank:05d}.pkl")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of the generation before
    sys.path[1:1] = [os.path.join(HERE, folder) for folder in (*folders, MODULES)]
    try:
        function, args, more = loaded(module, python)
        if module:
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
        value = function(*args, **more)
        if rank == 0:
            write(path, returned(name, value))
    except Exception as error:
        write(path, raised(error))
        raise


def loaded(module: str, python: tuple[int, int]) -> Any:
    """Return (function, positional arguments, keyword arguments) from the pickle beside this file.

    The function is None if it is to be imported from `module`. If `module` is "", it was pickled by a Python of version
    `python` (major, minor); raise RuntimeError if this process has another version, which may not read it.
    """
    if not module and sys.version_info[:2] != python:
        here, there = (f"{major}.{minor}" for major, minor in (sys.version_info[:2], python))
        text = f"Python {here} cannot run a function that Python {there} has pickled"
        raise RuntimeError(f"{text}: put it into a module of the project, or name such a Python by run.python")
    with open(os.path.join(HERE, ARGUMENTS), "rb") as file:
        return pickle.load(file)  # noqa: S301 # nosec - likewise


def returned(name: str, value: Any) -> dict[str, Any]:
    """Return the record of a value that function `name` returned: the value itself if it is plain data, else pickled.

    Raise TypeError if it cannot be pickled.
    """
    try:
        return {"kind": "value", "value": plain(value)}
    except (NotPlain, RecursionError):
        what = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        return {"kind": "pickle", "what": what, "value": dumped(value)}
    except Exception as error:
        raise TypeError(f"{name} has returned a {what}, which cannot be pickled: {error}") from error


def raised(error: Exception) -> dict[str, Any]:
    """Return the record of an exception: its class, arguments, text and traceback, and the pickled exception, or b"" if
    it cannot be pickled.
    """
    kind = type(error)
    try:
        args = plain(error.args)
    except (NotPlain, RecursionError):
        args = (str(error),)
    try:
        whole = dumped(error)
    except Exception:  # noqa: BLE001 - whatever an object's own code does when it is pickled
        whole = b""
    text = "".join(traceback.format_exception(kind, error, error.__traceback__))
    what = f"{kind.__module__}.{kind.__qualname__}"
    return {"kind": "error", "what": what, "args": args, "text": str(error), "traceback": text, "value": whole}


def plain(value: Any) -> Any:
    """Return the value as plain data; NumPy's and torch's numbers become Python's.

    Raise NotPlain for any other value.
    """
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple, set):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {plain(key): plain(each) for key, each in value.items()}
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return plain(value.item())
    raise NotPlain


def dumped(value: Any) -> bytes:
    """Return the value pickled, with cloudpickle if it is installed."""
    try:
        import cloudpickle  # where it is installed, or came along
    except ImportError:
        return pickle.dumps(value, protocol=4)
    whole: bytes = cloudpickle.dumps(value, protocol=4)
    return whole


def write(path: str, found: dict[str, Any]) -> None:
    """Write the result `found` to the file `path` by one rename, so that no reader sees a part of it.

    The time and the numbers of the run's attempt and generation (its start of ranks), from the environment, are added.
    """
    when = {name.lower(): int(os.environ.get(f"LAUNCH_{name}", "0")) for name in ("ATTEMPT", "GENERATION")}
    with open(f"{path}.draft", "wb") as file:
        pickle.dump({**when, "at": time.time(), **found}, file, protocol=4)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.draft", path)
