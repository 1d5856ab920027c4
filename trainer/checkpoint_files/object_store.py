"""Checkpoints in an object store, or any file system of fsspec: a folder per save, its manifest written last.

URL/RUN/step-00001200.3f9a1c2b4d5e/rank-00000.data ...   each file is complete or absent
                                   MANIFEST.json         written after all others; a checkpoint exists from then on
"""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from trainer.checkpoint_files import partial
from trainer.checkpoint_files.durable import make_folder, sync_folder
from trainer.checkpoint_files.layout import MANIFEST, folder_name, parse_folder_name, waiting_name
from trainer.checkpoint_files.manifest import Manifest, decode
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged, TrainerError
from trainer.extras import install_hint

_PIECE_BYTES = 1 << 20
_LONGEST = 300  # characters of what a store says
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+")


class StoreFailed(TrainerError):
    """Raised if the store cannot be reached, refuses a request, or lacks the requested file."""


class PackageMissing(StoreFailed):
    """Raised if the Python package for this kind of store is not installed; a retry cannot succeed."""


def is_url(path: str) -> bool:
    """Return whether this is an address for fsspec, such as s3://bucket/prefix, and not a path."""
    return _URL.fullmatch(path) is not None


def save_name(manifest: Manifest) -> str:
    """Return the folder name of a save, made of step and nonce, such as `step-00001200.3f9a1c2b4d5e`.

    Two saves of one step have different names, so that neither overwrites the other.
    """
    return f"{folder_name(manifest.step)}.{manifest.nonce}"


def package_problem(url: str) -> tuple[str, str] | None:
    """Return why fsspec cannot open the address, such as a missing package, and a hint; None if it can."""
    try:
        from fsspec.registry import known_implementations, registry  # late: of use only where a store is named
    except ImportError:
        return "fsspec is not installed", install_hint("objectstore").removeprefix("hint: ")
    protocol = url.partition("://")[0]
    if protocol in registry:
        return None
    known = known_implementations.get(protocol)
    if known is None:
        return f"fsspec does not support {protocol}://", "expected s3://, gs://, abfs:// or file://"
    package = known["class"].partition(".")[0]
    if find_spec(package) is None:
        return f"{package} is not installed, which {protocol}:// needs", f"{sys.executable} -m pip install {package}"
    return None


