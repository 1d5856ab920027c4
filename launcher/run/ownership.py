"""Check who owns a folder and who could replace it: nothing is stored or trusted where another user could change it."""

import os
import stat
from collections.abc import Collection
from pathlib import Path

from launcher.errors import BadInput

_MOST_LINKS = 40  # as the kernel has it


def own_part(common: Path) -> Path:
    """Return `common` if no other user can write to it or it does not exist, else its subfolder with this user's
    name.
    """
    try:
        status = common.stat()
    except (FileNotFoundError, NotADirectoryError):
        return common
    except PermissionError:  # another user's
        return common / _user()
    return common if _is_ours_alone(status) else common / _user()


def is_ours_alone(folder: Path) -> bool:
    """Return whether `folder` is a folder, not a link, that this user owns and no other user can write to."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and _is_ours_alone(status)


def refuse_exposed(
    path: Path, about: str, *hints: str, below: Path = Path("/"), owners: Collection[int] | None = ()
) -> None:
    """Raise BadInput if another user could remove or replace the folder at `path`, or write into it; `about` begins the
    message, and `hints` end it.

    That is so if a folder on the way from `below` to `path` belongs to anybody but this user, root or one of `owners`,
    or can be written to by others and is not sticky; `path` itself must not be writable for others even if it is
    sticky. Links on the way are checked too, and followed. A path that does not exist is accepted.

    If `owners` is None, any user may own these folders and let a group write to them, as in a container whose folder
    was given from outside.
    """
    trusted = None if owners is None else {0, os.geteuid(), os.stat("/").st_uid, *owners}  # of /: as a container has it
    if problem := _problem_of(Path(os.path.abspath(path)), Path(os.path.abspath(below)), trusted):
        raise BadInput(f"{about}: {problem}: others could put their code in the place of yours", *hints)


def refuse_strangers(path: Path, shown: str, says: str) -> None:
    """Raise BadInput if the file belongs to neither this user nor root, if its group or all users may write to it, or
    if it cannot be looked at.

    `shown` is its name in the message, and `says` the message's end, which tells what is in the file: "names commands
    that run as you".
    """
    try:
        status = path.stat()
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise BadInput(f"{shown}: {reason[:1].lower()}{reason[1:]}") from error
    if status.st_uid not in (0, os.geteuid()):
        raise BadInput(f"{shown}: is another user's, and {says}", "hint: use a copy")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadInput(f"{shown}: others can write it, and it {says}", f"hint: chmod go-w {shown}")


def _is_ours_alone(status: os.stat_result) -> bool:
    """Return whether this user owns the file with this status and no other user can write to it."""
    return status.st_uid == os.geteuid() and not _open_to_others(status)


def _problem_of(path: Path, below: Path, trusted: Collection[int] | None) -> str:
    """Return a text that names the first folder that another user could change, and says how, or "" if there is none.
    Each folder below `below` on the way to `path` is checked, `path` itself included, and where symbolic links lead.

    `trusted` are the user ids that may own folders; None trusts any.
    """
    at, left, links = Path(os.path.realpath(below)), list(path.relative_to(below).parts), 0
    open_to_others = False
    while left:
        at = Path(os.path.normpath(at / left.pop(0)))
        try:
            status = at.lstat()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return ""  # its use will report the error
        if trusted is not None and status.st_uid not in trusted:
            return f"{at}: belongs to another user ({status.st_uid})"
        if stat.S_ISLNK(status.st_mode):
            links += 1
            target = Path(os.readlink(at))
            at, left = at.parent, [*target.parts, *left]
            if links > _MOST_LINKS:
                return f"{path}: leads nowhere"
            continue
        open_to_others = bool(status.st_mode & stat.S_IWOTH) if trusted is None else _open_to_others(status)
        if open_to_others and not status.st_mode & stat.S_ISVTX:
            return f"{at}: other users can write to it"
    return f"{at}: other users can write to it" if open_to_others else ""


def _open_to_others(status: os.stat_result) -> bool:
    """Return whether other users may write to the file or folder with this status, by the rights of all or of a group
    that is not private to this user. A folder's sticky bit is not considered.
    """
    if not status.st_mode & stat.S_IWGRP or _is_private(status.st_gid):
        return bool(status.st_mode & stat.S_IWOTH)
    return True


def _is_private(group: int) -> bool:
    r"""Return whether this group can be taken to have no member but this user.

    The group must have the user's name, no other user among its members, and be no other user's primary group. Many
    systems give each user such a group. With a directory service one of both names may have the domain, LAB\alice or
    alice@lab; it is ignored for the user's own primary group. launcher.places.ssh.probe_there repeats this, because it
    runs where nothing of the launcher is installed.
    """
    import grp  # late: only a folder that a group can write to needs it
    import pwd  # late: only such a group needs it

    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    same = _without_domain(found.gr_name) == _without_domain(user.pw_name) and user.pw_gid == group
    if not (same or found.gr_name == user.pw_name) or not set(found.gr_mem) <= {user.pw_name}:
        return False
    return all(one.pw_gid != group or one.pw_uid == user.pw_uid for one in pwd.getpwall())


def _without_domain(name: str) -> str:
    r"""Return a user's or group's name without its domain: LAB\alice and alice@lab both give alice."""
    return name.rpartition("\\")[2].partition("@")[0]


def _user() -> str:
    """Return the user's name, or the user id if it has none."""
    import pwd  # late: only what is shared needs it

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user need not have a name
        return str(os.geteuid())
