"""Run on a host as text, by whatever Python it has (`python -I -c TEXT ARGUMENTS`): tells what the host offers.

The standard library alone, and nothing newer than Python 3.8 until the version has been looked at.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import socket
import stat
import sys
import time

TOO_OLD = 99
MARK = "launch-host: "


def main(arguments: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - it is asked of whatever Python a host has
        sys.exit(TOO_OLD)
    asked = json.loads(arguments)
    home = os.path.expanduser("~")
    workdir = os.path.join(home, os.path.expanduser(asked["workdir"]))
    there = _first_there(workdir)
    disk = os.statvfs(there)
    facts = {
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "tag": "{}-{}-{}".format(sys.implementation.cache_tag, platform.machine(), platform.libc_ver()[0] or "libc"),
        "torch": _version("torch"),
        "missing": [name for name in ("msgspec", "xxhash") if not _there(name)],
        "hostname": socket.gethostname(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id").strip(),
        "user": _user(),
        "address": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2],
        "workdir": workdir,
        "exposed": _exposed(workdir),
        "libraries": _names(os.path.join(workdir, "lib")),
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": sorted(int(name[6:]) for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)),
        "sockets": [line for line in _read("/proc/net/unix").splitlines() if "@launch/" in line],
        "disk_free": disk.f_bavail * disk.f_frsize,
        "inodes_free": disk.f_favail if disk.f_files else None,
        "writable": os.access(there, os.W_OK),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "clock": time.time(),
    }
    print(MARK + json.dumps(facts), flush=True)


def _first_there(path: str) -> str:
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _exposed(workdir: str) -> str:
    """The first of our folders that somebody else owns, or can put something into or take something out of."""
    for name in ("", "runs", "code", "lib"):
        path = os.path.join(workdir, name)
        try:
            found = os.stat(path)
        except OSError:
            continue
        open_to_all = found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX
        if open_to_all or found.st_uid not in (0, os.getuid()):
            return path.rstrip("/")
    return ""


def _version(package: str) -> str | None:
    from importlib import metadata  # late: after the version has been looked at

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _there(module: str) -> bool:
    from importlib import util  # late: after the version has been looked at

    return util.find_spec(module) is not None


def _user() -> str:
    import pwd  # late: after the version has been looked at

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _names(folder: str) -> list[str]:
    return sorted(os.path.basename(path) for path in glob.glob(glob.escape(folder) + "/*"))


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1])
