"""Check a node's devices: one process for each, ended at a time limit. It is forked from the zygote, a process that has
imported torch already. A device is named `cpu` or `cuda:0` and so on.
"""

import asyncio
import signal
from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from launcher.clock import WakingClock
from launcher.coordinator.closing import CLOSE_S
from launcher.errors import LaunchError, said_by_the_system
from launcher.health.evidence import DEVICE_CHECK, DeviceHealth, Ending, Fitness, devices_of, judge
from launcher.node.ranks.group import Home
from launcher.node.ranks.reaper import Death, Reaper
from launcher.node.ranks.start import OrdinaryStarter, Starter, ZygoteStarter
from launcher.node.ranks.zygote_link import ZygoteLink
from launcher.run.identity import process_id
from launcher.run.processes import signal_process

AT_START_S = 60.0  # for what takes less than one, and perhaps the import of torch
AFTER_FAILURE_S = CLOSE_S / 2  # a node that has not ended its ranks within CLOSE_S is given up
_LOOK_S = 1.0
_LAST_S = 1.0  # a process in the hands of a driver that hangs cannot be killed, and is not waited for
_MOST_NAMED, _MOST_BYTES = 4, 1 << 20


class NodeUnfit(LaunchError):
    """Raised when a device of this node has failed its check."""


class Checkup:
    """The device checks of one node: each runs a small program of the launcher's on one GPU, or on the CPU. `look` runs
    them and returns the health of each device.
    """

    def __init__(self, home: Home, reaper: Reaper, program: Path = DEVICE_CHECK) -> None:
        """Prepare to check devices with `program`, which checks one device."""
        self._home, self._program = home, program
        self._reaper = reaper
        self._gpus = len(home.node.gpus) if home.node.gpus is not None else home.plan.gpus_per_node

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the node's devices."""
        return devices_of(self._gpus)

    def devices_of_ranks(self, local_ranks: Collection[int]) -> tuple[str, ...]:
        """Return the devices on which the ranks with the numbers `local_ranks` on this node compute: on the GPUs in
        turn, or on the CPU if the node has none.
        """
        if not self._gpus:
            return self.devices if local_ranks else ()
        return tuple(sorted({f"cuda:{local % self._gpus}" for local in local_ranks}))

    async def look(self, zygote: ZygoteLink | None, devices: Collection[str], bound_s: float) -> list[DeviceHealth]:
        """Check all the devices concurrently, each for at most `bound_s` seconds, and return their health; raise
        NodeUnfit if one fails.

        A device fails if its check finds a wrong result, or if the check has begun and then crashes or exceeds the
        limit. If the check gives no result for another reason, the device's health is unknown. The checks are forked
        from the zygote; None means that each starts a new interpreter.
        """
        found = await asyncio.gather(*(self._look(zygote, device, bound_s) for device in devices))
        unfit = [one.text for one in found if one.fitness is Fitness.UNFIT]
        if unfit:
            more = f"; and {len(unfit) - _MOST_NAMED} more" if len(unfit) > _MOST_NAMED else ""
            raise NodeUnfit("; ".join(unfit[:_MOST_NAMED]) + more)
        return list(found)

    async def _look(self, zygote: ZygoteLink | None, device: str, bound_s: float) -> DeviceHealth:
        """Check one device for at most `bound_s` seconds and return its health, which is unknown if the check could not
        be started; `zygote` is None if there is none to fork from.
        """
        log = self._home.attempt.health_log(self._home.node.index, device)
        ended: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        try:
            before = log.stat().st_size if log.exists() else 0
            start = self._starter(zygote, device).start({}, log, str(log.with_suffix(".progress")), ended.set_result)
            pid = await _pid_of(asyncio.ensure_future(start), bound_s)
            ending = await self._ending(pid, ended, bound_s)
            said = _lines(log, before)
        except TimeoutError:
            return DeviceHealth(device, Fitness.UNKNOWN, f"{device}: its check was not started within {bound_s:g} s")
        except OSError as error:
            text = f"{device}: its check could not be started: {said_by_the_system(error)}"
            return DeviceHealth(device, Fitness.UNKNOWN, text)
        return judge(device, said, ending)

    def _starter(self, zygote: ZygoteLink | None, device: str) -> Starter:
        """Return the starter of the process that checks `device`: it forks the zygote, or starts a new interpreter if
        `zygote` is None or refuses.
        """
        home = self._home
        entry = replace(home.plan.entry, kind="script", target=str(self._program), args=(device,))
        ordinary = OrdinaryStarter(entry, home.environment, home.workdir, home.run.code, self._reaper)
        return ordinary if zygote is None else ZygoteStarter(zygote, ordinary)

    async def _ending(self, pid: int, ended: "asyncio.Future[Death]", bound_s: float) -> Ending:
        """Return how the check's process ended, or that it did not end within `bound_s`. Kill it at that limit, or if
        this call is cancelled.
        """
        process, clock = process_id(pid), WakingClock()  # who stood still together with us is not slow
        until = clock.now() + bound_s
        try:
            while not ended.done() and (left_s := until - clock.now()) > 0:
                await asyncio.wait([ended], timeout=min(left_s, _LOOK_S))
        finally:
            if not ended.done() and process is not None:
                signal_process(process, signal.SIGKILL)
        if ended.done():
            death = ended.result()
            return Ending(death.code, death.signal)
        await asyncio.wait([ended], timeout=_LAST_S)
        return Ending(after_s=bound_s)


async def _pid_of(start: "asyncio.Future[int]", bound_s: float) -> int:
    """Return the pid of a check that is being started; raise TimeoutError if that takes longer than `bound_s`.

    In that case, and if this call is cancelled, the check is killed as soon as it runs.
    """
    try:
        return await asyncio.wait_for(asyncio.shield(start), bound_s)
    except (TimeoutError, asyncio.CancelledError):
        start.add_done_callback(_kill_started)
        raise


def _kill_started(start: "asyncio.Future[int]") -> None:
    """Kill a check that has started only after the time for it was over; `start` has its pid, or why it failed."""
    if not start.cancelled() and start.exception() is None and (process := process_id(start.result())) is not None:
        signal_process(process, signal.SIGKILL)


def _lines(log: Path, begin: int) -> list[bytes]:
    """Return the lines of a log file from byte `begin` on."""
    with log.open("rb") as file:
        file.seek(begin)
        return file.read(_MOST_BYTES).splitlines()
