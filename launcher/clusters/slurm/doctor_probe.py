"""What `launch doctor slurm --try` runs on each node of its job: looks around, talks with the other, and leaves.

    srun ... python -m launcher.clusters.slurm.doctor_probe FOLDER

A node and the machine where it was asked for meet in the folder, which is that of runs: that they can is part of what
is tried.
"""

import contextlib
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.agent.interfaces import address_of
from launcher.agent.machine import this_machine
from launcher.agent.ports import HeldPort
from launcher.clusters.slurm.doctor_records import (
    Asked,
    Call,
    Door,
    Folder,
    Greeting,
    Report,
    launcher_version,
    read_stopped,
)
from launcher.clusters.slurm.hosts import addresses_of, hosts_of
from launcher.doctor.look_there import torch_of
from launcher.doctor.programs import text_of
from launcher.errors import LaunchError
from launcher.rundir.durable import read_record, write_record

_STEP_S = 0.02
_CONNECT_S = 3.0
_TALK_S = 40.0  # file systems that cache may show a new file that late
_FOR_TALKING = 0.6  # of the time that there is, at most; the rest is for torch


def main() -> None:
    """Leaves with 0 where the report is written."""
    folder = Folder(Path(sys.argv[1]))
    try:
        look_around(folder, os.environ["SLURMD_NODENAME"])
    except LaunchError as error:
        sys.exit(str(error))


def look_around(folder: Folder, me: str) -> None:
    asked = read_record(folder.asked, Asked)
    if asked is None:
        raise LaunchError(f"{folder.asked} is not there")
    began = time.monotonic()
    talk_until = began + min(_TALK_S, _FOR_TALKING * asked.limit_s)
    hosts = hosts_of(os.environ["SLURM_JOB_NODELIST"])
    others = [host for host in hosts if host != me]
    with contextlib.ExitStack() as listeners:
        doors = list(_doors(me, addresses_of(hosts)[me], asked.interface, listeners))
        greeting = Greeting(me, launcher_version(), platform.python_version(), tuple(doors))
        write_record(folder.greeting(me), greeting)
        _answer_the_clock(folder, me, talk_until)
        calls = [call for other in others for call in _calls(folder, me, other, talk_until)]
        write_record(folder.calls(me), calls)
        for other in others:
            _wait_for(folder, folder.calls(other), talk_until, other)  # it may still be about to call
    torch = torch_of(
        asked.rank_python, text_of("torch"), os.environ, max(1.0, began + asked.limit_s - time.monotonic())
    )
    write_record(folder.report(me), Report(me, tuple(calls), torch, len(this_machine(os.environ).gpus)))


def _doors(me: str, address: str, interface: str | None, listeners: contextlib.ExitStack) -> Iterator[Door]:
    """On the address that Slurm gives, and on that of the interface: a port as MASTER_PORT has, and any port."""
    places = {"": address}
    if interface is not None:
        try:
            places[interface] = address_of(interface)
        except LaunchError as error:
            yield Door(interface, error=error.lines[0])
    for name, where in places.items():
        for as_master in (True, False):
            try:
                port = _listen(me, where, as_master, listeners)
            except OSError as error:
                yield Door(name, where, error=f"cannot listen on {where}: {error.strerror or error}")
            else:
                yield Door(name, where, port)


def _listen(me: str, address: str, as_master: bool, listeners: contextlib.ExitStack) -> int:
    """Tell our name to whoever connects."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listeners.callback(listener.close)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if as_master:
        held = HeldPort(address)
        listeners.callback(held.release)
        listener.bind((address, held.number))
    else:
        listener.bind((address, 0))
    listener.listen()
    threading.Thread(target=_tell, args=(listener, me.encode()), daemon=True).start()
    return int(listener.getsockname()[1])


def _tell(listener: socket.socket, name: bytes) -> None:
    with contextlib.suppress(OSError):  # it is closed when all has been said
        while True:
            caller, _ = listener.accept()
            with caller:
                caller.sendall(name)


def _calls(folder: Folder, me: str, other: str, until: float) -> Iterator[Call]:
    there = _wait_for(folder, folder.greeting(other), until, other)
    greeting = read_record(folder.greeting(other), Greeting) if there else None
    if greeting is None:
        yield Call(me, other, error="it has not said where it listens")
        return
    for door in (door for door in greeting.doors if not door.error):
        yield _call(me, other, door)


def _call(me: str, other: str, door: Door) -> Call:
    began = time.monotonic()
    try:
        with socket.create_connection((door.address, door.port), timeout=_CONNECT_S) as line:
            name = line.recv(256)
    except OSError as error:
        said = error.strerror or str(error)
        return Call(me, other, door.interface, door.address, door.port, error=said)
    took_ms = (time.monotonic() - began) * 1000
    if name != other.encode():
        return Call(me, other, door.interface, door.address, door.port, error="somebody else answers there")
    return Call(me, other, door.interface, door.address, door.port, took_ms)


def _answer_the_clock(folder: Folder, me: str, until: float) -> None:
    """What the time is here, at once when asked."""
    if _wait_for(folder, folder.question(me), until):
        write_record(folder.time(me), time.time())


def _wait_for(folder: Folder, path: Path, until: float, writer: str = "") -> bool:
    """Until it is there, it is too late, or the node that would write it is known to have stopped.

    A folder that is listed anew shows what others have put into it.
    """
    while path.name not in os.listdir(folder.path):
        if time.monotonic() > until or writer in read_stopped(_text(folder.log)):
            return False
        time.sleep(_STEP_S)
    return True


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


if __name__ == "__main__":
    main()
