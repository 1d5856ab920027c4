"""Runs that were submitted from another machine: found on the hosts of the pools, and mirrored here from then on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from launcher.clusters.clusters_file import named_pools
from launcher.clusters.keeping import news
from launcher.clusters.ssh import pool
from launcher.clusters.ssh.host_client import Place, settled_in
from launcher.clusters.ssh.host_clients import ask_all, client_to
from launcher.clusters.ssh.messages import ListRuns, RunNames
from launcher.clusters.ssh.submit.report import ask_report, best_of, copy, knowing
from launcher.errors import LaunchError, NoSuchRun, Unreachable
from launcher.hostlink.connect import Line
from launcher.hostlink.parallel import answers, failures, for_all, reasons
from launcher.plan.model import Plan
from launcher.plan.on_hosts import kept_at
from launcher.rundir import drafts, registry
from launcher.rundir.durable import make_dir, write_bytes, write_record
from launcher.rundir.layout import RunDir
from launcher.spec.model import Ssh


def discover(ref: str) -> Path | None:
    """The folder here of the one run on a pool that this id, or beginning of one, means; None where there is none."""
    found: dict[str, dict[str, Place]] = {}
    troubles: dict[str, LaunchError] = {}
    for name, hosts in named_pools().items():
        news.say(f"looking for {ref} on the hosts of {name}")
        runs, silent = _runs_on(hosts)
        troubles |= silent
        for run, places in runs.items():
            if run.startswith(ref):
                found.setdefault(run, {}).update(places)
    if troubles and not found:
        told = f"{ref}: not known here, and not all hosts could be asked"
        raise Unreachable(told, *reasons(troubles), "hint: launch hosts")
    if ref in found:
        found = {ref: found[ref]}
    if len(found) > 1:
        raise NoSuchRun(f"{ref}: expected the id of one run, got the beginning of {len(found)}: {', '.join(found)}")
    return next((_mirrored(run, places) for run, places in found.items()), None)


def _runs_on(ssh: Ssh) -> tuple[dict[str, dict[str, Place]], dict[str, LaunchError]]:
    """Which runs there are, and on which hosts; and the hosts that could not be asked."""
    surveyed, troubles = pool.surveyed(ssh)
    lines = pool.working(pool.lines_to([one.host for one in surveyed.values()], agent=ssh.agent))

    def ask(name: str, line: Line) -> tuple[Place, tuple[str, ...]]:
        found = surveyed[name]
        place = Place(found.host, ssh.agent, settled_in(line, found), found.facts.workdir, found.address)
        client = client_to(place)
        return place, client.expect(RunNames, client.ask(ListRuns(place.workdir))).names

    told = for_all(lines, ask)
    runs: dict[str, dict[str, Place]] = {}
    for name, (place, names) in answers(told).items():
        for run in names:
            runs.setdefault(run, {})[name] = place
    return runs, troubles | failures(told)


def _mirrored(run_id: str, places: Mapping[str, Place]) -> Path | None:
    """A folder for it in the user's state folder, with what the host that knows most has of it."""
    path = registry.adopted(run_id)
    run = RunDir(path)
    said = ask_all([*places.values()], lambda client: ask_report(run, client, whole=True))
    told = best_of(knowing(said))
    if told is None:
        if silent := failures(said):
            raise Unreachable(*reasons(silent))
        return None
    if not path.exists():
        _make(path, told.head.attempt, told.records, places)
    copy(run, replace(told, records={name: one for name, one in told.records.items() if name != "plan.json"}))
    if run_id in dict(registry.gone()):
        registry.forget(run_id)  # somebody took its folder away
    if not registry.is_registered(run_id):
        registry.register(run_id, path)
    return path


def _make(path: Path, attempt: int, records: Mapping[str, bytes], places: Mapping[str, Place]) -> None:
    """What every mirror begins with: the spec, the plan, and where the hosts are."""
    plan = msgspec.json.decode(records["plan.json"], type=Plan)
    make_dir(path.parent)
    draft = RunDir(drafts.new_draft(path.parent))
    make_dir(draft.path)
    write_bytes(draft.spec, records["spec.yaml"])
    write_record(draft.plan, kept_at(plan, str(path)))
    make_dir(draft.attempts)
    make_dir(draft.attempt(attempt).path)
    write_record(draft.attempt(attempt).hosts, [*places.values(), *_those_that_were_silent(plan, places)])
    draft.path.rename(path)


def _those_that_were_silent(plan: Plan, places: Mapping[str, Place]) -> list[Place]:
    """The other hosts of the plan, which may know better: as one of those that answered, as far as can be known."""
    hosts = {host.name: host for host in plan.spec.ssh.hosts}
    alike = next(iter(places.values()))
    return [
        msgspec.structs.replace(alike, host=hosts[node.host], address=node.address)
        for node in plan.nodes
        if node.host in hosts and node.host not in places
    ]
