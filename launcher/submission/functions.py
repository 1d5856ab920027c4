"""Run a Python function as a job. Its call becomes files of the frozen code: a script that calls it, and its pickled
arguments. What its ranks return or raise is read back as the result. A generation is one start of all ranks in an
attempt.

submit(train, lr=0.1) ─► launch_function.py, launch_function.pkl, beside the project's code ─► ranks
result() ◄─ the restricted reader below ◄─ launch_result/rank-00000.pkl ◄─ what rank 0 returned, or any rank raised
"""

import builtins
import difflib
import functools
import inspect
import io
import pickle  # nosec - written here; read by `_Plain`, or where the user has said so
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from launcher.copies import news
from launcher.errors import BadInput, Exit, Refused, RunFailed
from launcher.run.attempts import read_plan
from launcher.run.layout import RunDir
from launcher.spec.fields import JOB
from launcher.states import State
from launcher.status.derive import RunStatus, exit_code_of
from launcher.submission import call_there
from launcher.submission.call_there import SCRIPT

_ENTRIES = ("script", "module", "command", "args", "workdir")  # of `run`: the function is what runs
_MOST_BYTES = 1 << 28  # of what a rank may have returned
_SHOWN = (bool, int, float)  # arguments whose values are shown: text may be a secret


@dataclass(frozen=True, slots=True)
class Call:
    """A function to call with `args` and the keyword arguments `more`, and the options (`spec`) of its run."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    more: Mapping[str, Any]
    spec: Mapping[str, Any]


def is_function(spec: Any) -> bool:
    """Return whether `spec` is a function or other callable object, and not one that describes a job: a path, a
    mapping, a struct or a dataclass.
    """
    described = isinstance(spec, str | Path | Mapping | msgspec.Struct) or is_dataclass(spec)
    return callable(spec) and not described


def call_of(function: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Call:
    """Return the call of the function with the positional arguments `args` and the keyword arguments `given`; those of
    them that are options of a spec (`resources`, `name`, ...) become the run's.

    Raise BadInput if the function has a parameter called like an option, and for arguments that it does not accept.
    """
    bound: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args, bound, function = (*function.args, *args), {**function.keywords, **bound}, function.func
    options, name = {field.key for field in JOB.options}, _short(function)
    spec = {key: value for key, value in given.items() if key in options}
    more = {**bound, **{key: value for key, value in given.items() if key not in options}}
    if wrong := [key for key in dict(spec.get("run") or {}) if key in _ENTRIES]:
        raise BadInput(f"run.{wrong[0]}: {name} is what runs", "hint: submit a dict or a file to run a script")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not every builtin tells
        return Call(function, args, more, spec)
    if both := [key for key in spec if key in signature.parameters and key not in bound]:
        text = f"{both[0]}: is both a parameter of {name} and an option of the run"
        raise BadInput(text, f"hint: functools.partial({name}, {both[0]}=...) gives it to the function")
    try:
        signature.bind(*args, **more)
    except TypeError as error:
        near = [close for key in more for close in difflib.get_close_matches(key, options, n=1)]
        hint = f"did you mean {near[0]}=...?" if near else f"options of the run are {', '.join(sorted(options))}"
        raise BadInput(f"{name}: {error}", f"hint: {hint}") from error
    return Call(function, args, more, spec)


@contextmanager
def as_job(call: Call, project: Path) -> Iterator[tuple[dict[str, Any], dict[str, Path]]]:
    """Yield (the spec of a run that makes the call, {name: file} for the files to add to the project's code).

    The files are deleted on exit. Raise BadInput if the call cannot be pickled.
    """
    import tempfile  # late: of no use to who asks for a result

    module, name = _module_of(call.function, project), _short(call.function)
    data, by_cloudpickle = _pickled(call, module, project)
    how = f"imported from {module}" if module else "the function is pickled by cloudpickle"
    how += "; its arguments are pickled by cloudpickle" if module and by_cloudpickle else ""
    news.say(f"{name}: {how}")
    outputs = dict(call.spec.get("run") or {}).get("outputs")
    run = {**dict(call.spec.get("run") or {}), "script": SCRIPT}
    if outputs:
        run["outputs"] = [*outputs, f"{call_there.RESULTS}/"]
    spec = {"name": _job_name(name), "description": f"{_shown(call, name)}, {how}", **call.spec, "run": run}
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        script, arguments = Path(folder, SCRIPT), Path(folder, call_there.ARGUMENTS)
        script.write_text(_script(call.function, module, _folders(project)), encoding="utf-8")
        arguments.write_bytes(data)
        yield spec, {SCRIPT: script, call_there.ARGUMENTS: arguments, **(_cloudpickle() if by_cloudpickle else {})}


def is_call(run: RunDir, attempt: int) -> bool:
    """Return whether the attempt calls a Python function: its script is the one that calls it."""
    return read_plan(run, attempt).entry.target == SCRIPT


def result_of(run: RunDir, status: RunStatus, *, unpickle: bool) -> Any:
    """Return what rank 0 of an ended run, whose status is `status`, returned; if the run did not succeed, raise the
    exception that a rank raised first. Both come from files on this machine.

    Raise RunFailed instead if that exception cannot be rebuilt here, if the run did not succeed and no rank left one,
    or if it succeeded but rank 0 left no result. A pickled value or exception is loaded only with `unpickle`, because
    that may run code of anyone who could write the file. Without it, raise Refused for a pickled value, and RunFailed
    with its text for an exception that is no built-in one with plain arguments.
    """
    found = [*_results(run, status)]
    if status.state is not State.SUCCEEDED:
        raise _error(run, status, [one for _, one in found if one.get("kind") == "error"], unpickle=unpickle)
    values = [one for rank, one in found if rank == 0 and one.get("kind") in ("value", "pickle")]
    if not values:
        raise RunFailed(f"{run.id} has succeeded, and rank 0 has left no result", f"hint: launch logs {run.id}")
    value = max(values, key=_order_of)
    if value["kind"] == "value":
        return value.get("value")
    if not unpickle:
        text = f"{run.id} has returned a {value.get('what')}, which is pickled: loading it may run code"
        hint = "hint: result(unpickle=True) where nobody else can write to where it ran; or return numbers and text"
        raise Refused(text, hint)
    return pickle.loads(value["value"])  # noqa: S301 # nosec - the user has said so


class _Plain(pickle.Unpickler):
    """An unpickler for numbers, text, lists, sets and dicts. It raises UnpicklingError for any class or function in the
    pickle, and so runs no code of whoever wrote it.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Raise UnpicklingError, because plain data contains no names to look up."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no data")


