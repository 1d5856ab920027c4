"""Prepare a node for ranks: run the user's setup, start the zygote (a process that imports torch once and forks ranks),
then check the node's devices. Its standby is a fork of it with all imports done, which replaces it when it dies.
Processes in reserve have started the user's program and wait to become ranks.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from launcher.errors import LaunchError, said_by_the_system
from launcher.health.evidence import DEVICE_CHECK, DeviceHealth
from launcher.node.machine import note_environment
from launcher.node.ranks.checkup import AFTER_FAILURE_S, AT_START_S, Checkup, NodeUnfit
from launcher.node.ranks.group import Home
from launcher.node.ranks.ports import HeldPort
from launcher.node.ranks.reaper import Death, Reaper
from launcher.node.ranks.reports.logfile import LAST_S, LogFile
from launcher.node.ranks.reserve import FromReserve, Note, Reserve
from launcher.node.ranks.start import OrdinaryStarter, Starter, ZygoteStarter
from launcher.node.ranks.zygote_link import Order, ZygoteLink, spawn
from launcher.run.durable import make_dir
from launcher.run.patience import AGAIN_S, DISK_ERRORS, say
from launcher.run.processes import users_limits
from launcher.wire.messages import Start

T = TypeVar("T")
_TAKE_OVER_S = 10.0  # for what takes milliseconds
_DEATH_S = 5.0
_REST_S = 60.0
_PORT_S = 0.2  # how often a port is tried that another program has
_NAMED = 2
_MOST_LETTERS = 100


class SetupFailed(LaunchError):
    """Raised when the user's `run.setup` fails on this node, or when the user's interpreter cannot run ranks.

    `log` is the path of the setup's log relative to the run's folder; it is "" if the interpreter is the reason.
    """

    def __init__(self, text: str, log: str) -> None:
        super().__init__(text)
        self.log = log


class PortTaken(LaunchError):
    """Raised when another program holds a port that a rank of this node has to listen on."""


class Preparation:
    """The preparation of a node: call `run` once, `wait` until ranks can start, and `renew` if the zygote has died
    since.

    With `recovery.health` ranks can start only once the node's devices have passed their check, or the check itself
    proved impossible.
    """

    def __init__(
        self, home: Home, reaper: Reaper, note: Note = lambda _, text: say(text),
        on_import: Callable[[], None] = lambda: None, *,
        device_check: Path = DEVICE_CHECK, take_over_s: float = _TAKE_OVER_S,
    ) -> None:  # fmt: skip
        """Prepare to start ranks.

        `note` receives messages about reserve processes; `on_import` is called when imports begin, which take
        seconds; a standby has `take_over_s` to become ready.
        """
        self._home = home
        self._reaper = reaper
        self.reserve = Reserve(home, note)
        self._on_import = on_import
        plan = home.plan
        self._ordinary = OrdinaryStarter(plan.entry, home.environment, home.workdir, home.run.code, reaper, plan.umask)
        self._zygote: ZygoteLink | None = None
        self._imports: ZygoteLink | None = None  # one that is at it
        self._offered, self._take_over_s = home.offered, take_over_s
        self._usable = home.plan.entry.kind != "command"
        self._noting: threading.Thread | None = None
        self._settled = asyncio.Event()
        self._renewal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._renewal.set_result("")
        self._checkup = Checkup(home, reaper, device_check) if home.plan.spec.recovery.health else None
        self._ports: list[HeldPort] = []  # of ranks of one of several programs
        self.health: list[DeviceHealth] = []  # as last looked at
        self.failure: SetupFailed | NodeUnfit | PortTaken | None = None
        self.doing = ""  # for people; "" once ranks can be started

    @property
    def done(self) -> bool:
        """Return whether the node is prepared, so that ranks can start at once; False also while its devices are
        checked again after a failure.
        """
        return self._settled.is_set()

    @property
    def starter(self) -> Starter:
        """Return what starts a rank: a reserve process if one is ready, else the zygote or, if there is none, a new
        interpreter.
        """
        return FromReserve(self.reserve, self._fresh_starter)

    @property
    def _fresh_starter(self) -> Starter:
        """Return the starter that makes a new process for each rank: by the zygote, or as a new interpreter without
        one.
        """
        return self._ordinary if self._zygote is None else ZygoteStarter(self._zygote, self._ordinary, self._renewed)

    @property
    def own_pids(self) -> tuple[int, ...]:
        """Return the pids of the zygote and its standby, which must outlive a generation."""
        standby = self._zygote.standby if self._zygote is not None else None
        return tuple(pid for link in (self._imports, self._zygote, standby) if (pid := _pid_of(link)))

    @property
    def standby_pid(self) -> int:
        """Return the pid of the zygote's standby, or 0 if there is none."""
        return _pid_of(self._zygote.standby) if self._zygote is not None else 0

    async def run(self) -> None:
        """Prepare the node; `wait` returns once this is done. Raise SetupFailed, PortTaken or NodeUnfit, which
        `failure` then holds, if the node cannot be prepared.
        """
        if not self._home.plan.one_machine:  # else the supervisor holds them
            await self._hold_ports()
        if self._home.plan.setup is not None:
            self._decline()  # setup may change what is imported
            self.doing = "run.setup is at work"
            await self._set_up(self._home.plan.setup)
        self._note_environment()
        if why := await self._start_zygote():
            node, python = self._home.node.index, self._home.plan.entry.python
            self.failure = SetupFailed(f"{python} cannot run ranks on node {node}: {why}", "")
            raise self.failure
        if self._checkup is not None:
            self.doing = "checking its devices"
            await self._check(self._checkup, self._checkup.devices, AT_START_S)
            self.doing = ""
        self._settled.set()

    async def _hold_ports(self) -> None:
        """Hold the ports that ranks of this node will listen on, once an earlier attempt has released them; raise
        PortTaken if one is still in use after the length of a lease.
        """
        deadline = time.monotonic() + self._home.plan.spec.recovery.lease_s
        for address in self._home.plan.addresses_of(self._home.node.index):
            host, _, port = address.rpartition(":")
            while (held := _hold_port(host, int(port))) is None:
                if time.monotonic() >= deadline:
                    text = f"another program has {address}, which was drawn for a rank: launch resume draws others"
                    self.failure = PortTaken(text)
                    raise self.failure
                await asyncio.sleep(_PORT_S)
            self._ports.append(held)

    async def check_again(self, local_ranks: Collection[int]) -> None:
        """Check the devices of the failed ranks with the numbers `local_ranks` on this node.

        Raise NodeUnfit if one fails; no rank can start here after that. Do nothing if the run has no device checks
        (`recovery.health`) or the preparation has failed.
        """
        self.health = []
        if self._checkup is None or self.failure is not None:
            return
        devices = self._checkup.devices_of_ranks(local_ranks)
        if devices:
            await self.renew()
            self._settled.clear()
            await self._check(self._checkup, devices, AFTER_FAILURE_S)
            self._settled.set()

    async def _check(self, checkup: Checkup, devices: Collection[str], bound_s: float) -> None:
        """Check the devices by `checkup`, each for at most `bound_s` seconds, and keep the results in `health`. If one
        fails, keep the error in `failure` instead, and raise it: NodeUnfit.
        """
        try:
            self.health = await checkup.look(self._zygote, devices, bound_s)
        except NodeUnfit as unfit:
            self.failure = unfit
            raise

    async def wait(self) -> None:
        """Wait until the node is prepared; if its preparation has failed, wait for ever, because `run` raises the
        error.
        """
        await self._settled.wait()

    async def stay_warm(self, rest_s: float = _REST_S) -> None:
        """Replace each zygote that dies, so that the next start of ranks finds the imports done. Return only if the
        node has no zygote, because none was asked for or none could be started.

        If zygotes die again and again, one is started every `rest_s` seconds at most, because imports take processor
        time from ranks.
        """
        while self._zygote is not None:
            await self._zygote.gone.wait()
            with contextlib.suppress(OSError):  # the next start tries again, and reports it
                await self.renew()
            await asyncio.sleep(rest_s)

    async def renew(self) -> None:
        """Replace the zygote if it has died: by its standby, or else by a new zygote. If neither can start, ranks are
        started by new interpreters.

        Callers at the same time wait for one replacement.
        """
        await asyncio.wait([self._renewal])  # its zygote may have been killed with the ranks of a generation
        if self._zygote is not None and self._zygote.gone.is_set() and self._renewal.done():
            self._renewal = asyncio.create_task(self._start_zygote())
        await asyncio.shield(self._renewal)  # a start that is cancelled leaves the imports to the next one

    async def _renewed(self) -> ZygoteLink | None:
        """Return the zygote, once it is replaced if it has died; return None if none could be started."""
        await self.renew()
        return self._zygote

    async def fill_reserve(self, start: Start) -> None:
        """Start reserve processes until there are as many as the spec asks for that can become ranks of a generation as
        large as that of `start`; do not wait until they are ready. If the zygote has died, it is replaced first.
        """
        await self.renew()
        await self.reserve.fill(self._fresh_starter, start)

    async def settle(self) -> None:
        """Return once the zygote has answered every request to fork a rank, with the process or with an error."""
        if self._zygote is not None:
            await self._zygote.settle()

    async def close(self) -> None:
        """End the zygote and the reserve processes."""
        if self._noting is not None:
            self._noting.join(LAST_S)
        self._decline()
        self._renewal.cancel()
        self.reserve.close()
        if self._zygote is not None:
            await self._zygote.close()

    async def _set_up(self, text: str) -> None:
        """Run the user's setup script, the text of `run.setup`, by /bin/sh, with its output in the setup log.

        Raise SetupFailed if its exit code is not 0 or a signal ended it.
        """
        log = self._home.run.setup_log(self._home.attempt.number, self._home.node.index)
        ended: asyncio.Future[Death] = asyncio.get_running_loop().create_future()

        async def begin() -> int:
            """Start the script and return its pid."""
            make_dir(log.parent)
            words = ["/bin/sh", "-c", text]
            return spawn(words, self._home.environment, self._home.workdir, log, umask=self._home.plan.umask)

        pid = await _once_disk_has_room(begin)
        for kind, soft in users_limits():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's by sudo
                resource.prlimit(pid, kind, (soft, resource.getrlimit(kind)[1]))
        self._reaper.watch(pid, ended.set_result)
        death = await ended
        if death.status != 0:
            how = f"exit code {death.code}" if death.signal is None else f"signal {death.signal}"
            relative = str(log.relative_to(self._home.run.path))
            self.failure = SetupFailed(f"run.setup failed on node {self._home.node.index} with {how}", relative)
            raise self.failure

    def _note_environment(self) -> None:
        """Write this machine's and interpreter's facts to the attempt's folder, in a thread of its own, because a disk
        may hang.
        """
        home = self._home
        file = home.run.environment(home.attempt.number, home.node.index)
        words = (file, home.plan.entry.python, home.environment)
        self._noting = threading.Thread(target=note_environment, args=words, name="environment", daemon=True)
        self._noting.start()

    async def _start_zygote(self) -> str:
        """Start a zygote and wait for its imports.

        Return "" unless the user's interpreter can run neither a zygote nor a rank, because it ended before it began to
        import; then return why. If a zygote dies later, while importing, ranks can still start, and the result is "":
        after a SIGKILL the next call starts a zygote again, else each rank gets a new interpreter from now on.
        """
        why = ""
        if self._usable:
            ready = await self._take_over() or await self._accept()
            if ready is not None:
                self._zygote = ready
            else:
                why = await self._import_anew()
            self._usable = self._zygote is not None
        self.doing = ""
        return why

    async def _take_over(self) -> ZygoteLink | None:
        """Make the standby of a dead zygote the new zygote and return it, or None if there is no standby or it does not
        become ready.
        """
        standby = self._zygote.standby if self._zygote is not None else None
        if standby is None or not standby.pid:
            return None
        await standby.preload(self._home.plan.entry.preload)
        return await self._wait_until_ready(standby)

    async def _accept(self) -> ZygoteLink | None:
        """Return the zygote that was started before this agent and offered to it, once that has finished its imports
        and found that they suit this agent. If none was offered, or it does not fit, end it and return None.

        It fits if it has the same interpreter, has imported the modules that this agent would import, and had the same
        environment then, except for secrets and the variables that the launcher sets for each run.
        """
        offered, entry, home = self._offered, self._home.plan.entry, self._home
        if offered is None or offered.python != entry.python:
            self._decline()
            return None
        self._offered = None
        link = ZygoteLink(self._reaper, home.gate)
        await link.listen(socket.socket(fileno=offered.fd))
        words: Order = {
            "env": dict(home.environment),
            "may_differ": [one.name for one in home.plan.spec.secrets],
            "cwd": str(home.workdir),
            "log": str(home.attempt.zygote_log(home.node.index)),
        }
        await link.preload(entry.preload, words)
        return await self._wait_until_ready(link)

    async def _wait_until_ready(self, zygote: ZygoteLink) -> ZygoteLink | None:
        """Return `zygote` once its imports are complete. If it ends or its time limit passes before, close it and
        return None.
        """
        await _wait_for_any(zygote.ready, zygote.gone, within_s=self._take_over_s)
        if zygote.ready.is_set():
            return zygote
        await zygote.close()  # frozen, or it has died too: nothing is asked of it any more
        return None

    def _decline(self) -> None:
        """End the zygote that was offered to this agent at its start, by closing the connection to it. Do nothing if
        none was offered, or if the agent has accepted it.
        """
        if self._offered is not None:
            os.close(self._offered.fd)
            self._offered = None

    async def _import_anew(self) -> str:
        """Start a new zygote and wait for its imports; return why the user's interpreter cannot run, or "".

        The result is "" too if the zygote died while importing: afterwards `_zygote` is None, or if it got SIGKILL the
        dead zygote, which can be started again.
        """
        entry, zygote = self._home.plan.entry, ZygoteLink(self._reaper, self._home.gate)
        self.doing = _importing(entry.preload)
        self._on_import()
        log = self._home.attempt.zygote_log(self._home.node.index)
        start = partial(zygote.start, entry.python, self._home.environment, self._home.workdir, entry.preload, log)
        self._imports = zygote
        try:
            await _once_disk_has_room(start)
            await _wait_for_any(zygote.ready, zygote.gone)
        except (FileNotFoundError, PermissionError) as error:
            self._zygote = None
            return said_by_the_system(error)
        finally:
            self._imports = None
        death = None if zygote.ready.is_set() else await _death_of(zygote)
        killed = death is not None and death.signal == signal.SIGKILL
        self._zygote = zygote if zygote.ready.is_set() or killed else None
        return _last_log_line(death, log) if death is not None and not zygote.began else ""


