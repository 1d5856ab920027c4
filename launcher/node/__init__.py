"""The processes that run on each node."""

from pathlib import Path

ZYGOTE = Path(__file__).with_name("zygote.py")  # run by path, under the interpreter of the run
