"""Hand an attempt to hosts: choose them, prepare them side by side, send each the others' addresses, and tell them to
begin.

Until the leader is told to begin nothing has started and nothing is lost; from then on nothing here is needed.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from launcher.copies import news
from launcher.copies.mirror.fetch import fetch_to_resume_from
from launcher.copies.mirror.holders import lacking
from launcher.copies.mirror.tails import Tail, parts_of
from launcher.errors import Exit, LaunchError, NotStarted, Unreachable
from launcher.places.ssh import pool
from launcher.places.ssh.facts import Surveyed
from launcher.places.ssh.host_client import HostClient, Place, settled_in
from launcher.places.ssh.messages import CodeTree, GoAhead, Open, Opened, Peer, Supervisors
from launcher.places.ssh.results.checkpoints import disks_of, holders_of
from launcher.places.ssh.run_hosts import handed_to
from launcher.places.ssh.submit.look import Asked, each
from launcher.places.ssh.submit.predecessors import leaders_of
from launcher.places.ssh.submit.report import ask_reports, with_the_run
from launcher.plan.model import NodePlan, Plan
from launcher.plan.on_hosts import kept_at, least_hosts, most_of_a_host, with_hosts
from launcher.remote.parallel import answers, failures, for_all
from launcher.remote.shipping import tree
from launcher.run.attempts import read_intent, read_plan
from launcher.run.avoided import avoided
from launcher.run.code.listing import list_frozen
from launcher.run.durable import write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import Handle, Intent
from launcher.states import LOCAL
from launcher.supervisor.handover import Handover
from launcher.supervisor.waiting import has_happened
from trainer.checkpoint_files.partial import Held

_CARRIED = ("spec.yaml", "secrets.json", "notify.json", "events.jsonl", "avoided.json", "state.json")


class PoolHandover:
    """An attempt that is being handed to a pool; its hosts are prepared while the submitter still freezes the code."""

    def __init__(self, run_dir: Path, found: Mapping[str, Surveyed], *, agent: bool) -> None:
        self._run = RunDir(run_dir)
        self._found = found
        self._agent = agent
        self._pythons: dict[str, str | LaunchError] = {}
        self._getting_ready = threading.Thread(target=self._get_ready, daemon=True)
        self._getting_ready.start()

    def start(self, attempt: int) -> None:
        """Hand the attempt, whose intent is on disk, to hosts. Do nothing if another process has handed it over
        meanwhile, or a cancel has withdrawn it. Raise NotStarted if too few hosts can be used.
        """
        handover = Handover.of(self._run, self._run.attempt(attempt))
        with handover.held(wait=True):
            if handover.is_open():
                self.carry_out(attempt)

    def carry_out(self, attempt: int) -> None:
        """Hand attempt number `attempt` to hosts. If some cannot be reached or prepared before any was told to begin,
        choose again without them; raise NotStarted if too few are left, and LaunchError if the first host fails when
        it is told to begin. Failures after that are ignored: a host that was not told to begin asks the first one. The
        caller holds the attempt's lock.
        """
        self._getting_ready.join()
        there = self._run.attempt(attempt)
        plan, intent = read_plan(self._run, attempt), read_intent(there)
        ready = {name: self._found[name] for name in answers(self._pythons)}
        troubles = pool.troubles_of(plan.spec.ssh)
        troubles |= failures(self._pythons)
        while True:
            chosen = choose(plan, ready, {exclusion.host for exclusion in avoided(self._run)})
            if len(chosen) < least_hosts(plan):
                raise _too_few(plan, len(chosen), troubles)
            failed = self._hand_over(
                there, with_hosts(plan, [(name, ready[name].address) for name in chosen]), intent, ready
            )
            if not failed:
                return
            troubles |= failed
            ready = {name: one for name, one in ready.items() if name not in failed}

    def drop(self) -> None:
        """Give the handover up, as no attempt follows: wait until the installation on the hosts, which goes on, has
        ended. Nothing else was begun on them; errors of the installation are ignored.
        """
        self._getting_ready.join()

    def _get_ready(self) -> None:
        """Install the launcher on the hosts, and keep for each the path of its Python or the error. This runs in a
        thread of its own.
        """
        hosts = [one.host for one in self._found.values()]
        lines = pool.working(pool.lines_to(hosts, agent=self._agent))
        self._pythons = for_all(lines, lambda name, line: settled_in(line, self._found[name]))

    def _hand_over(
        self, there: AttemptDir, plan: Plan, intent: Intent, ready: Mapping[str, Surveyed]
    ) -> dict[str, LaunchError]:
        """Hand the attempt, whose folder is `there`, to the hosts of the plan, and return {} once they have it.

        `intent` is the attempt's record from before the hand-over, with its submit token. `ready` has the facts about
        the hosts that have the launcher; each host of the plan is among them. If hosts fail before anything has
        started, return their errors, by host; the supervisors of the others then exit. An error of the first host when
        it is told to begin is raised. Later errors are ignored, because a host that is not told to begin asks the first
        host about it.
        """
        places = {node.host: self._place(ready[node.host], node.address) for node in plan.nodes}
        write_record(there.plan, plan)
        write_record(there.hosts, list(places.values()))
        lines = pool.lines_to([place.host for place in places.values()], agent=self._agent)
        if failed := failures(lines):
            return failed
        clients = {name: HostClient(line, places[name]) for name, line in pool.working(lines).items()}
        try:
            failed = self._start_supervisors(there, plan, intent, ready, clients)
        finally:
            for one in clients.values():
                one.close()  # a supervisor that was not told to begin then exits
        if not failed:
            write_record(there.handle, Handle("ssh", submit_token=intent.submit_token))
        return failed

    def _start_supervisors(
        self,
        there: AttemptDir,
        plan: Plan,
        intent: Intent,
        ready: Mapping[str, Surveyed],
        clients: Mapping[str, HostClient],
    ) -> dict[str, LaunchError]:
        """Start the attempt's supervisors: send Open to each host, then the addresses of all supervisors, then GoAhead
        to the first host and at last to the others.

        `there` is the attempt's folder; `ready` and `clients` have the facts about each host and its client. If hosts
        fail before the first GoAhead, return their errors by host; the attempt then does not begin. Raise LaunchError
        if that GoAhead fails. Later failures do not count, because a host without GoAhead asks the first host.
        """

        def opened(name: str, one: HostClient) -> int:
            """Send Open to one host, and return its supervisor's port."""
            return _open(one, *openings[name], self._run.code)

        openings = {node.host: self._opening(plan, intent, node, ready[node.host]) for node in plan.nodes}
        first, *rest = [node.host for node in plan.nodes]
        # On a disk that all share, the first makes what the others find.
        stages = [[first, *rest]] if plan.disks_apart else [[first], rest]
        ports: dict[str, int] = {}
        for stage in stages:
            results = for_all({name: clients[name] for name in stage}, opened)
            if failed := failures(results):
                for error in failed.values():
                    if isinstance(error, _OneDisk):
                        raise error
                return failed
            ports |= answers(results)
        has_some = there.number > 1 or (self._run.path / plan.spec.checkpoint.dir).exists()
        if has_some and (failed := self._supply(plan, clients)):
            return failed
        supervisors = Supervisors(tuple(Peer(node.host, node.address, ports[node.host]) for node in plan.nodes))
        if failed := failures(for_all(clients, lambda _, one: one.ask(supervisors, type(None)))):
            return failed
        clients[first].ask(GoAhead(), type(None))
        # A host that misses it asks the first one.
        for_all({name: clients[name] for name in rest}, lambda _, one: one.ask(GoAhead(), type(None)))
        return {}

    def _supply(self, plan: Plan, clients: Mapping[str, HostClient]) -> dict[str, LaunchError]:
        """Send the checkpoints from which the run would continue to the plan's hosts that lack them; return the errors
        of hosts that failed, by host.

        Raise NotStarted if a checkpoint is needed and neither a host nor this machine can provide it.
        """
        disks, failed = disks_of(clients, plan.run_id, plan.spec.checkpoint.dir)
        if failed:
            return failed
        holders = holders_of(self._run, disks)

        def supply(wanted: Held) -> None:
            """Send one checkpoint to all hosts."""
            if names := lacking(wanted, [held for _, held in disks.values()]):
                holders.bring_home(wanted, names)
                holders.send(wanted, plan.nodes[0].host, names)

        trouble: LaunchError | None = None
        try:
            fetch_to_resume_from(self._run, holders, supply)
        except LaunchError as error:
            trouble = error
        failed = {name: error for name, error in holders.failed.items() if name in clients}
        if trouble is not None and not failed:
            raise _not_started(*trouble.lines, exit_code=trouble.exit_code) from trouble
        return failed

    def _place(self, found: Surveyed, address: str) -> Place:
        """Return the record of how to reach the host `found`; `address` is the one by which other hosts reach it."""
        return Place(found.host, self._agent, answers(self._pythons)[found.host.name], found.facts.workdir, address)

    def _opening(self, plan: Plan, intent: Intent, node: NodePlan, found: Surveyed) -> tuple[Open, list[bytes]]:
        """Return (the message Open for the host of `node`, the contents of the run's records that follow it). `intent`
        says why and by which process the attempt was opened, and `found` has the facts about this host.
        """
        paths = [path for name in _CARRIED if (path := self._run.path / name).exists()]
        records = [Tail(path.name, 0, path.read_bytes()) for path in paths]
        run_dir = f"{found.facts.workdir}/runs/{plan.run_id}"
        waits_for = tuple(one for one in plan.awaited if not has_happened(one))
        there = kept_at(msgspec.structs.replace(plan, awaited=waits_for), run_dir, found.facts.python)
        opening = Open(
            run_id=plan.run_id,
            workdir=found.facts.workdir,
            node=node.index,
            plan=msgspec.Raw(msgspec.json.encode(there)),
            code=plan.code.digest,
            intent=msgspec.structs.replace(intent, cluster_kind=LOCAL),
            gpus=found.gpus,
            records=parts_of(records),
        )
        return opening, [one.content for one in records]


