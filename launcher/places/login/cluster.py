"""A cluster behind a login node as a place where runs go: the `launch` program on the login node starts the runs and
reports on them.
"""

import atexit
import shlex
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.errors import LaunchError, Refused, Unreachable
from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Finding
from launcher.ids import RunId, is_run_id, parse_run_id
from launcher.places.clusters_file import ClusterEntry, login_of, named_clusters
from launcher.places.login import files, records, waiting
from launcher.places.login.address import KIND, Address, address_of, as_planned, now
from launcher.places.login.files import remote_runs
from launcher.places.login.handover import finish, hand_over, remote_spec, send_code, withdraw
from launcher.places.login.lines import ANSWER_S, ask, ask_all, persistently, silent
from launcher.places.login.messages import (
    AskHosts,
    AskMachine,
    AskPreview,
    EndRun,
    IncludeNodes,
    LookAtRuns,
    RemotePreview,
    RunNews,
    TidyRuns,
)
from launcher.places.place import CancelReport, HostNow, KeptRemote, Place, Preview
from launcher.plan.facts import Machine, Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.remote.parallel import answers, failures, for_all
from launcher.remote.rpc.client import RemoteLaunch, started
from launcher.remote.running import Running
from launcher.remote.shipping.tree import digest_of, refuse_links_out
from launcher.run import registry
from launcher.run.attempts import last_attempt, last_seen, newest
from launcher.run.code.listing import CodeList, list_code
from launcher.run.durable import read_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterAnswer, Exclusion, Handle
from launcher.spec.model import JobSpec, Login
from launcher.status.checkpoints import Checkpoint
from launcher.supervisor.attempt_end import grace_s_of
from launcher.supervisor.handover import Handover, handover_error

_LONG_S = 1200.0  # it may have to ask further hosts, whose disks are walked
_MOST_WHERE = 200
LIMIT_S = 13.0  # for all login nodes together to report on their runs
_TREE_S = 600.0
_MANY = 10_000


Names = dict[RunId, RunId]  # by what runs are called there: what they are called here


