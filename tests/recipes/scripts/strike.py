"""Imported before a recipe: one of its ranks is killed after twelve steps of the optimizer, once a checkpoint is there.

It is the rank itself that does it: nobody has to be quick enough to hit it on the way.
"""

import os
import signal
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

steps = 0


def strike(*_):
    global steps
    steps += 1
    struck = Path(os.environ["STRUCK"])
    if steps == 12 and os.environ["RANK"] == "1" and not struck.exists():
        folder = Path(os.environ["LAUNCH_CHECKPOINT_DIR"])
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not any(folder.glob("[!.d]*")):
            time.sleep(0.02)
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(strike)
