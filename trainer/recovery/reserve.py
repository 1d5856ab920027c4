"""Keep a process in reserve (`recovery: {reserve: 1}`) that is started like a rank and waits to become one."""

import os
import sys

from trainer.recovery.control import Control, take_place
from trainer.wire import Launched, Wire

_LONGEST_S = 2e6  # what a poll can wait, 23 days


def become_a_rank(launched: Launched) -> None:
    """Wait for launch's message and become that rank, with its variables and its log."""
    if launched.reserve is None:
        return
    control, wire = Control(launched.reserve.with_suffix(".control")), Wire(launched.reserve)
    wire.report(waits=True)
    word = control.wait(_LONGEST_S)
    if word is None:
        sys.exit(f"no word came in {_LONGEST_S:.0f} s of which rank this is, or none that makes sense")
    wire.close()
    control.close()
    take_place(word)
    os.environ.pop("LAUNCH_RESERVE", None)
