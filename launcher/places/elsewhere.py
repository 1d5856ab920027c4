"""List the files that runs keep on other machines, for all kinds of clusters."""

from collections.abc import Sequence

from launcher.places.kinds import kind_named, of_kind
from launcher.places.place import KeptRemote
from launcher.run.attempts import attempts
from launcher.run.durable import readable
from launcher.run.layout import RunDir
from launcher.run.records import Intent


def kept_elsewhere(runs: Sequence[RunDir], *, remove: bool = False) -> list[KeptRemote]:
    """Return which files other machines keep for the runs; with `remove`, delete them, except those of a run that has
    not ended or has processes there.

    A machine that does not answer is in the list, with the reason.
    """
    by_kind: dict[str, list[RunDir]] = {}
    for run in runs:
        for kind in kinds_of(run):
            by_kind.setdefault(kind, []).append(run)
    places = {kind: of_kind(kind) for kind in by_kind}
    return [kept for kind, place in places.items() for kept in place.tidy(by_kind[kind], remove=remove)]


def kinds_of(run: RunDir) -> list[str]:
    """Return the kinds of clusters on which the run has had attempts, without the local one: clusters of these kinds
    have to be asked about the run, because its folder on this machine does not show everything.
    """
    intents = (readable(attempt.intent, Intent) for attempt in attempts(run))
    kinds = dict.fromkeys(intent.cluster_kind for intent in intents if intent is not None)
    return [kind for kind in kinds if (known := kind_named(kind)) is not None and known.asked]
