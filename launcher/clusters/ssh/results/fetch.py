"""Results come home: the logs, metrics and chosen checkpoints of a run on hosts, resumable and verified."""

from collections.abc import Iterable, Sequence

from launcher.clusters.mirror import fetch as mirror
from launcher.clusters.mirror import logs, tails
from launcher.clusters.ssh.host_client import HostClient, Place
from launcher.clusters.ssh.host_clients import ask_all
from launcher.clusters.ssh.messages import LIMIT_S, MOST_OF_TAILS, AskTails, Tails
from launcher.clusters.ssh.results.checkpoints import holders_of
from launcher.clusters.ssh.run_hosts import is_there, places_ever, places_of
from launcher.errors import LaunchError
from launcher.hostlink.parallel import failures
from launcher.rundir.layout import AttemptDir, RunDir

_MOST_AT_ONCE = 16 << 30
_MOST_ANSWERS = 4096  # of eight mebibytes or of a few thousand files each


def bring_logs(run: RunDir) -> None:
    """Copy what is new of the logs, until the run has ended and all is here."""

    def bring(left: Sequence[AttemptDir]) -> dict[str, LaunchError]:
        before = places_ever(run, left)
        return _bring(run, (before | {place.host.name: place for place in places_of(run)}).values())

    logs.bring_logs(run, is_there, bring)


def fetch(run: RunDir, checkpoint: str) -> list[str]:
    """Bring home logs, metrics and a checkpoint: `newest` with the best, `none`, or a step; a line for each thing."""
    return mirror.fetch(
        run,
        checkpoint,
        theirs=is_there,
        bring_logs=lambda: _bring(run, places_ever(run).values()),
        holders=lambda: holders_of(run),
    )


def bring_newest(run: RunDir) -> None:
    """The run is to go on somewhere else: what it would go on from is here, and the logs where they can be had."""
    mirror.bring_newest(run, holders_of(run))
    bring_logs(run)


def _bring(run: RunDir, places: Iterable[Place]) -> dict[str, LaunchError]:
    """What is new on these hosts; gives those that could not be asked."""
    known = logs.known(run, is_there)

    def fetch_from(client: HostClient) -> None:
        mine, left = dict(known), _MOST_AT_ONCE
        for _ in range(_MOST_ANSWERS):
            question = AskTails(run.id, client.place.workdir, logs.FOLDERS, mine)
            grown, files = client.ask_with_files(question, Tails, lambda one: one.parts, MOST_OF_TAILS, LIMIT_S)
            brought = False
            for tail in files:
                if tail.at != mine.get(tail.name, 0):
                    raise client.confused(f"{tail.name[:100]!r} from byte {tail.at} on was not asked for")
                try:
                    tails.put(run.path, logs.FOLDERS, tail)
                except LaunchError as error:
                    raise LaunchError(f"{client.place.host.name}: {error}") from error
                brought = brought or bool(tail.content) or tail.name not in mine
                mine[tail.name] = tail.at + len(tail.content)
                left -= len(tail.content)
            if left <= 0:
                break
            if not grown.more or not brought:
                return
        raise LaunchError(f"{client.place.host.name}: has more logs than are brought at once")

    return failures(ask_all([*places], fetch_from))
