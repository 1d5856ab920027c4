"""Describe how a model is loaded and computes answers: a service of an included task, or of a user's module."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import BadSettings, TrainerError

Schema = Mapping[str, Any]  # a JSON Schema


class Rejected(TrainerError):
    """Raised by `predict` for an input that fits the schema but cannot be answered.

    `field` is the wrong field of the input, `why` the reason for the client.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.why = field, why


@dataclass(frozen=True, slots=True)
class Service:
    """A model's functions for serving: to load it, and to answer inputs with it.

    `load` gets the folder of a checkpoint and returns the model; `predict` gets the model and inputs that fit the JSON
    schema `input`, and returns an answer for each, in order, which fits `output`. `example` is an input that is
    computed once before the first request, which then need not wait.
    """

    load: Callable[[Path], Any]
    predict: Callable[[Any, list[Any]], Sequence[Any]]
    input: Schema = field(default_factory=dict)
    output: Schema = field(default_factory=dict)
    example: Any = None


def find_service(app: str, args: Sequence[str]) -> Service:
    """Import the module in `app` and return its service; `app` is `module`, `module:name` or `file.py[:name]`.

    The named function, by default `service`, is called with `args`, the arguments of the training. If the module has no
    `service`, the Service is made of its `load`, `predict`, `INPUT`, `OUTPUT` and `EXAMPLE`. Raises BadSettings if
    there is none.
    """
    place, _, name = app.partition(":")
    module = _imported(place)
    make = getattr(module, name or "service", None)
    if name and make is None:
        raise BadSettings(f"{app}: {place} has no {name!r}")
    if make is not None:
        found = make(list(args))
        if not isinstance(found, Service):
            raise BadSettings(f"{app}: expected a trainer.serving.Service, got {type(found).__name__}")
        return found
    lacks = [one for one in ("load", "predict") if not callable(getattr(module, one, None))]
    if lacks:
        raise BadSettings(
            f"{app}: expected `load(checkpoint)` and `predict(model, inputs)`, or `service(args)`; "
            f"it has no {' and no '.join(lacks)}"
        )
    asked, answered = getattr(module, "INPUT", {}), getattr(module, "OUTPUT", {})
    return Service(module.load, module.predict, asked, answered, getattr(module, "EXAMPLE", None))


def _imported(place: str) -> ModuleType:
    """Return the module that `place` names, by module name or file path. Raises BadSettings for a missing file."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadSettings(f"expected a Python file at {path}, found none")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as after an import: dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module
