"""Ranks that die at any call of a function in code of `trainer`, most of all while they meet others.

After how many calls is drawn for each generation. In one of five a drawn rank dies when all have trained again; in the
next four all new ranks, and in one of them one more that lives. So there is always one that has the state.
"""

import os
import random
import signal
import sys
from pathlib import Path

import trainer

OURS = str(Path(trainer.__file__).parent)
MOST, STEPS = 5_000, (5_000, 10_000)  # calls: while they meet, and in the first steps; in some steps


class Mortal:
    def __init__(self, seed, generations):
        self._seed, self._generations = seed, generations
        self._generation, self._left = "", None

    def begin(self):
        self._draw(new=os.environ.get("LAUNCH_JOINS") == "1")
        sys.setprofile(self._called)

    def _draw(self, *, new):
        self._generation = os.environ["LAUNCH_GENERATION"]
        number = int(self._generation)
        draw = random.Random(f"{self._seed} {number}")
        chosen = draw.randrange(int(os.environ["WORLD_SIZE"])) == int(os.environ["RANK"])
        later = number % 5 == 4
        dies = chosen if later else new or (chosen and number % 5 == 1)
        calls = draw.randint(*STEPS) if later else int(MOST ** draw.random())
        self._left = calls if dies and 1 < number < self._generations else None

    def _called(self, frame, event, _):
        if os.environ["LAUNCH_GENERATION"] != self._generation:
            self._draw(new=False)
        code = frame.f_code
        ours = code.co_filename.startswith(OURS) and not code.co_name.startswith("<")
        if self._left is None or not ours or not event.endswith("call"):
            return
        self._left -= 1
        if self._left <= 0:
            print(f"dies in {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