class LoginCluster(Place):
    """A cluster behind a login node. The login node starts each run exactly once; a run's records are copied into its
    folder on this machine.
    """

    kind = KIND
    doctor = "launcher.places.login.cluster"  # module with its checks
    remote = True  # runs have their folders on other machines; those on this one hold copies
    checks_first = True  # it is not asked while this machine finds problems in the spec
    supports_reach = True  # `reach` can start a program beside the ranks of a node
    takes_roles = True  # a run may consist of several programs
    lists_checkpoints = True  # `checkpoints` lists checkpoints on the login node

    def __init__(self) -> None:
        self._offered: tuple[JobSpec, Machine] | None = None
        self._not_handed: dict[Path, str] = {}  # by attempt: why

    def check_first(self, code: CodeList) -> None:
        """Raise BadInput if a link leads out of the code, because its target would be missing on the login node."""
        refuse_links_out(code)

    def machine(self, spec: JobSpec) -> Machine:
        """Return what a node of the cluster offers to a run of this spec, such as GPUs and memory, as the login node
        reports it. A second call in a row for the same spec does not ask again.
        """
        if self._offered is None or self._offered[0] != spec:
            address, without = address_for(spec.login), [secret.name for secret in spec.secrets]
            request = AskMachine(address.on, spec)
            machine = persistently(
                address, lambda line: line.ask(request, Machine, timeout_s=ANSWER_S), without=without
            )
            self._offered = (spec, replace(machine, own_python=True))
        return self._offered[1]

    def hosts_now(self, spec: JobSpec) -> list[HostNow]:
        """Return the cluster's hosts as the login node reports them, with those runs on them that this machine
        knows.
        """
        address = address_for(spec.login)
        hosts = ask(address, AskHosts(address.on, spec), list[HostNow], timeout_s=LIMIT_S)
        return [replace(host, runs=tuple(filter(_is_known_here, host.runs))) for host in hosts]

    def queue_problems(self, spec: JobSpec, awaited: Sequence[AwaitedRun]) -> list[Misfit]:
        """Return a problem for each `queue` option of the spec, and each run to wait for (`awaited`), that the cluster
        behind the login node does not support.
        """
        return waiting.queue_problems(address_for(spec.login), spec.queue, awaited)

    def runs_folder(self, spec: JobSpec) -> str:
        """Return the path, on the login node that `spec` names, of the folder that contains the folders of runs."""
        return waiting.runs_folder(address_for(spec.login))

    def release(self, run: RunDir, attempt: AttemptDir) -> None:
        """Release the held run on its login node."""
        waiting.release(run, attempt)

    def most_together(self) -> int:
        """Return 10,000, in effect no limit on the runs that are sent in one request: the login node divides them into
        jobs that its cluster accepts.
        """
        return _MANY

    def preview(self, plan: Plan) -> Preview:
        """Return what the login node would submit to its batch system, without a submission. The code is sent to the
        login node for this, because that checks it.
        """
        address = now(as_planned(plan.cluster, plan.spec.login))
        code = list_code(Path(plan.project), plan.spec.code)
        digest = digest_of(code)
        spec = remote_spec(plan, Path(plan.spec_file).read_bytes(), waiting.remote_options(plan, address))

        def work(line: RemoteLaunch) -> RemotePreview:
            """Send the code, ask for the preview and return it."""
            send_code(line, code, digest, address.folder, _TREE_S)
            request = AskPreview(address.folder, address.on, digest, spec)
            return line.ask(request, RemotePreview, timeout_s=ANSWER_S)

        there = persistently(address, work, without=plan.secrets)
        handed = there.handed or Preview("", "")
        where = f"its folder there would be {address.login}:{there.run_dir}"
        return Preview(handed.script, "; ".join(filter(None, (handed.answer, where))))

    def start(self, plan: Plan, attempt: int) -> None:
        """Send attempt number `attempt` to the login node, which starts it exactly once."""
        run = RunDir(Path(plan.run_dir))
        hand_over(Handover.of(run, run.attempt(attempt)))

    # -- runs that are there

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterAnswer | None]:
        """Return the login node's answer about each attempt, and copy the run's new records here. If it does not
        answer, return what was recorded last, with the reason.

        The answer about an attempt that has not been sent to its login node says so; it is None if that happened during
        this call. The login nodes are asked at the same time, each once.
        """
        asked: dict[Address, list[tuple[RunId, RunDir, AttemptDir]]] = {}
        words: dict[Path, ClusterAnswer] = {}
        wholes = [(run.whole, attempt if run.whole == run else last_attempt(run.whole)) for run, attempt in attempts]
        for run, attempt in wholes:
            try:
                if (handle := read_record(attempt.handle, Handle)) and (there := handle.run_there()):
                    asked.setdefault(address_of(run, attempt), []).append((there, run, attempt))
            except (LaunchError, OSError) as error:  # one damaged run must not hide the others
                words[attempt.path] = last_seen(attempt, str(error))
        questions = {
            address: LookAtRuns(tuple(records.known_of(run, attempt, there) for there, run, attempt in runs))
            for address, runs in asked.items()
        }
        answers = ask_all(questions, dict[str, RunNews], LIMIT_S)
        for address, runs in asked.items():
            for there, run, attempt in runs:
                words[attempt.path] = _answer_about(address, run, attempt, there, answers[address])
        return [words.get(attempt.path) or self._answer_before_handover(attempt) for _, attempt in wholes]

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """Send to its login node each attempt that a killed submitter has left unsent. An attempt whose login node does
        not answer stays unsent.
        """
        left = {}
        for run, attempt in attempts:
            if run.whole != run:
                continue
            try:
                handover = Handover.of(run, attempt)
                if handover.is_open() and not handover.is_in_hand():
                    left[str(handover.path)] = handover
            except (LaunchError, OSError) as error:
                self._not_handed[attempt.path] = str(error)
        for name, trouble in failures(for_all(left, lambda _, handover: _mend(handover))).items():
            self._not_handed |= {one.path: trouble.lines[0] for _, one in left[name].members}

    def _answer_before_handover(self, attempt: AttemptDir) -> ClusterAnswer | None:
        """Return an answer about an attempt that no login node is known to have: it is being sent, or why it could not
        be. Return None if it has been sent meanwhile.
        """
        if attempt.handle.exists() or attempt.end.exists():
            return None  # by now
        if why := self._not_handed.get(attempt.path):
            return last_seen(attempt, f"it was not handed over yet: {why}")
        return ClusterAnswer("queued", "", time.time(), text="it is being handed to its login node")

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: Plan | None) -> CancelReport:
        """Cancel the run through its login node, and return the report. `plan` is None if it cannot be read. Raise
        Unreachable if the login node does not answer.
        """
        address = address_of(run, attempt)
        handover = Handover.of(run, attempt)
        if handover.is_open():
            if handover.is_in_hand():
                raise handover_error(run, "its login node")
            with handover.held(wait=True):
                if handover.is_open() and len(handover.members) == 1 and withdraw(handover):
                    return CancelReport((), already=False)
            hand_over(handover)  # others were submitted with it, and continue
        handle = read_record(attempt.handle, Handle)
        if handle is None or (there := handle.run_there()) is None:
            return CancelReport((), already=True)
        limit_s = grace_s_of(plan) + ANSWER_S
        report = ask(address, EndRun(there), CancelReport, timeout_s=limit_s)
        self.look([(run, attempt)])
        return report

    def include_nodes(self, run: RunDir, hosts: Collection[str]) -> None:
        """Let the run use nodes again that it excludes on that cluster: the named hosts, or all if none is named."""
        attempt = newest(run)
        if attempt is not None and (handle := read_record(attempt.handle, Handle)) and (there := handle.run_there()):
            request = IncludeNodes(there, tuple(hosts))
            ask(address_of(run, attempt), request, list[Exclusion], timeout_s=ANSWER_S)

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> Running:
        """Start the program on the node that serves one request about its ranks, and return the connection to that
        program, which `launch _inside` on the login node relays in both directions. Raise Refused if the run was not
        sent to its login node yet.
        """
        whole, role = run.whole, ""
        if whole != run:
            attempt, role = last_attempt(whole), f" {run.id}"
        handle = read_record(attempt.handle, Handle)
        if handle is None or (there := handle.run_there()) is None:
            raise Refused(f"{whole.id} is being handed to its login node", f"hint: launch status {whole.id}")
        way, running = started(address_of(whole, attempt), f"_inside {there} {node:d}{role}")
        if way is not None:
            atexit.register(way.close)
        return running

    # -- what they have written

    def bring_logs(self, run: RunDir) -> None:
        """Copy new logs and metrics from the login node; do nothing once the run has ended and all were copied. If the
        node does not answer, the logs here stay as they are; raise LaunchError if there are none yet.
        """
        files.bring_logs(run.whole)

    def fetch(self, run: RunDir, checkpoint: str) -> list[str]:
        """Copy logs, metrics and checkpoints to this machine; return a line of text for each.

        `checkpoint` says which checkpoints: `newest` means the newest and the best one, a number the one of that step,
        and `none` no checkpoint.
        """
        return files.fetch(run, checkpoint)

    def bring_outputs(self, run: RunDir, draft: Path, frozen: Collection[str]) -> list[Path]:
        """Copy the files that ranks wrote into their folder of code to this machine, to new folders below `draft`.
        Return the folder of each login node that had any, as a run's attempts may have been on several.

        `frozen` is not used, as the login node itself distinguishes outputs from code.
        """
        return files.bring_outputs(run, draft, frozen)

    def bring_newest(self, run: RunDir) -> None:
        """Copy the newest checkpoint and the logs to this machine, because the run is to continue on another cluster.

        Raise Unreachable or NotTransferred if there may be a newest checkpoint and it cannot be copied.
        """
        files.bring_newest(run)

    def tidy(self, runs: Sequence[RunDir], *, remove: bool) -> list[KeptRemote]:
        """Return which files each login node keeps for the runs; with `remove`, delete them, except those of a run that
        has not ended. For a login node that does not answer, the result says so in `silent`.
        """
        asked: dict[Address, Names] = {}
        for run in runs:
            for remote in remote_runs(run):
                asked.setdefault(remote.address, {})[remote.there] = run.id
        addresses = {str(address): address for address in asked}

        def work(_: str, address: Address) -> list[KeptRemote]:
            """Ask one login node about its runs, and return what it keeps of them."""
            request = TidyRuns(address.folder, tuple(asked[address]), remove)
            return ask(address, request, list[KeptRemote], timeout_s=_LONG_S)

        results = for_all(addresses, work)
        found = [
            _named(addresses[name], one, asked[addresses[name]])
            for name, told in answers(results).items()
            for one in told
        ]
        return found + [
            KeptRemote(addresses[name].login, dict.fromkeys(asked[addresses[name]].values(), 0), silent=why.lines[0])
            for name, why in failures(results).items()
        ]

    def checkpoints(self, run: RunDir, *, verify: bool) -> list[Checkpoint]:
        """Return the run's checkpoints on the login node. With `verify`, the login node reads every file of them, and
        compares it with its digest in the manifest.
        """
        return files.checkpoints(run, verify=verify)


