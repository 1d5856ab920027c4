"""List and remove what runs keep on login nodes and their clusters: the `launch` there does it."""

from collections.abc import Sequence

from launcher.ids import RunId
from launcher.places.login.address import Address
from launcher.places.login.files import remote_runs
from launcher.places.login.lines import ask
from launcher.places.login.messages import TidyRuns
from launcher.places.place import KeptRemote
from launcher.remote.parallel import answers, failures, for_all
from launcher.run.layout import RunDir

_LONG_S = 1200.0  # it may have to ask further hosts, whose disks are walked
_MOST_WHERE = 200

Names = dict[RunId, RunId]  # by what runs are called there: what they are called here


def tidy(runs: Sequence[RunDir], *, remove: bool) -> list[KeptRemote]:
    asked: dict[Address, Names] = {}
    for run in runs:
        for remote in remote_runs(run):
            asked.setdefault(remote.address, {})[remote.there] = run.id
    addresses = {str(address): address for address in asked}

    def work(_: str, address: Address) -> list[KeptRemote]:
        request = TidyRuns(address.folder, tuple(asked[address]), remove)
        return ask(address, request, list[KeptRemote], timeout_s=_LONG_S)

    results = for_all(addresses, work)
    found = [
        _named(addresses[name], one, asked[addresses[name]]) for name, told in answers(results).items() for one in told
    ]
    return found + [
        KeptRemote(addresses[name].login, dict.fromkeys(asked[addresses[name]].values(), 0), silent=why.lines[0])
        for name, why in failures(results).items()
    ]


def _named(address: Address, told: KeptRemote, names: Names) -> KeptRemote:
    """Return it under the names that the runs have here, without runs that it was not asked about."""
    return KeptRemote(
        f"{address.login}:{told.where[:_MOST_WHERE]}" if told.where else address.login,
        {names[run]: size for run, size in told.runs.items() if run in names},
        told.code,
        tuple(names[run] for run in told.live if run in names),
        told.silent,
    )