class _OneDisk(NotStarted):
    """Raised when two hosts see one disk, though the pool says that each has its own; excluding a host would not
    help.
    """


def _open(client: HostClient, opening: Open, contents: Sequence[bytes], frozen: Path) -> int:
    """Send the attempt with the `contents` of its records, and the code in `frozen` if the host lacks it; start its
    supervisor.

    Return the port on which the supervisor listens.
    """
    name = client.place.host.name
    port = _ask_to_open(client, opening, contents)
    if port is None:
        code = list_frozen(frozen)
        news.say(f"{name}: code, {code.bytes:,} bytes")
        client.ask(CodeTree(opening.workdir, opening.code, tree.entries(code)), type(None), tree.contents(code))
        port = _ask_to_open(client, opening, contents)
    if port is None:
        raise client.confused("it has the code, and asks for it")
    news.say(f"{name}: ready")
    return port


def _ask_to_open(client: HostClient, opening: Open, contents: Sequence[bytes]) -> int | None:
    """Send Open with the `contents` of records, and return the port on which the supervisor listens. Return None if the
    host lacks the code, which must be sent before Open is sent again.

    Raise _OneDisk if the host shares its disk with another one, though the pool says that it does not.
    """
    answer, name = client.ask(opening, Opened, contents), client.place.host.name
    if answer.on_one_disk:
        text = f"{name}: another host of the pool has this very disk for {opening.workdir}; nothing was started"
        raise _OneDisk(text, "hint: `shared: true` in the pool, or a `workdir` that is each host's own")
    return answer.port


