"""paramiko without `invoke`, which would be half of its import: to be imported before paramiko.

It takes that along for `Match exec` in its own reader of configurations, which is not used here. Who else in this
process uses that reader finds it as ever.
"""

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def _run(*args: Any, **kwargs: Any) -> Any:
    return import_module("invoke").run(*args, **kwargs)


if "invoke" not in sys.modules:
    modules: dict[str, Any] = sys.modules  # None there: an import of it fails, as paramiko has to expect
    modules["invoke"] = None
    try:
        _config: Any = import_module("paramiko.config")
    finally:
        del modules["invoke"]
    _config.invoke = SimpleNamespace(run=_run)