def _is_known_here(run_id: str) -> bool:
    """Return whether a run with this id is registered on this machine."""
    return is_run_id(run_id) and registry.is_registered(parse_run_id(run_id))


def address_for(login: Login) -> Address:
    """Return the address of a login node, which includes a cluster's name: that of the entry in the clusters file with
    exactly these options, or else the login node's own name.
    """
    named = (name for name, place in named_clusters().items() if login_of(place) == login)
    return as_planned(next(named, login.node or KIND), login)


def _answer_about(
    address: Address, run: RunDir, attempt: AttemptDir, there: str, answer: dict[str, RunNews] | LaunchError
) -> ClusterAnswer:
    """Return the login node's answer about an attempt in the form of any cluster, and write the records that came with
    it. `answer` has the news of runs by their ids on the login node at `address`, where this run's id is `there`.

    If `answer` is an error or lacks the run, or its records cannot be written, return the answer that was recorded
    last, with the reason why there is no newer one.
    """
    if isinstance(answer, LaunchError):
        why = "; ".join(line.strip() for line in answer.lines if not line.startswith("hint:"))
        return last_seen(attempt, why)
    if there not in answer:
        return last_seen(attempt, f"{address.login} does not know it any more")
    try:
        records.keep(run, attempt, answer[there])
    except (LaunchError, OSError) as error:
        return last_seen(attempt, f"{address}: {error}")
    return records.answer_of(attempt, answer[there])