def _results(run: RunDir, status: RunStatus) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (rank, result) for each result file of the newest attempt; raise RunFailed for one that is damaged or has
    more than 256 MiB.

    A result is the dict that call_there.write() wrote: a value, or the facts about an exception.
    """
    for path in sorted(run.outputs.rglob(f"{call_there.RESULTS}/rank-*.pkl")):
        number = path.stem.removeprefix("rank-")
        if not number.isdigit() or path.is_symlink():
            continue
        if path.stat().st_size > _MOST_BYTES:
            hint = "hint: have it write files: `launch fetch --outputs` brings them"
            raise RunFailed(f"{path}: is larger than {_MOST_BYTES >> 20} MiB", hint)
        try:
            found = _Plain(io.BytesIO(path.read_bytes())).load()
        except Exception as error:
            raise RunFailed(f"{path}: is no result: {error}", f"hint: launch logs {run.id}") from error
        if isinstance(found, dict) and found.get("attempt") == status.attempt:
            yield int(number), found


def _order_of(found: Mapping[str, Any]) -> tuple[int, float]:
    """Return a sort key of a result: (generation, minus its time), so that the maximum is the earliest result of the
    last generation (start of all ranks).
    """
    generation, at = found.get("generation"), found.get("at")
    return (generation if isinstance(generation, int) else 0), (-at if isinstance(at, float) else 0.0)


def _error(run: RunDir, status: RunStatus, errors: Sequence[dict[str, Any]], *, unpickle: bool) -> Exception:
    """Return the exception that a rank of the last generation (start of all ranks) raised first, with its traceback as
    a note.

    `errors` are the results of ranks that raised one, as _results() yields them. If the exception cannot be rebuilt,
    return a RunFailed with its text; if no rank left one, a RunFailed with the run's last failure. With `unpickle` a
    pickled exception is loaded.
    """
    hint = f"hint: launch logs {run.id}"
    failed = RunFailed(f"{run.id} is {status.state}: {status.last_word}", hint)
    failed.exit_code = Exit(exit_code_of(status))
    last = [one for one in errors if _order_of(one)[0] >= status.generation]
    if not last:
        return failed
    first = max(last, key=_order_of)
    told = RunFailed(f"{run.id} has raised {first.get('what')}: {first.get('text')}", hint)
    told.exit_code = failed.exit_code
    error = _rebuilt(first, unpickle=unpickle) or told
    error.add_note(f"In {run.id}:\n{first.get('traceback')}")
    error.__cause__ = failed if error is not told else None
    return error


def _rebuilt(raised: Mapping[str, Any], *, unpickle: bool) -> Exception | None:
    """Return the exception that a rank has recorded in `raised`: loaded from its pickle (`value`) if there is one and
    `unpickle` allows it, else made anew if its class (`what`) is a built-in one and its arguments (`args`) are plain
    values. Return None if neither is possible.
    """
    module, _, name = str(raised.get("what")).partition(".")
    kind, args = getattr(builtins, name, None) if module == "builtins" else None, raised.get("args")
    try:
        if unpickle and raised.get("value"):
            made = pickle.loads(raised["value"])  # noqa: S301 # nosec - the user has said so
        elif isinstance(kind, type) and issubclass(kind, Exception) and isinstance(args, tuple):
            made = kind(*args)
        else:
            return None
    except Exception:  # noqa: BLE001 - whatever a class of the user's does when it is made from what it holds
        return None
    return made if isinstance(made, Exception) else None


# -- what is frozen


def _module_of(function: Callable[..., Any], project: Path) -> str:
    """Return the name of the module from which ranks can import the function, or "" if they cannot.

    Functions of the main program, of another function, or of a file outside the project cannot be imported.
    """
    name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(name)
    found: Any = module
    for part in _name_of(function).split("."):
        found = getattr(found, part, None)
    importable = found is function and name != "__main__" and not _is_loose(module, project)
    return name if importable else ""


def _is_loose(module: types.ModuleType | None, project: Path) -> bool:
    """Return whether a module is neither built in, nor installed, nor in the project, so that ranks could not import
    it.

    For None, an unknown module, return True.
    """
    file = getattr(module, "__file__", None)
    if file is None:
        return module is None
    paths = sysconfig.get_paths()
    homes = [project, *(Path(paths[key]) for key in ("purelib", "platlib", "stdlib"))]
    return not any(Path(file).resolve().is_relative_to(home.resolve()) for home in homes)


def _folders(project: Path) -> list[str]:
    """Return the folders of the project that are on this program's import path, relative to the project."""
    home = project.resolve()
    found = [Path(one).resolve() for one in sys.path if "site-packages" not in one]
    return [one.relative_to(home).as_posix() for one in dict.fromkeys(found) if one.is_relative_to(home)]


