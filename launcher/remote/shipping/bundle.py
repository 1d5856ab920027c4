"""Build the bundle that is copied to a host: the launcher's own code and the compiled packages that it needs. It is
named by a digest of its content.
"""

import hashlib
import importlib.metadata
import io
import platform
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
# Of the trainer, what checkpoints are on disk; the rest is the user's to install, with torch.
_OURS = ("launcher/**/*.py", "trainer/__init__.py", "trainer/errors.py", "trainer/extras.py",
         "trainer/checkpoint_files/*.py")  # fmt: skip
COMPILED = ("msgspec", "xxhash")
_making = threading.Lock()


def own_tag() -> str:
    """Return this machine's tag, such as `cpython-312-x86_64-glibc`: Python version, processor and C library. The
    compiled packages installed here work on machines with the same tag.
    """
    return f"{sys.implementation.cache_tag}-{platform.machine()}-{platform.libc_ver()[0] or 'libc'}"


@cache
def digest(tag: str) -> str:
    """Return the digest of the bundle for hosts with this tag (Python version, processor and C library, as in
    `cpython-312-x86_64-glibc`).
    """
    whole = hashlib.sha256(tag.encode())
    for name, path in _files(tag):
        content = path.read_bytes()
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()[:24]


def archive(tag: str) -> bytes:
    """Return the bundle as a compressed archive, for hosts with this tag (Python version, processor, C library). It is
    made once for all hosts that ask for it at the same time.
    """
    with _making:
        return _archive(tag)


@cache
def _archive(tag: str) -> bytes:
    """Return the bundle as a compressed archive, for hosts with this tag (Python version, processor, C library)."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=6) as tar:
        for name, path in _files(tag):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _files(tag: str) -> Iterator[tuple[str, Path]]:
    """Yield (name in the bundle, path) of each file; compiled packages are included if `tag`, that of the machines for
    which the bundle is, equals this machine's.
    """
    for pattern in _OURS:
        for path in sorted(_ROOT.glob(pattern)):
            if "shipped_files" not in path.parts:
                yield str(path.relative_to(_ROOT)), path
    for package in COMPILED if tag == own_tag() else ():
        yield from _installed(package)


def _installed(package: str) -> Iterator[tuple[str, Path]]:
    """Yield (name in the bundle, path) of the importable files of an installed package, by its own list of files."""
    for file in sorted(importlib.metadata.files(package) or (), key=str):
        if file.parts[0] == package and file.suffix in (".py", ".so"):
            yield str(file), Path(str(file.locate()))
