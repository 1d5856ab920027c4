"""Results come home: the logs, metrics and chosen checkpoints of a run on hosts, resumable and verified."""

from collections.abc import Iterable, Sequence

from launcher.clusters.mirror import fetch as mirror
from launcher.clusters.mirror import logs, tails
from launcher.clusters.ssh.host_client import HostClient, Place
from launcher.clusters.ssh.host_clients import ask_all
from launcher.clusters.ssh.messages import LIMIT_S, AskTails, Tails
from launcher.clusters.ssh.results.checkpoints import holders_of
from launcher.clusters.ssh.run_hosts import is_there, places_ever, places_of
from launcher.errors import LaunchError
from launcher.hostlink.parallel import failures
from launcher.rundir.layout import AttemptDir, RunDir


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
        mine = dict(known)
        more = True
        while more:
            question = AskTails(run.path.name, client.place.workdir, logs.FOLDERS, mine)
            answer, contents = client.ask_with_contents(question, limit_s=LIMIT_S)
            grown = client.expect(Tails, answer)
            for part, content in zip(grown.parts, contents, strict=True):
                tails.put(run.path, logs.FOLDERS, tails.Tail(part.name, part.at, content))
                mine[part.name] = part.at + part.size
            more = grown.more

    return failures(ask_all([*places], fetch_from))
