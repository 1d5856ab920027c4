"""A program whose open files and live threads must be closed and written at every kind of good end."""

import atexit
import io
import json
import os
import sys
import threading
import time
import weakref

how, told = sys.argv[1], "global"


class Told(io.StringIO):
    """A stream of the program's own."""

    def flush(self):
        if how == "broken stream" and self.getvalue():
            raise ValueError("it cannot be flushed")
        print("flushed", told, file=sys.__stdout__)


class Freed:
    def __init__(self, name):
        self.name, self.itself = name, self

    def __del__(self):
        print("freed", self.name, told, os is not None, how)


class Kept:
    def __del__(self):
        print("freed one that is kept", told)


def closed_at_the_end():
    try:
        yield
    finally:
        print("closed", told)


_first, second = Freed("_first"), Freed("second")
_alone = Kept()
generator = closed_at_the_end()
next(generator)
weakref.finalize(second, print, "finalized")
atexit.register(print, "atexit", told)
left = open("left.txt", "w")  # noqa: SIM115 - on purpose
left.write("written\n")
json.left = open("left-elsewhere.txt", "w")  # noqa: SIM115 - on purpose
json.left.write("written\n")
atexit.register(lambda: print([os.path.getsize(name) for name in ("left.txt", "left-elsewhere.txt")]))
if how == "daemon":
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
if how == "forks" and os.fork() == 0:
    sys.exit(3)
if how == "forks":
    print(os.waitstatus_to_exitcode(os.wait()[1]))
threading.Thread(target=lambda: (threading.main_thread().join(), print("waited for"))).start()
if "stream" in how:
    sys.stdout = Told("something")
if how == "raises":
    raise ValueError("on purpose")
if how in ("4", "-1", "None", "words", "huge", "True"):
    sys.exit({"4": 4, "-1": -1, "None": None, "words": "words", "huge": 1 << 70, "True": True}[how])
