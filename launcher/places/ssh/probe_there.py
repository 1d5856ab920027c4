"""Print what a host has; this text is sent to it and run by any Python there (`python -I -c TEXT ARGUMENTS`).

It uses only the standard library, and nothing newer than Python 3.8 until the version was checked.
"""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import sys
import time

TOO_OLD = 99
MARK = "launch-host: "
_MOST_LINKS = 40  # as the kernel has it
_PLENTY = 1 << 60  # of what has no end: some file systems in a cloud have 2**63 bytes and more


def main(arguments: str) -> None:
    """Print the facts about this host as JSON; exit with TOO_OLD if its Python is too old.

    `arguments` is a JSON object with the folder for runs, `workdir`.
    """
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
        "missing": [name for name in ("msgspec", "xxhash") if not _has_module(name)],
        "hostname": os.uname().nodename,
        "boot_id": _read("/proc/sys/kernel/random/boot_id").strip(),
        "user": _user(),
        "address": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2],
        "workdir": workdir,
        "exposed": _exposed(workdir),
        "libraries": _names(os.path.join(workdir, "lib")),
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": sorted(int(name[6:]) for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)),
        "sockets": [line for line in _read("/proc/net/unix").splitlines() if "@launch/" in line],
        "disk_free": min(disk.f_bavail * disk.f_frsize, _PLENTY),
        "inodes_free": min(disk.f_favail, _PLENTY) if disk.f_files else None,
        "writable": os.access(there, os.W_OK),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "clock": time.time(),
    }
    print(MARK + json.dumps(facts), flush=True)


def _first_there(path: str) -> str:
    """Return the folder, or if it does not exist, the first folder above it that does."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _exposed(workdir: str) -> str:
    """Return the first folder in which other users could replace the launcher's files: one on the path of `workdir` or
    of its subfolders `runs`, `code` and `lib`. Return "" if there is none.

    This repeats launcher.run.ownership, which is not on the host yet.
    """
    return next(
        filter(None, (_open_on_the_way(os.path.join(workdir, name)) for name in ("", "runs", "code", "lib"))), ""
    )


def _open_on_the_way(path: str) -> str:
    """Return the first folder or link on the path, links followed, that another user could change; "" if there is none
    before the path ends or stops existing. Return the path itself if it has too many links.

    These are folders and links whose owner is neither this user nor root, and folders that others, or a group other
    than the user's private one, may write. The latter are passed over if they have the sticky bit, except the last.
    """
    trusted = {0, os.getuid(), os.stat("/").st_uid}  # in a container the real root may look like nobody
    at, left, links, is_open = "/", os.path.abspath(path).split("/"), 0, False
    while left:
        at = os.path.normpath(os.path.join(at, left.pop(0)))
        try:
            found = os.lstat(at)
        except OSError:
            return ""
        if found.st_uid not in trusted:
            return at
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return path.rstrip("/")
            target = os.readlink(at)
            at, left = "/" if target.startswith("/") else os.path.dirname(at), target.split("/") + left
            continue
        is_open = bool(found.st_mode & 0o002 or (found.st_mode & 0o020 and not _is_own_group(found.st_gid)))
        if is_open and not found.st_mode & stat.S_ISVTX:
            return at
    return at if is_open else ""


def _is_own_group(group: int) -> bool:
    """Return whether the group, a gid, is the user's private one: it has the user's name, and no other member.

    This repeats launcher.run.ownership, which is not on the host yet.
    """
    import grp  # late: after the version has been looked at
    import pwd  # late: after the version has been looked at

    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    same = _without_domain(found.gr_name) == _without_domain(user.pw_name) and user.pw_gid == group
    if not (same or found.gr_name == user.pw_name) or not set(found.gr_mem) <= {user.pw_name}:
        return False
    return all(one.pw_gid != group or one.pw_uid == user.pw_uid for one in pwd.getpwall())


def _without_domain(name: str) -> str:
    """Return a user's name without its domain, which may stand before a backslash or after an @."""
    return name.rpartition("\\")[2].partition("@")[0]


def _version(package: str) -> str | None:
    """Return the version of an installed package, or None if it is not installed.

    The folder of its metadata names the version as a rule; Python's own search is slower than the rest of this program.
    """
    for folder in sys.path:
        for name in _names(folder):
            if name.startswith(f"{package}-") and name.endswith(".dist-info"):
                return name[len(package) + 1 : -len(".dist-info")]
    if not _has_module(package):
        return None
    from importlib import metadata  # late: see above

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _has_module(module: str) -> bool:
    """Return whether the Python that runs this finds a top-level module of this name; it is not imported."""
    from importlib import util  # late: after the version has been looked at

    return util.find_spec(module) is not None


def _user() -> str:
    """Return the user's name, or the user id if it has none."""
    import pwd  # late: after the version has been looked at

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _names(folder: str) -> list[str]:
    """Return the sorted names in a folder, without hidden ones, or an empty list if it cannot be listed."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _read(path: str) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1])
