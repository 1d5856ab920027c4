"""Holds a file open whose name looks like a device of a GPU."""

import os

FD = os.open("/dev/null", os.O_RDONLY)
