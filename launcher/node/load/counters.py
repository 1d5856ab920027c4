"""Read the counters of the whole machine: cores, memory, disks, networks."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_SECTOR = 512
_WORD = 4  # InfiniBand counts in these


class MachineUse(NamedTuple):
    """What the machine has used since its boot; `memory` is the current value."""

    cpu_s: float = 0.0
    memory: int = 0
    memory_total: int = 0
    received: int = 0
    sent: int = 0
    read: int = 0
    written: int = 0


def machine_use(interface: str | None, root: Path = Path("/")) -> MachineUse:
    """Return the machine's use since boot; the network interface `interface` is always counted.

    Counters that the kernel does not report are 0.
    """
    memory = {name: int(rest.split()[0]) * 1024 for name, rest in _pairs(root / "proc/meminfo") if rest.split()}
    total = memory.get("MemTotal", 0)
    received, sent = _network(interface, root)
    read, written = _disks(root)
    in_use = max(0, total - memory.get("MemAvailable", total))
    return MachineUse(_cpu_s(root), in_use, total, received, sent, read, written)


def _cpu_s(root: Path) -> float:
    """Return the seconds of processor time used by all cores since boot."""
    for line in _lines(root / "proc/stat"):
        words = line.split()
        if words[0] == "cpu":
            user, nice, system, _, _, *more = map(int, words[1:])
            return (user + nice + system + sum(more[:3])) / _TICKS  # guests are in user
    return 0.0


def _network(interface: str | None, root: Path) -> tuple[int, int]:
    """Return (bytes received, bytes sent) by physical devices, and by `interface` if it is virtual, such as a bond or a
    container's.

    The devices below `interface` are not counted twice.
    """
    folder = root / "sys/class/net"
    below = {name.removeprefix("lower_") for name in _names(folder / (interface or "-")) if name.startswith("lower_")}
    devices = {name for name in _names(folder) if (folder / name / "device").exists()} - below
    wanted = devices | ({interface} if interface else set())
    received = sent = 0
    for name, rest in _pairs(root / "proc/net/dev"):
        if name in wanted:
            fields = rest.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*/counters")):
        received += _number(port / "port_rcv_data") * _WORD
        sent += _number(port / "port_xmit_data") * _WORD
    return received, sent


def _disks(root: Path) -> tuple[int, int]:
    """Return (bytes read, bytes written) by physical disks, without devices built on them, which would count twice."""
    read = written = 0
    blocks = root / "sys/block"
    for line in _lines(root / "proc/diskstats"):
        fields = line.split()
        if len(fields) > 9 and (blocks / fields[2] / "device").exists():
            read, written = read + int(fields[5]) * _SECTOR, written + int(fields[9]) * _SECTOR
    return read, written


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line `name: value` of a file."""
    for line in _lines(path):
        name, colon, rest = line.partition(":")
        if colon:
            yield name.strip(), rest


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, or an empty list if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, or an empty list if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _number(path: Path) -> int:
    """Return the number in a file, or 0 if the file holds none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
