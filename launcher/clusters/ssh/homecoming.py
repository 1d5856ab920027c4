"""Results come home: the logs, metrics and chosen checkpoints of a run on hosts, resumable and verified."""

from launcher.clusters.ssh import mirror, supplies
from launcher.clusters.ssh.stocks import checkpoint_folder, places_ever, stocks_of
from launcher.errors import Refused, Unreachable
from launcher.rundir.layout import RunDir
from trainer.checkpoint_files import partial


def fetch(run: RunDir, checkpoint: str) -> list[str]:
    """Bring home logs, metrics and a checkpoint: `newest`, `none`, or a step; gives a line for each thing."""
    before = _bytes(run)
    troubles = mirror.fetch(run)
    lines = [f"logs and metrics, {_bytes(run) - before:,} new bytes"]
    if checkpoint != "none":
        step = None if checkpoint == "newest" else int(checkpoint)
        lines += _fetch_checkpoint(run, step)
    if troubles:
        hint = f"hint: launch fetch {run.path.name} again brings the rest"
        raise Unreachable(*(line for one in troubles.values() for line in one.lines[:1]), hint)
    return lines


def _fetch_checkpoint(run: RunDir, step: int | None) -> list[str]:
    folder = checkpoint_folder(run)
    stocks, letters, _ = stocks_of(run, places_ever(run), folder)
    home = run.path / folder
    wanted = supplies.newest_whole([*stocks.values(), partial.inventory(home)], step)
    if wanted is None and step is not None:
        raise Refused(f"{run.path.name} has no whole checkpoint of step {step} on the hosts that answer")
    if wanted is None:
        return ["no checkpoint yet"]
    count = supplies.bring_home(wanted, stocks, letters, run.path.name, folder, home)
    place = home / f"step-{wanted.step:08d}"
    return [f"checkpoint of step {wanted.step}, {f'{count} files' if count else 'here already'}: {place}"]


def _bytes(run: RunDir) -> int:
    return sum(path.stat().st_size for name in mirror.LOGS for path in (run.path / name).rglob("*") if path.is_file())