def choose(plan: Plan, ready: Mapping[str, Surveyed], bad: set[str]) -> list[str]:
    """Return the names of the hosts of `ready` that get the attempt, its first host at the front, at most as many as
    the plan has nodes. Hosts without enough GPUs are left out.

    Preferred are hosts outside `bad`, then hosts whose GPUs or cores are free now, then the pool's order. If the run
    waits for other runs, its first host must be one that sees their files; return [] if there is none. Any host may be
    the first once these runs have ended as the wait demands.
    """
    wanted = len(plan.nodes)
    usable = [name for name, one in ready.items() if len(one.gpus) >= most_of_a_host(plan).gpus]
    order = sorted(usable, key=lambda name: (name in bad, not ready[name].has_room(plan), usable.index(name)))
    leaders = leaders_of(plan)
    first = next((name for name in order if leaders is None or name in leaders), None)
    if first is None and order and all(map(has_happened, plan.awaited)):
        first = order[0]
    return [] if first is None else [first, *(name for name in order if name != first)][:wanted]


def _too_few(plan: Plan, there: int, troubles: Mapping[str, LaunchError]) -> NotStarted:
    """Return the error that only `there` hosts can take part, which are too few, with the reasons in `troubles`, by
    host.
    """
    lines = [line for one in troubles.values() for line in one.lines]
    return _not_started(f"{there} of at least {least_hosts(plan)} hosts can be used; nothing was started", *lines)


def _not_started(*lines: str, exit_code: Exit = Exit.UNREACHABLE) -> NotStarted:
    """Return the error that nothing was started, with the text `lines` and the exit code that `launch` is to give."""
    error = NotStarted(*lines)
    error.exit_code = exit_code
    return error


def mend(wanted: Sequence[Asked]) -> dict[str, LaunchError]:
    """Complete the handover of attempts, pairs (run, attempt), to their hosts where the process that began it has died;
    return the error of each that cannot be handed over now, by the attempt's folder.

    An attempt that its hosts have begun is only recorded as handed over. Nothing is done for one while a host that may
    have begun it does not answer.
    """
    return failures(each(wanted, _mend))


def _mend(run: RunDir, attempt: AttemptDir) -> None:
    """Complete the handover of an attempt whose submitter is gone: record it as handed over if its hosts have begun it,
    else hand it over again. Do nothing if the submitter still works on it, or while a host that may have begun it does
    not answer. Raise LaunchError if it cannot be handed over now.
    """
    handover = Handover.of(run, attempt)
    if handover.is_in_hand():
        return
    with handover.held() as lock:
        if lock is None or not handover.is_open():
            return
        reports = ask_reports(run, handed_to(run, attempt))
        if any(one.has_begun(attempt) for one in with_the_run(reports)):
            write_record(attempt.handle, Handle("ssh", submit_token=handover.intent.submit_token))
        elif not failures(reports):
            ssh = read_plan(run, attempt.number).spec.ssh
            found, troubles = pool.surveyed(ssh)
            if troubles and not found:
                raise Unreachable(*(line for one in troubles.values() for line in one.lines))
            PoolHandover(run.path, found, agent=ssh.agent).carry_out(attempt.number)
