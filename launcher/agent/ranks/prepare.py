"""Getting a node ready for ranks: the user's setup, then the zygote and its imports."""

import asyncio

from launcher.agent.ranks.group import Home
from launcher.agent.ranks.reaper import Death, Reaper
from launcher.agent.ranks.start import OrdinaryStarter, Starter, ZygoteStarter
from launcher.agent.ranks.zygote_link import ZygoteLink, spawn
from launcher.errors import LaunchError
from launcher.rundir.durable import make_dir


class SetupFailed(LaunchError):
    """The user's `run.setup` did not end well on this node."""

    def __init__(self, text: str, log: str) -> None:
        super().__init__(text)
        self.log = log


class Preparation:
    """`run` once; `wait` until ranks can start; `renew` where the zygote has gone since."""

    def __init__(self, home: Home, reaper: Reaper) -> None:
        self._home = home
        self._reaper = reaper
        self._ordinary = OrdinaryStarter(home.plan.entry, home.environment, home.workdir, home.run.code, reaper)
        self._zygote: ZygoteLink | None = None
        self._usable = home.plan.entry.kind != "command"
        self._settled = asyncio.Event()
        self.failure: SetupFailed | None = None

    @property
    def done(self) -> bool:
        """Setup is through and ranks can be forked at once."""
        return self._settled.is_set()

    @property
    def starter(self) -> Starter:
        return self._ordinary if self._zygote is None else ZygoteStarter(self._zygote, self._ordinary)

    @property
    def own_pids(self) -> tuple[int, ...]:
        """What must outlive a generation."""
        return () if self._zygote is None else (self._zygote.pid,)

    async def run(self) -> None:
        if self._home.plan.setup is not None:
            await self._set_up(self._home.plan.setup)
        await self._raise_zygote()

    async def wait(self) -> None:
        await self._settled.wait()

    async def renew(self) -> None:
        """A new zygote in place of one that was killed."""
        if self._zygote is not None and self._zygote.gone.is_set():
            self._settled.clear()
            await self._raise_zygote()

    async def settle(self) -> None:
        """Return once no start is under way any more."""
        if self._zygote is not None:
            await self._zygote.settle()

    async def close(self) -> None:
        if self._zygote is not None:
            await self._zygote.close()

    async def _set_up(self, text: str) -> None:
        log = self._home.run.setup_log(self._home.attempt.number, self._home.node.index)
        make_dir(log.parent)
        ended: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        pid = spawn(["/bin/sh", "-c", text], self._home.environment, self._home.workdir, log)
        self._reaper.watch(pid, ended.set_result)
        death = await ended
        if death.status != 0:
            how = f"exit code {death.code}" if death.signal is None else f"signal {death.signal}"
            relative = str(log.relative_to(self._home.run.path))
            self.failure = SetupFailed(f"run.setup failed on node {self._home.node.index} with {how}", relative)
            raise self.failure

    async def _raise_zygote(self) -> None:
        """Start it and wait for its imports; one that dies while importing is not tried again."""
        entry = self._home.plan.entry
        if self._usable:
            zygote = ZygoteLink(self._reaper)
            log = self._home.attempt.zygote_log(self._home.node.index)
            await zygote.start(entry.python, self._home.environment, self._home.workdir, entry.preload, log)
            await _first(zygote.ready, zygote.gone)
            self._usable = zygote.ready.is_set()
            self._zygote = zygote if self._usable else None
        self._settled.set()


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