class ObjectStore:
    """The saves below the address `url`, each in a folder named by its step and its random name (nonce).

    Methods wait for the network, and raise StoreFailed in place of any error of the store's package. `clean` is a
    function that removes secrets from the text of such an error. Credentials come from the environment, as the store's
    own package reads it.
    """

    def __init__(self, url: str, clean: Callable[[str], str] = str) -> None:
        self.url, self._clean = url.rstrip("/"), clean
        if problem := package_problem(url):
            raise PackageMissing(f"{url}: {problem[0]}\nhint: {problem[1]}")
        from fsspec.core import url_to_fs  # late: of use only where a store is named

        try:
            self._fs, root = url_to_fs(self.url, skip_instance_cache=True)
        except Exception as error:
            raise self._failed(error) from error
        self._root = str(root).rstrip("/")
        self._known: dict[str, bytes] = {}  # manifests, which never change

    def folders(self) -> dict[str, int]:
        """Return the folder name of each save in the store, finished or not, with its step."""
        found = {}
        for name in self._names(self._root):
            parsed = parse_folder_name(name.partition(".")[0])
            if parsed is not None and parsed[0] == "step":
                found[name] = parsed[1]
        return found

    def saves(self) -> list[Held]:
        """Return the saves in the store that have an undamaged manifest, oldest first, each with the files that it has.

        Files are checked by their sizes; their bytes are not read.
        """
        found = [held for name in self.folders() if (held := self._held(name)) is not None]
        return sorted(found, key=lambda held: (held.step, held.attempt, held.saved_unix_s))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each file of a save in the store, by name; {} if there is no such save."""
        with self._asking():
            self._fs.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                listed = self._fs.ls(f"{self._root}/{folder}", detail=True)
                return {_last(one["name"]): int(one["size"] or 0) for one in listed if one["type"] == "file"}
        return {}

    def manifest(self, folder: str) -> bytes:
        """Return the encoded manifest of a save. Raises CheckpointDamaged if it is not what was written."""
        if folder not in self._known:
            data = b"".join(self.pieces(folder, MANIFEST))
            if save_name(decode(data)) != folder:
                raise CheckpointDamaged(f"{self.url}/{folder}: the manifest is of another save")
            self._known[folder] = data
        return self._known[folder]

    def pieces(self, folder: str, name: str) -> Iterator[bytes]:
        """Yield the bytes of the file `name` in the save's `folder`, piece by piece.

        Raises StoreFailed if it cannot be read.
        """
        with self._asking():
            file = self._fs.open(f"{self._root}/{folder}/{name}", "rb")
        with contextlib.closing(file):
            while True:
                with self._asking():
                    piece = file.read(_PIECE_BYTES)
                if not piece:
                    return
                yield piece

    def put(self, folder: str, name: str, pieces: Iterable[bytes]) -> None:
        """Write the file `name` of the save in `folder`; it exists in the store once this returns.

        If `pieces` raises, no part of it exists.
        """
        path = f"{self._root}/{folder}/{name}"
        with self._asking():
            if not self._fs.async_impl:  # else it is an object store, where no folder has to be made
                self._fs.makedirs(f"{self._root}/{folder}", exist_ok=True)
            file = self._fs.open(path, "wb", autocommit=False)
            self._fs.transaction.files.clear()  # it is committed here, and not by a transaction
        try:
            for piece in pieces:
                with self._asking():
                    file.write(piece)
            with self._asking():
                file.close()
                file.commit()
        except BaseException:
            # Some file systems write in place; and a file that is open still would be flushed when it is collected.
            for undo in (file.discard, lambda: self._fs.rm_file(path), lambda: setattr(file, "closed", True)):
                with contextlib.suppress(Exception):  # the first error is the one to raise
                    undo()
            raise

    def remove(self, folder: str) -> None:
        """Delete a save: first its manifest, so that the remaining files are not taken for a checkpoint."""
        path = f"{self._root}/{folder}"
        self._known.pop(folder, None)
        with self._asking():
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(f"{path}/{MANIFEST}")
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(path, recursive=True)

    def bring(self, held: Held, folder: Path) -> None:
        """Download the save `held` into a local folder of checkpoints, and compare checksums with its manifest.

        Files of this save that are in the local folder are not downloaded again. Raises CheckpointDamaged if a file in
        the store is missing or differs from the manifest, and OSError if the disk or the network fails, or if the
        folder has another save of the same step.
        """
        if held.missing:
            raise CheckpointDamaged(f"{self.url}/{held.folder}: {', '.join(held.missing)} missing, or of another size")
        data, name = self.manifest(held.folder), folder_name(held.step)
        draft = folder / waiting_name(name, held.digest)
        into = folder if _held_in(folder, held) is not None else draft
        make_folder(into)
        mine = _held_in(into, held)
        try:
            for missing in held.present if mine is None else mine.missing:
                partial.receive(into, data, missing, self.pieces(held.folder, missing))
        except CheckpointDamaged:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        if into == draft:
            os.rename(draft / name, folder / name)
            sync_folder(folder)
            draft.rmdir()

    def _held(self, name: str) -> Held | None:
        """Return the save in the folder `name` with the files that are in it; None without an undamaged manifest."""
        sizes = self.sizes(name)
        if MANIFEST not in sizes:
            return None
        try:
            data = self.manifest(name)
        except CheckpointDamaged:
            return None
        except StoreFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None  # it was pruned meanwhile
            raise
        return Held.of(decode(data), data, sizes, name)

    def _names(self, path: str) -> list[str]:
        """Return the names directly below `path` in the store, without the path, or an empty list if there are none."""
        with self._asking():
            self._fs.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                return [_last(str(one)) for one in self._fs.ls(path, detail=False)]
        return []

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise StoreFailed in place of any error of the store's package in this context."""
        try:
            yield
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StoreFailed:
        """Return the StoreFailed for an error of the store's package, without secrets."""
        text = self._clean(" ".join(str(error).split()))[:_LONGEST]
        return StoreFailed(f"{self.url}: {text or type(error).__name__}")


def _held_in(folder: Path, held: Held) -> Held | None:
    """Return the local entry of the checkpoint `held`, one in the store: which files `folder` has, and which it lacks.

    `folder` is a local folder of checkpoints. Returns None if it has no committed checkpoint with the same manifest.
    """
    found = (one for one in partial.inventory(folder) if one.digest == held.digest and one.committed)
    return next(found, None)


def _last(path: str) -> str:
    """Return the last part of a path in the store."""
    return path.rstrip("/").rpartition("/")[2]


@contextlib.contextmanager
def fetched_run(url: str, step: int | None, warn: Callable[[str], None]) -> Iterator[Path]:
    """Yield a temporary local folder with the newest complete checkpoint below a run's address, or that of `step`.

    The address `url` ends with the run's id. A damaged checkpoint is skipped, with a message to `warn`; but if it is
    that of `step`, CheckpointDamaged is raised. Raises TrainerError if there is no checkpoint to yield.
    """
    store = ObjectStore(url)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        for held in reversed([one for one in store.saves() if step is None or one.step == step]):
            try:
                store.bring(held, Path(folder))
            except CheckpointDamaged as error:
                if step is not None:
                    raise
                warn(f"skipping a damaged checkpoint: {error}")
                continue
            yield Path(folder) / folder_name(held.step)
            return
        which = "a checkpoint" if step is None else f"a checkpoint of step {step}"
        raise TrainerError(f"{url}: expected {which}, found none\nhint: the address ends with the id of the run")
