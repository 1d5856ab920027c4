"""Install the launcher on a host: this file is run there as text (`python -I -c TEXT ARGUMENTS`, with an archive on
stdin), so it uses the standard library only.

The result is a small virtual environment, named by the digest of its content.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv


def main(arguments: str) -> None:
    """Create the virtual environment that `arguments` describe, unless it exists, and print a line that confirms it.

    They are a JSON object: the environment gets the path `lib/DIGEST` in the folder `workdir`, where DIGEST is the
    value of `digest`; if `theirs` is true, the packages of the host's Python can be used in it, too.
    """
    asked = json.loads(arguments)
    os.umask(0o077)
    folder = os.path.join(asked["workdir"], "lib")
    os.makedirs(folder, exist_ok=True)
    place = os.path.join(folder, asked["digest"])
    held = alone(os.path.join(folder, ".lock"))
    if not os.path.isdir(place):
        _make(place, folder, asked)
    if held is not None:
        os.close(held)
    print("launch-there", flush=True)


def alone(lock: str, patience_s: float = 60.0) -> int | None:
    """Return a descriptor that holds the file lock, so that only one process at a time installs.

    Return None if the lock is not free within `patience_s`, or if the file system has no locks; the caller then
    installs without it, because two processes that install at the same time do no harm.
    """
    until, held = time.monotonic() + patience_s, os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() >= until:
                os.close(held)
                return None
        time.sleep(0.1)


def _make(place: str, folder: str, asked: dict[str, object]) -> None:
    """Create the environment in a draft in `folder`, unpack the archive into it, check that it can import the launcher,
    and rename it to the path `place`, unless another process has made that meanwhile.

    `asked` are the program's decoded arguments; with its key `theirs`, the packages of the host's Python can be used
    too. The draft is deleted in any case; an exception means that nothing was installed.
    """
    draft = tempfile.mkdtemp(prefix=".tmp-", dir=folder)
    try:
        home = os.path.join(draft, "home")
        venv.create(home, symlinks=True, with_pip=False)
        packages = os.path.join(home, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
        if asked["theirs"]:
            _borrow(packages)
        unpack(packages)
        check(os.path.join(home, "bin", "python"))
        try:
            os.rename(home, place)
        except OSError:
            if not os.path.isdir(place):  # else another process was quicker
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _borrow(packages: str) -> None:
    """Let the new environment, whose own packages are in the folder `packages`, import the packages installed for this
    Python where it has none itself: compiled ones, such as msgspec, which the sender does not have for this Python.
    """
    import site  # late: only where our packages do not fit

    folders = [*site.getsitepackages(), site.getusersitepackages()]
    with open(os.path.join(packages, "theirs.pth"), "w") as file:
        file.write("\n".join(folder for folder in folders if os.path.isdir(folder)) + "\n")


def unpack(packages: str) -> None:
    """Unpack the archive on stdin into the folder `packages`; exit with an error for an entry that is no regular file
    or whose name would lead out of the folder.
    """
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
        for member in archive:
            parts = member.name.split("/")
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or {"", ".", ".."} & set(parts):
                raise SystemExit(f"launch: {member.name!r} is no file of an archive of ours")
            path = os.path.join(packages, *parts)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file)


def check(python: str) -> None:
    """Exit with an error unless the interpreter at the path `python` can import the launcher and the packages that it
    needs.
    """
    on_host = [f"launcher.places.ssh.host.{part}" for part in ("host_supervisor", "server", "receive")]
    names = ["launcher.node.node", "launcher.supervisor.__main__", *on_host, "msgspec", "xxhash"]
    words = [python, "-P", "-c", "import " + ", ".join(names)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("launch: " + (done.stderr.strip().splitlines() or ["no text"])[-1])


if __name__ == "__main__":
    main(sys.argv[1])
