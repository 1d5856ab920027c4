"""The readiness of a node: it is prepared (`run.setup` has run, and a zygote has imported torch, to fork ranks), its
devices are fit, and its host is not about to go. A role is one program of a run that has several.

prepare ─ setup, zygote ─► Ready, or Fault
kernel log ─► DeviceFails          notice of the host ─► HostLeaves
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

from launcher.errors import said_by_the_system
from launcher.health.evidence import Fitness
from launcher.health.kernel_log import KernelLog, device_error
from launcher.node.lifeline import Lifeline
from launcher.node.notice import HostNotice
from launcher.node.ranks.checkup import NodeUnfit
from launcher.node.ranks.group import Home
from launcher.node.ranks.prepare import PortTaken, Preparation, SetupFailed
from launcher.node.ranks.reaper import Reaper
from launcher.node.ranks.reserve import ReserveEvent
from launcher.wire import messages

_DUE_S = 0.05
_KERNEL_S = 1.0  # interval at which the kernel log and the host's notice are read


class Readiness:
    """The readiness of a node to run ranks; each change is sent to the coordinator over the agent's connection.

    `on_import` is called when the zygote begins to import torch, which takes seconds.
    """

    def __init__(self, home: Home, reaper: Reaper, line: Lifeline, on_import: Callable[[], None]) -> None:
        self._home, self._line = home, line
        self.preparation = Preparation(home, reaper, self._report_reserve, on_import)
        self._failing = ""  # a device error in the kernel log
        notice, code = home.plan.spec.notice, home.workdir
        self._notice = HostNotice(notice, code, home.environment, reaper) if notice.is_given else None
        self._noticed = asyncio.Event()  # it was looked at once
        self._leaves = ""  # why this host is about to leave
        self._due = asyncio.Event()  # ranks may start
        if not (home.plan.spec.roles and home.plan.elects and home.node.index == 0):
            self._due.set()

    def tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the coroutines that have to run as long as the agent: preparation, and the watches for failing devices
        and for a notice of the host.
        """
        yield self._prepare()
        yield self._wait_until_due()
        if self._home.plan.spec.recovery.health:
            yield self._watch_kernel()
        if self._notice is not None:
            self._notice.watch_signal()
            yield self._watch_notice(self._notice)

    @property
    def doing(self) -> str:
        """Return what keeps the node from running ranks, for people, or "" if nothing does."""
        return self.preparation.doing or ("" if self._due.is_set() else "waits until other roles are ready")

    def report(self) -> None:
        """Send everything that is known of the node's state, on a new connection: that its host is about to go, that
        its preparation has failed or it is ready, and which device fails. Send nothing of what is not known yet.
        """
        node = self._home.node.index
        if self._notice is not None:  # also when it stays after all: that message may be lost
            self._line.send(messages.HostLeaves(node, self._leaves))
        if self.preparation.failure is not None:
            self._line.send(_fault_of(self._home, self.preparation.failure))
        elif self.preparation.done and self._due.is_set() and (self._notice is None or self._noticed.is_set()):
            self._line.send(messages.Ready(node))
        if self._failing:
            self._line.send(messages.DeviceFails(node, self._failing))

    async def _prepare(self) -> None:
        """Prepare the node and send Ready, or a Fault with the reason why it cannot be prepared; then replace each
        zygote that dies.
        """
        if self._home.node.votes_only:
            return
        try:
            await self.preparation.run()
        except (SetupFailed, NodeUnfit, PortTaken) as failure:
            self._line.send(_fault_of(self._home, failure))
            return
        self._report_health()
        if self._notice is not None:
            await self._noticed.wait()  # else ranks would begin on a host that goes
        await self._due.wait()
        self._line.send(messages.Ready(self._home.node.index))
        await self.preparation.stay_warm()

    async def _wait_until_due(self) -> None:
        """Wait until the roles for which this node's role waits are ready; the supervisor then creates the attempt's
        file `due`.

        Only node 0 of a run with roles waits so, in a pool that elects a leader. Its agent is started before that
        moment, because it includes the coordinator, which has to count which hosts of the attempt answer.
        """
        while not (self._due.is_set() or self._home.attempt.due.exists()):  # noqa: ASYNC110 - it is a file
            await asyncio.sleep(_DUE_S)
        self._due.set()

    async def is_still_fit(self, suspects: list[int]) -> bool:
        """Check the devices of ranks on this node that have failed; `suspects` are their local rank numbers. Report the
        result to the coordinator, and return False if a device is unfit.
        """
        try:
            await self.preparation.check_again(suspects)
        except NodeUnfit as unfit:
            self._line.send(_fault_of(self._home, unfit))
            return False
        self._report_health()
        return True

    def _report_health(self) -> None:
        """Send the coordinator the result of the newest check of each device of the node."""
        node = self._home.node.index
        for one in self.preparation.health:
            if one.fitness is Fitness.FIT:
                self._line.send_once(messages.Noted(node, "node_fit", f"node {node} is fit: {one.text}"))
            else:
                self._line.send_once(messages.Noted(node, "health_unknown", f"node {node} was not checked: {one.text}"))

    async def _watch_kernel(self) -> None:
        """Watch the kernel log until a device is reported as failing, and send the coordinator this first report, so
        that ranks leave the node before the device fails. If the log cannot be read, only send an event that says so.
        """
        node, gpus = self._home.node.index, self._home.plan.gpus_per_node > 0
        try:
            with closing(KernelLog()) as log:
                while not self._failing:
                    await asyncio.sleep(_KERNEL_S)
                    self._failing = next(filter(None, (device_error(one, gpus=gpus) for one in log.news())), "")
        except OSError as error:
            why = said_by_the_system(error)
            text = f"the kernel log of node {node} cannot be read for failing devices: {why}"
            self._line.send_once(messages.Noted(node, "health_unknown", text))
        else:
            self._line.send(messages.DeviceFails(node, self._failing))

    async def _watch_notice(self, notice: HostNotice) -> None:
        """Watch, until cancelled, for the spec's notice that the host is about to be taken away. Tell the coordinator
        when it comes, changes or is withdrawn, and once if the spec's command gives no answer.
        """
        node, problem = self._home.node.index, ""
        while True:
            leaves = await notice.look()
            if leaves != self._leaves:
                self._leaves = leaves
                self._line.send(messages.HostLeaves(node, leaves))
            if notice.problem and notice.problem != problem:
                text = f"notice.command gives no answer whether the host of node {node} leaves: {notice.problem}"
                self._line.send_once(messages.Noted(node, "notice_failed", text))
            problem = notice.problem or problem
            self._noticed.set()
            await asyncio.sleep(_KERNEL_S)

    def _report_reserve(self, kind: ReserveEvent, text: str) -> None:
        """Send the coordinator an event about the processes in reserve (`recovery.reserve`), with `text` as its
        explanation.
        """
        self._line.send_once(messages.Noted(self._home.node.index, kind, text))


def _fault_of(home: Home, failure: SetupFailed | NodeUnfit | PortTaken) -> messages.Fault:
    """Return the fault to report for a preparation that failed: of the user's setup, a device, or a port."""
    if isinstance(failure, PortTaken):
        return messages.Fault(home.node.index, False, str(failure), port=True)
    if isinstance(failure, NodeUnfit):
        return messages.Fault(home.node.index, False, str(failure), unfit=True)
    return messages.Fault(home.node.index, True, str(failure), failure.log)
