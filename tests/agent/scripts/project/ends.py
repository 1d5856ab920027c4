"""What still happens after the last line."""

import atexit
import threading
import time
import weakref


class Held:
    pass


def late():
    time.sleep(0.05)
    print("thread done", __name__, threading.main_thread().is_alive())


held = Held()
weakref.finalize(held, print, "finalized")
atexit.register(print, "first registered")
atexit.register(lambda: print("last registered", __name__))
threading.Thread(target=late).start()
print("last line", threading.current_thread() is threading.main_thread(), threading.active_count())
