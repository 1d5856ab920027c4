import os
import sys

from . import inner
from .inner.deep import DEPTH

print(sys.argv, sys.path[0], os.getcwd(), inner.__name__, DEPTH)
print(__name__, __file__, __package__, __spec__.name, type(__loader__).__name__, getattr(sys, "orig_argv", [])[1:])
print(sorted(name for name in globals() if name.startswith("__")))
