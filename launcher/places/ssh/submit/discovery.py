"""Find runs that were submitted from another machine on the hosts of the pools, and mirror them here.

This machine has no plan for such a run. Of the spec on its host only what says how the run is watched, fetched and
ended is used, after this launcher's parser accepted it; this machine's clusters file says where the hosts are. Nothing
of it ever runs here: its code stays there, and so does `resume`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from launcher.copies import news
from launcher.errors import BadInput, LaunchError, NoSuchRun, Unreachable
from launcher.ids import RunId, is_run_id, parse_run_id
from launcher.places.clusters_file import named_pools, pool_of
from launcher.places.ssh import pool, run_hosts
from launcher.places.ssh.facts import WORKDIR
from launcher.places.ssh.host_client import Place, settled_in
from launcher.places.ssh.host_clients import ask_all, client_to
from launcher.places.ssh.messages import AskSubmitted, ListRuns, Submitted
from launcher.places.ssh.submit.report import ask_report, begin, best_of, with_the_run
from launcher.plan.model import FrozenCode, Plan, RankCommand
from launcher.plan.on_hosts import with_hosts
from launcher.remote.connect import Line
from launcher.remote.parallel import answers, failures, for_all, reasons
from launcher.remote.shipping import bundle
from launcher.run import drafts, registry
from launcher.run.durable import make_dir, write_bytes, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.spec.model import Ssh
from launcher.spec.read import parse_spec

_REST_S = 30.0
_rests: dict[tuple[Ssh, tuple[str, ...]], tuple[float, dict[str, Place | LaunchError]]] = {}

_LONGEST_SPEC = 1 << 20
_LONGEST_GRACE_S = 3600.0  # that a cancel waits


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run on a pool, and the hosts that have it."""

    id: RunId
    pool: str  # its name in the clusters file
    ssh: Ssh  # its hosts and settings
    places: dict[str, Place] = field(default_factory=dict)  # how to reach each host that has the run, by its name


def discover(ref: str) -> Path | None:
    """Find the run with the id `ref`, or the only one whose id begins with `ref`, on the hosts of all pools. Return its
    folder on this machine, which is created if it is missing, or None if there is no such run.

    Raise NoSuchRun if the ids of several runs begin with `ref`, Unreachable if none was found and some hosts could not
    be asked.
    """
    found: dict[RunId, FoundRun] = {}
    troubles: dict[str, LaunchError] = {}
    for name, place in named_pools().items():
        news.say(f"looking for {ref} on the hosts of {name}")
        try:
            hosts = pool_of(place)
        except LaunchError as error:
            troubles[name] = error
            continue
        runs, silent = _runs_on(hosts)
        troubles |= silent
        for run, places in runs.items():
            if run.startswith(ref):
                found.setdefault(run, FoundRun(run, name, hosts)).places.update(places)
    if troubles and not found:
        told = f"{ref}: not known here, and not all hosts could be asked"
        raise Unreachable(told, *reasons(troubles), "hint: launch nodes list")
    found = {run: one for run, one in found.items() if run == ref} or found
    if len(found) > 1:
        raise NoSuchRun(f"{ref}: expected the id of one run, got the beginning of {len(found)}: {', '.join(found)}")
    return next((_mirrored(one) for one in found.values()), None)


def _runs_on(ssh: Ssh) -> tuple[dict[RunId, dict[str, Place]], dict[str, LaunchError]]:
    """Return (for each run on the pool, by its id, the hosts that have it, by name; the errors of hosts that could not
    be asked, by name).
    """
    settled = settled_hosts(ssh)
    places = answers(settled)
    told = ask_all([*places.values()], lambda client: client.ask(ListRuns(client.place.workdir), list[str]))
    runs: dict[RunId, dict[str, Place]] = {}
    for name, names in answers(told).items():
        if none := [run for run in names if not is_run_id(run)]:
            news.say(f"{name}: passed over what cannot be the id of a run: {none[0][:100]!r}")
        for run in filter(is_run_id, names):
            runs.setdefault(parse_run_id(run), {})[name] = places[name]
    return runs, failures(settled) | failures(told)


def _mirrored(found: FoundRun) -> Path | None:
    """Return the folder that mirrors the run on this machine. Create it, if it is missing, with the records of the host
    that has the newest ones.

    Return None if all hosts answer and none has the run any more; raise Unreachable if none has it and some do not
    answer.
    """
    path = registry.adopted(found.id)
    run = RunDir(path)
    said = ask_all([*found.places.values()], lambda client: ask_report(run, client))
    told = best_of(with_the_run(said))
    if told is None:
        if silent := failures(said):
            raise Unreachable(*reasons(silent))
        return None
    if not path.exists():
        client = client_to(found.places[told.host])
        submitted = client.ask(AskSubmitted(found.id, client.place.workdir), Submitted)
        _make(found, told.host, told.head.attempt, submitted)
        try:
            begin(run, told)  # what has become of it is asked next, of all of its hosts
        except BaseException:
            drafts.remove(path)  # else it would stay as it is, whatever changes in the clusters file
            raise
    if found.id in dict(registry.gone()):
        registry.forget(found.id)  # its folder was removed
    if not registry.is_registered(found.id):
        registry.register(found.id, path)
    return path


