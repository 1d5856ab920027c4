"""A process in reserve, with `recovery: {reserve: 1}`: begun as a rank is, it waits to hear which one it is."""

import os
import sys

from trainer.recovery.control import Control, take_place
from trainer.wire import Launched, Wire

_LONGEST_S = 2e6  # what a poll can wait, 23 days


def become_a_rank(launched: Launched) -> None:
    """Wait for launch's word, and be that rank from then on: in its variables, and in its log."""
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
