"""Answer the questions of `launch doctor --try` through a folder, on each node of the trial's job.

python -m launcher.programs trial KIND FOLDER SECONDS NODE
"""

import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from launcher.errors import LaunchError
from launcher.health import machine_there
from launcher.health.session import read_answer
from launcher.node.machine import this_machine
from launcher.places.batch.batch import resolved
from launcher.places.batch.cluster import queue_of
from launcher.places.batch.trial.checks import Hello, NodeReport, launcher_version
from launcher.places.batch.trial.mailbox import AT_WORK, file_of, read_end
from launcher.run.durable import write_record
from launcher.wire.interfaces import address_of

_STEP_S = 0.02


def answer_questions(folder: Path, limit_s: float, me: str, address: str) -> None:
    """Write this node's answer number 0, unasked: its versions, clock and addresses. Then wait for the files with
    questions to it, one after the other, and write a file with the answer to each, such as about its torch and GPUs.

    Return once `limit_s` has passed or the file that says that the trial is at work is gone. `me` and `address` are the
    batch system's name and address of this node.
    """
    until = time.monotonic() + limit_s
    interface = (folder / AT_WORK).read_text()
    write_record(folder / f"{file_of(me, 0)}.said", _hello(address, interface))
    for number in count(1):
        while (asked := read_end(folder / f"{file_of(me, number)}.asked")) is None:
            if time.monotonic() >= until or read_end(folder / AT_WORK) is None:
                return
            time.sleep(_STEP_S)
        said: object
        match words := read_answer(asked, dict[str, Any]):
            case {"do": "hello"}:
                said = _hello(address, interface)
            case {"do": "report", "python": python, "limit_s": limit}:
                torch = machine_there.torch_of(python, os.environ, limit)
                said = NodeReport(torch, len(this_machine(os.environ).gpus))
            case _:
                said = asdict(machine_there.answer(words))
        write_record(folder / f"{file_of(me, number)}.said", said)


def _hello(address: str, interface: str) -> Hello:
    """Return the node's answer about itself: its versions, its clock and its addresses. `address` is the one by which
    the batch system names the node, and `interface` the network interface whose address the trial asks for, or "".
    """
    addresses, error = {"": address}, ""
    if interface:
        try:
            addresses[interface] = address_of(interface)
        except LaunchError as found:
            error = found.lines[0]
    return Hello(launcher_version(), platform.python_version(), time.time(), addresses, error)


def main(argv: Sequence[str]) -> None:
    """Answer the questions to the node NODE that appear in FOLDER, for at most SECONDS, or until the trial is over.

    `argv` is KIND FOLDER SECONDS NODE, where KIND names the batch system, such as `slurm`. An error that prevents
    answers is printed, and the exit code is then 1.
    """
    os.umask(0o077)
    kind, folder, limit_s, me = argv
    try:
        address = queue_of(kind).hosts().get(me) or resolved(me, "hint: nodes have to know each other by name")
        answer_questions(Path(folder), float(limit_s), me, address)
    except LaunchError as error:
        sys.exit(str(error))
