"""Everything that a script can see of how it was started."""

import os
import sys

main = sys.modules["__main__"]
print(sys.argv, sys.path, os.getcwd(), sys.stdin.read() == "", sys.flags)
print(sorted(name for name in globals() if name.startswith("__")))
print(__name__, __file__, __spec__, __package__, __doc__, main is not None and main.__dict__ is globals())
print(type(__loader__).__name__, type(__builtins__).__name__, __loader__.get_filename("__main__"))
print(getattr(sys, "orig_argv", [])[1:], sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding)
print(os.environ["OF_THE_RANK"], "OF_THE_NODE" in os.environ, sorted(name for name in os.environ if "BLAS" in name))
