"""Replace `invoke`, which takes half of paramiko's import time, by a stub; this must be imported before paramiko.

paramiko needs `invoke` for `Match exec` in its own reader of SSH configurations, which the launcher does not use. Other
users of that reader in this process get the real `invoke`.
"""

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def _run(*args: Any, **kwargs: Any) -> Any:
    """Import the real `invoke` and call its `run`."""
    return import_module("invoke").run(*args, **kwargs)


if "invoke" not in sys.modules:
    modules: dict[str, Any] = sys.modules  # None there: an import of it fails, as paramiko has to expect
    modules["invoke"] = None
    try:
        _config: Any = import_module("paramiko.config")
    finally:
        del modules["invoke"]
    _config.invoke = SimpleNamespace(run=_run)
