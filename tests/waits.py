"""Wait for what another process, thread or task does, with a limit against hanging and a name for what never comes."""

import asyncio
import os
import time

# Of every wait, against hanging; a shorter one where it is known that what is waited for never comes.
BOUND_S = float(os.environ.get("LAUNCH_TEST_BOUND_S", "150"))


def until(what, condition, timeout_s=BOUND_S):
    """Return what the condition returns once that is true."""
    deadline = time.monotonic() + timeout_s
    began = time.monotonic()
    while not (answer := condition()):
        now = time.monotonic()
        assert now < deadline, f"never came: {what}"
        time.sleep(max(0.01, now - began))  # what is dear to ask takes no more than half of a core
        began = time.monotonic()
    return answer


async def eventually(condition, what="what is waited for", timeout_s=BOUND_S):
    """Return once the condition is true, while other tasks go on."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.01)