def _pickled(call: Call, module: str, project: Path) -> tuple[bytes, bool]:
    """Return (the pickled arguments, whether ranks need cloudpickle to load them).

    `module` is where ranks import the function from; if it is "", they cannot, and the function is pickled with its
    arguments. Raise BadInput if pickling fails.
    """
    name, home = _short(call.function), sys.modules.get(call.function.__module__)
    try:
        import cloudpickle  # late: a dependency of submitit's, which few calls need
    except ImportError as error:
        cloudpickle = None
        if not module:
            hint = "hint: python -m pip install cloudpickle; or put it into a module of the project"
            raise BadInput(f"{name}: cannot be imported by ranks, and needs cloudpickle", hint) from error
    whole = not module and home is not None and home.__name__ != "__main__" and _is_loose(home, project)
    try:
        if whole:
            cloudpickle.register_pickle_by_value(home)
        data = (cloudpickle or pickle).dumps(
            (None if module else call.function, call.args, dict(call.more)), protocol=4
        )
    except Exception as error:
        hint = "hint: give it paths and numbers, and have it open files and build models itself"
        raise BadInput(f"{name}: it or its arguments cannot be pickled: {error}", hint) from error
    finally:
        if whole:
            cloudpickle.unregister_pickle_by_value(home)
    return data, b"cloudpickle" in data


def _cloudpickle() -> dict[str, Path]:
    """Return {name in the code: file} for the files of cloudpickle.

    They are added to the code because hosts may lack it, or have another version.
    """
    import cloudpickle  # late: see above

    files = sorted(Path(cloudpickle.__file__).parent.glob("*.py"))
    return {f"{call_there.MODULES}/cloudpickle/{file.name}": file for file in files}


def _script(function: Callable[..., Any], module: str, folders: Sequence[str]) -> str:
    """Return the script that ranks run to call the function.

    It imports the function from `module` ("": the function was pickled), with `folders` of the code on its import path.
    It contains further imports that are never run; they show what the function needs, so that torch is preloaded.
    """
    there = Path(call_there.__file__).read_text(encoding="utf-8")
    used = getattr(inspect.unwrap(function), "__globals__", {}).values()
    names = {one.__name__ if isinstance(one, types.ModuleType) else getattr(one, "__module__", None) for one in used}
    tops = {one.partition(".")[0] for one in names if isinstance(one, str)} - sys.stdlib_module_names
    wanted = sorted({*tops, *([module] if module else [])} - {"__main__", "launcher"})
    imports = "".join(f"    import {one}\n" for one in wanted if one.replace(".", "_").isidentifier())
    call = f"main({module!r}, {_name_of(function)!r}, {folders!r}, {sys.version_info[:2]!r})"
    return f"{there}\n\ndef what_it_needs():\n{imports or '    pass' + chr(10)}\n\n{call}\n"


def _short(function: Callable[..., Any]) -> str:
    """Return the function's name without the module and the function that it is defined in."""
    return _name_of(function).rpartition("<locals>.")[2]


def _name_of(function: Callable[..., Any]) -> str:
    """Return the function's qualified name, or that of its class if it is a callable object."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _job_name(name: str) -> str:
    """Return a valid job name made from the function's name: its last part in lower case, with a dash for every other
    sign than letters and digits; `function` if nothing is left.
    """
    plain = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name.rpartition(".")[2].lower())
    return plain.strip("-")[:63] or "function"


def _shown(call: Call, name: str) -> str:
    """Return the call as text, such as `train(lr=0.1, data=…)`, with `name` as the function's name; an argument that is
    no number is shown as `…`, because text may be a secret.
    """
    texts = [repr(one) if type(one) in _SHOWN else "…" for one in call.args]
    texts += [f"{key}={one!r}" if type(one) in _SHOWN else f"{key}=…" for key, one in call.more.items()]
    return f"{name}({', '.join(texts)})"
