"""Leaves words in the buffers of Python and of C."""

import ctypes

print("said at import")
ctypes.CDLL(None).printf(b"said by C\n")
