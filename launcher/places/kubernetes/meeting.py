"""Let the pods of one start find each other, by files in a folder on their shared volume.

Names and addresses are new at each start, so a waiting pod keeps its file fresh, and only fresh files count.
"""

import os
import time
from pathlib import Path

import msgspec

from launcher.errors import LaunchError
from launcher.run.durable import make_dir, readable, write_record

FOLDER = "JOB_LAUNCH_PODS_FOLDER"  # the variable that names it
YOUNG_S, LOOK_S = 5.0, 0.5


class PodRecord(msgspec.Struct, frozen=True):
    """One pod of a start."""

    host: str
    address: str


def stand_by(folder: Path, index: int) -> None:
    """Write this pod's file, which has to be repeated as long as the pod waits."""
    make_dir(folder)
    record = PodRecord(os.environ["JOB_LAUNCH_POD"], os.environ["JOB_LAUNCH_POD_ADDRESS"])
    write_record(folder / f"{index}.json", record)


def meet(folder: Path, count: int, within_s: float) -> dict[str, str]:
    """Return the address of each pod by its name, in the order of their indices, once all are there. Raises LaunchError
    where some are not in time. Ages are by the volume's own clock."""
    deadline = time.monotonic() + within_s
    while True:
        stand_by(folder, 0)
        files = [folder / f"{index}.json" for index in range(count)]
        now = files[0].stat().st_mtime
        young = [file for file in files if file.exists() and file.stat().st_mtime > now - YOUNG_S]
        found = [record for file in young if (record := readable(file, PodRecord)) is not None]
        if len(found) == count:
            return {record.host: record.address for record in found}
        if time.monotonic() >= deadline:
            raise LaunchError(f"{count - len(found)} of {count} pods did not come within {within_s:g} s")
        time.sleep(LOOK_S)
