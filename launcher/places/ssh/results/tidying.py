"""Report or delete what runs keep on the hosts of pools; each host is asked once about all of its runs."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from launcher.errors import LaunchError
from launcher.ids import RunId
from launcher.places.place import KeptRemote
from launcher.places.ssh.host_client import HostClient, Place
from launcher.places.ssh.host_clients import ask_all
from launcher.places.ssh.messages import Tidied, Tidy
from launcher.places.ssh.run_hosts import places_ever
from launcher.run.attempts import newest, plan_as
from launcher.run.layout import RunDir

if TYPE_CHECKING:
    from launcher.spec.model import SshHost

_LONG_S = 600.0  # a disk of many files is walked, and emptied

Hosts = dict[str, tuple[Place, list[RunId]]]  # by name, with the runs that each was given
Answer = tuple[str, list[RunId], Tidied | LaunchError]  # of a host, about these runs


class _Disks(msgspec.Struct, frozen=True):
    """The part of a plan that shows whether each host has a disk of its own."""

    disks_apart: bool


def tidy(runs: Sequence[RunDir], *, remove: bool) -> list[KeptRemote]:
    """Return how many bytes each host keeps of the runs. With `remove`, also delete there, after counting, the runs
    that have no process on the host, and frozen code that no other run needs.

    If the hosts of a run share a disk, its bytes are counted once, for the host that reports the most. A host that
    does not answer has 0 bytes and the reason in `silent`; it is left out if another host answered for all its runs.
    """
    shared = {run.id for run in runs if not _disks_apart(run)}
    settled: set[RunId] = set()
    found: list[KeptRemote] = []
    for name, asked, one in sorted(_ask_hosts(runs, remove), key=_most_first):
        left = [run for run in asked if run not in settled]
        if isinstance(one, LaunchError):
            found += [KeptRemote(name, dict.fromkeys(left, 0), silent=one.lines[0])] if left else []
            continue
        live = tuple(run for run in asked if run in one.live)  # of others it was not asked
        sizes = {run: one.runs[run] for run in left if run in one.runs}
        found += [KeptRemote(name, sizes, one.code, live)] if left or live else []
        settled |= shared & {*asked}
    return found


def _ask_hosts(runs: Sequence[RunDir], remove: bool) -> Iterator[Answer]:
    """Ask each host how many bytes it keeps of its runs, and yield (its name, these runs, its answer or error).

    With `remove`, it then deletes those runs that have no process on it, and frozen code that no other run needs.
    """
    for hosts in _rounds(runs):
        results = ask_all([place for place, _ in hosts.values()], partial(_ask, hosts, remove), anew=remove)
        for name, one in results.items():
            yield name, hosts[name][1], one


def _most_first(answer: Answer) -> int:
    """Return a sort key for (host, run ids, its answer or the error that it gave none): hosts that found more bytes
    come first, and silent hosts last.

    If several hosts share a disk, the caller uses only the first of their answers. That should be the one with most
    bytes, which counted the files before another host deleted them.
    """
    one = answer[2]
    return 1 if isinstance(one, LaunchError) else -sum(one.runs.values())


def _ask(hosts: Hosts, remove: bool, client: HostClient) -> Tidied:
    """Ask one host how many bytes its runs in `hosts`, and frozen code that no other run needs, take on its disk.

    With `remove`, the host deletes both after counting, except runs that have processes on it, which the answer names.
    """
    _, runs = hosts[client.place.host.name]
    return client.ask(Tidy(client.place.workdir, tuple(runs), remove), Tidied, limit_s=_LONG_S)


def _disks_apart(run: RunDir) -> bool:
    """Return whether each host of the run has a disk of its own; return True if the plan cannot be read any more."""
    with contextlib.suppress(LaunchError):
        attempt = newest(run)
        return attempt is None or plan_as(run, attempt.number, _Disks).disks_apart
    return True


def _rounds(runs: Sequence[RunDir]) -> list[Hosts]:
    """Return the hosts on which these runs ever were, in groups, of which one is asked after the other: {host name:
    (how to reach the host, ids of its runs)}.

    A host of the same name in another pool is in another group, as the names in a group are the keys.
    """
    asked: dict[tuple[SshHost, str], tuple[Place, list[RunId]]] = {}
    for run in runs:
        for place in places_ever(run).values():
            asked.setdefault((place.host, place.workdir), (place, []))[1].append(run.id)
    rounds: list[Hosts] = []
    for place, ids in asked.values():
        free = next((one for one in rounds if place.host.name not in one), None)
        if free is None:
            rounds.append(free := {})
        free[place.host.name] = (place, ids)
    return rounds