def _make(found: FoundRun, host: str, attempt: int, submitted: Submitted) -> None:
    """Create the folder by which this machine mirrors a run that another machine submitted, with its first contents:
    the spec, the plan, and the addresses of the hosts.

    `host` has reported `submitted` (the spec and the hosts), and that the run's newest attempt is number `attempt`.
    """
    path = registry.adopted(found.id)
    plan = _plan(found, host, submitted)
    make_dir(path.parent)
    draft = RunDir(drafts.new_draft(path.parent))
    make_dir(draft.path)
    write_bytes(draft.spec, submitted.spec.encode())
    write_record(draft.plan, plan)
    make_dir(draft.attempts)
    make_dir(draft.attempt(attempt).path)
    silent = [node.host for node in plan.nodes if node.host not in found.places]
    write_record(
        draft.attempt(attempt).hosts, [*found.places.values(), *(_place_of_silent(found, name) for name in silent)]
    )
    draft.path.rename(path)


def _plan(found: FoundRun, host: str, submitted: Submitted) -> Plan:
    """Return a plan without commands, enough to watch and end the run; it is made from the spec and the hosts in
    `submitted`, which `host` reported.

    Raise LaunchError if the spec cannot be read, or no host of the run is in the pool.
    """
    ours = {one.name: one.address or one.name for one in found.ssh.hosts}
    ours |= {name: place.address for name, place in found.places.items()}
    hosts = [name for name in dict.fromkeys(submitted.hosts) if name in ours]
    if len(submitted.spec) > _LONGEST_SPEC or not hosts:
        raise LaunchError(f"{host}: its record of {found.id} is no spec, or names none of the hosts of {found.pool}")
    try:
        theirs = parse_spec(submitted.spec, f"{host}: spec.yaml", submitted.overrides)
    except BadInput as error:  # the error is about a command line, and there is none here
        raise BadInput(
            *(line if line.startswith((host, "hint:")) else f"{host}: {line}" for line in error.lines)
        ) from error
    recovery = replace(theirs.recovery, grace_s=min(theirs.recovery.grace_s, _LONGEST_GRACE_S))
    spec, nodes = replace(theirs, ssh=found.ssh, recovery=recovery), theirs.resources.nodes
    plan = Plan(
        run_id=found.id,
        name=spec.name,
        cluster=found.pool,
        cluster_kind="ssh",
        submitted_at=submitted.submitted_at,
        spec_file="",
        project="",
        run_dir=str(registry.adopted(found.id)),
        workdir="code",
        spec=spec,
        overrides=(),
        entry=RankCommand("command", "", (), "", ()),
        setup=None,
        nodes=(),
        nodes_min=nodes.min,
        nodes_max=nodes.max,
        ranks_per_node=0,
        cpus_per_rank=0,
        gpus_per_node=0,
        env={},
        secrets=(),
        code=FrozenCode("", 0, 0),
        disks_apart=not found.ssh.shared,
        elects=True,
    )
    return with_hosts(plan, [(name, ours[name]) for name in hosts])


def _place_of_silent(found: FoundRun, name: str) -> Place:
    """Return how to reach the host `name`, which did not answer: its address and paths by its entry in the pool, and
    the Python of a launcher of this version there.
    """
    host = next(one for one in pool.hosts_of(found.ssh) if one.name == name)
    workdir = host.workdir or WORKDIR
    python = f"{workdir}/lib/{bundle.digest(bundle.own_tag())}/bin/python"
    return Place(host, found.ssh.agent, python, workdir, host.address or name)


def settled_hosts(ssh: Ssh, only: Sequence[str] | None = None) -> dict[str, Place | LaunchError]:
    """Install the launcher on each host of the pool `ssh`, or each that `only` names, if it is missing there. Return
    how to reach the host and its launcher, or the error that prevents that, by the host's name.
    """
    surveyed, troubles = pool.surveyed(ssh, only)
    lines = pool.working(pool.lines_to([one.host for one in surveyed.values()], agent=ssh.agent))

    def settle(name: str, line: Line) -> Place:
        """Install the launcher on one host, and return how to reach it."""
        found = surveyed[name]
        return Place(found.host, ssh.agent, settled_in(line, found), found.facts.workdir, found.address)

    return {**for_all(lines, settle), **troubles}


def rest_of_pool(run: RunDir, ssh: Ssh) -> dict[str, Place | LaunchError]:
    """Return, by name, how to reach the pool's hosts that the run is not known to be on, or the error of each that
    cannot be asked. The machine that submitted the run may have resumed it on them. The launcher is installed on hosts
    where it is missing.

    For 30 seconds after this process has asked the hosts, the same answer is returned without asking them again.
    """
    known = run_hosts.everywhere(run)
    left = tuple(host.name for host in ssh.hosts if host.name not in known)
    until, found = _rests.get((ssh, left), (0.0, {}))
    if time.monotonic() >= until:
        found = settled_hosts(ssh, left) if left else {}
        _rests[ssh, left] = time.monotonic() + _REST_S, found
    return found


def follow(attempt: AttemptDir, hosts: Sequence[str], places: Mapping[str, Place]) -> None:
    """Record the attempt's hosts, those in `hosts` that are in `places`, with how to reach them, so that they are asked
    about the run from now on.
    """
    make_dir(attempt.path)
    write_record(attempt.hosts, [places[name] for name in dict.fromkeys(hosts) if name in places])
