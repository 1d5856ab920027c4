"""Which of the hosts that a run has ever been on has which of its checkpoints."""

from collections.abc import Mapping

from launcher.clusters.keeping import news
from launcher.clusters.mirror.fetch import checkpoint_folder
from launcher.clusters.mirror.holders import Holders
from launcher.clusters.ssh.host_client import HostClient
from launcher.clusters.ssh.host_clients import ask_all
from launcher.clusters.ssh.results.host_disk import HostDisk
from launcher.clusters.ssh.run_hosts import gone, places_ever
from launcher.errors import LaunchError
from launcher.hostlink.parallel import answers, failures, for_all
from launcher.rundir.layout import RunDir
from trainer.checkpoint_files.partial import Held

Disks = dict[str, tuple[HostDisk, tuple[Held, ...]]]  # by host: its disk, and what that has


def holders_of(run: RunDir, mine: Disks | None = None) -> Holders:
    """Those of all hosts that can be asked, and of these, which have been; who cannot is told to whoever listens."""
    folder = checkpoint_folder(run)
    mine = mine or {}

    def ask(client: HostClient) -> tuple[HostDisk, tuple[Held, ...]]:
        disk = HostDisk(client, run.path.name, folder)
        return disk, disk.held()

    results = ask_all([place for name, place in places_ever(run).items() if name not in mine], ask)
    silent = failures(results)
    for name, trouble in silent.items():
        news.say(f"{name}: may have a newer checkpoint, and could not be asked: {trouble.lines[0]}")
    disks = answers(results) | mine
    return Holders(
        run.path / folder,
        {name: disk for name, (disk, _) in disks.items()},
        {name: held for name, (_, held) in disks.items()},
        silent,
        gone=bool(gone(run)),
    )


def disks_of(clients: Mapping[str, HostClient], run_id: str, folder: str) -> tuple[Disks, dict[str, LaunchError]]:
    """What these hosts have, over connections that there are; and those that failed."""
    disks = {name: HostDisk(one, run_id, folder) for name, one in clients.items()}
    listed = for_all(disks, lambda _, disk: (disk, disk.held()))
    return answers(listed), failures(listed)