def _pid_of(zygote: ZygoteLink | None) -> int:
    """Return the pid of a zygote or standby, or 0 once it has ended, as the number may then be another process's."""
    return zygote.pid if zygote is not None and not zygote.gone.is_set() else 0


def _hold_port(host: str, port: int) -> HeldPort | None:
    """Bind port `port` of the address `host`, so that no other program takes it, and return it as a HeldPort; return
    None if another program has it.
    """
    try:
        return HeldPort(host, port)
    except OSError:
        return None


async def _death_of(zygote: ZygoteLink) -> Death | None:
    """Return how a zygote that has closed its connection ended, or None if it still runs, because the connection was
    closed over an invalid message.
    """
    try:
        return await asyncio.wait_for(asyncio.shield(zygote.death), _DEATH_S)
    except TimeoutError:
        return None


def _last_log_line(death: Death, log: Path) -> str:
    """Return the last line in the log of a zygote that failed to start, or its exit code as text if the log is empty;
    "" if a signal ended the zygote.
    """
    said = LogFile(log).tail() or (f"it left with exit code {death.code}",)
    return said[-1] if death.signal is None else ""


def _importing(names: Sequence[str]) -> str:
    """Return a text for users, such as "importing torch", about the modules that a zygote is importing."""
    if not names:
        return "starting Python"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"importing {', '.join(names[:_NAMED])}{more}"[:_MOST_LETTERS]


async def _once_disk_has_room(start: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `start`, which is called again after a pause for as long as the disk takes no data for a log
    (OSError). Meanwhile this node sends heartbeats but is not ready. Any other error is raised.
    """
    while True:
        try:
            return await start()
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
        await asyncio.sleep(AGAIN_S)


async def _wait_for_any(*events: asyncio.Event, within_s: float | None = None) -> None:
    """Return once one of the events is set, or after `within_s` seconds (None for no limit)."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    _, rest = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
