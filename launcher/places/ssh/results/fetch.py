"""Fetch the logs, metrics and chosen checkpoints of a run from its hosts, resumable and verified."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from launcher.copies.mirror import fetch as mirror
from launcher.copies.mirror import logs, tails
from launcher.errors import LaunchError, Unreachable
from launcher.places.ssh.host_client import HostClient, Place
from launcher.places.ssh.host_clients import ask_all
from launcher.places.ssh.messages import MOST_OF_TAILS, AskTails, Tails
from launcher.places.ssh.results.checkpoints import holders_of
from launcher.places.ssh.run_hosts import is_there, places_ever, places_of
from launcher.remote.parallel import failures, reasons
from launcher.run.layout import AttemptDir, RunDir


def bring_logs(run: RunDir) -> None:
    """Copy what is new of the run's logs from its hosts, once; do nothing if the run has ended and all were copied
    before. Hosts that do not answer are left out: a later call copies their logs.
    """

    def bring(left: Sequence[AttemptDir]) -> dict[str, LaunchError]:
        """Copy what is new, and return the errors of hosts that could not be asked."""
        before = places_ever(run, left)
        return _bring(run, (before | {place.host.name: place for place in places_of(run)}).values())

    logs.bring_logs(run, is_there, bring)


def fetch(run: RunDir, checkpoint: str) -> list[str]:
    """Copy logs, metrics and a checkpoint to this machine; return lines of text for the user about them.

    `checkpoint` is `newest`, which copies the best one too, `none`, or a step. If the newest attempt is not
    on a pool, it writes its checkpoints to this machine's disk: then `newest` copies none, and a step raises Refused
    until the run has ended. Raise Unreachable if a host's logs could not be copied.
    """
    return mirror.fetch(
        run,
        checkpoint,
        theirs=is_there,
        bring_logs=lambda: _bring(run.whole, places_ever(run.whole).values()),
        holders=lambda: holders_of(run),
    )


def bring_newest(run: RunDir) -> None:
    """Copy to this machine the newest checkpoint of the run, from which it would continue on another cluster, its best
    one, and what is new of its logs. Hosts that cannot be reached are left out, for logs without an error.

    Raise Unreachable if no checkpoint is found although one may be on a host that does not answer, unless a user has
    allowed to begin without, and NotTransferred if none that is found can be copied.
    """
    mirror.bring_newest(run, holders_of(run))
    bring_logs(run)


def bring_outputs(run: RunDir, draft: Path, frozen: Collection[str]) -> list[Path]:
    """Copy the files that ranks wrote beside their code on each host to folders below `draft`; return the folder of
    each host that has any.

    `frozen` names the files of the code itself, which are not copied. Raise Unreachable if a host does not answer or
    its files could not be copied, after copying those of the others.
    """
    known = {f"{run.code.name}/{name}": logs.ALL for name in frozen}
    places = places_ever(run)
    folders = {name: draft / f"{number:03d}" / name.replace("/", "_") for number, name in enumerate(places)}

    def fetch_from(client: HostClient) -> None:
        """Copy the outputs of one host."""
        _follow(client, run, (run.code.name,), known, folders[client.place.host.name])

    if troubles := failures(ask_all([*places.values()], fetch_from)):
        raise Unreachable(*reasons(troubles), f"hint: launch fetch {run.id} --outputs again, once they answer")
    return [folder / run.code.name for folder in folders.values() if (folder / run.code.name).is_dir()]


def _bring(run: RunDir, places: Iterable[Place]) -> dict[str, LaunchError]:
    """Copy what the run's logs and metrics on the hosts have beyond the copies here; return the errors of hosts that
    could not be asked, by the host's name.
    """
    known, folders = logs.known(run, is_there), logs.folders_of(run)
    return failures(ask_all([*places], lambda client: _follow(client, run, folders, known, run.path)))


def _follow(client: HostClient, run: RunDir, folders: tuple[str, ...], known: Mapping[str, int], root: Path) -> None:
    """Copy what is new in the files of the run's `folders` on a host to below `root`.

    `known` has, by file, how many bytes at the file's beginning are not new and are not copied.
    """

    def ask(mine: dict[str, int]) -> tuple[list[tails.Tail], bool]:
        """Return (the next new parts of files, whether there are more)."""
        question = AskTails(run.id, client.place.workdir, folders, mine)
        limit_s = client.limits.soon_s
        grown, files = client.ask_with_files(question, Tails, lambda one: one.parts, MOST_OF_TAILS, limit_s)
        return files, grown.more

    tails.bring(root, folders, known, ask, client.place.host.name)
