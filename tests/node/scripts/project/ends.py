"""A script whose work goes on after its last line."""

import atexit
import threading
import weakref


class Held:
    pass


def late():
    threading.main_thread().join()  # which is over then, and the program is not
    print("thread done", __name__, threading.main_thread().is_alive())


held = Held()
weakref.finalize(held, print, "finalized")
atexit.register(print, "first registered")
atexit.register(lambda: print("last registered", __name__))
threading.Thread(target=late).start()
print("last line", threading.current_thread() is threading.main_thread(), threading.active_count())
