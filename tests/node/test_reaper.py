"""Test what an agent learns about its children from the kernel."""

import asyncio
import os
import signal

from launcher.node.ranks.reaper import Reaper


def test_a_child_that_a_signal_stops_is_told_of_at_once_and_its_end_later():
    child = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})

    async def told():
        stopped, reaper = asyncio.Event(), Reaper(asyncio.get_running_loop())
        reaper.on_stop, end = stopped.set, asyncio.get_running_loop().create_future()
        reaper.watch(child, end.set_result)
        os.kill(child, signal.SIGSTOP)
        await asyncio.wait_for(stopped.wait(), 150.0)
        assert not end.done()
        os.kill(child, signal.SIGKILL)
        return await asyncio.wait_for(end, 150.0)

    assert asyncio.run(told()).signal == signal.SIGKILL