def _mend(handover: Handover) -> None:
    """Send the login node an attempt whose submitter was killed; raise Unreachable if the node does not answer, or did
    not a moment ago. If sending it fails otherwise and the node has not started it, write its end record.
    """
    address = address_of(*handover.members[0])
    if (why := silent.why(address)) is not None:
        raise why
    try:
        finish(handover)
    except Unreachable as error:
        raise silent.note(address, error) from None


def _named(address: Address, told: KeptRemote, names: Names) -> KeptRemote:
    """Return `told`, in which the login node at `address` lists the files that it keeps for runs, with this machine's
    id of each run in place of the id there.

    `names` maps the ids there to those here; runs that it lacks are left out.
    """
    return KeptRemote(
        f"{address.login}:{told.where[:_MOST_WHERE]}" if told.where else address.login,
        {names[run]: size for run, size in told.runs.items() if run in names},
        told.code,
        tuple(names[run] for run in told.live if run in names),
        told.silent,
    )


def check_up(request: DoctorRequest, _tell: object) -> Iterator[Finding]:
    """Raise Refused with a hint: a cluster behind a login node is checked by `launch doctor` on that node."""
    address = as_planned(request.cluster, login_of(ClusterEntry(KIND, request.cluster, request.defaults)))
    there = shlex.join([address.launch, "doctor", address.on])
    text = f"{request.cluster} is looked at from its login node, {address.login}"
    raise Refused(text, f"hint: ssh {address.login} {there}")
