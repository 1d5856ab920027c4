"""A machine's disk: what was not fsynced may be lost, whole or in part, when its power is cut."""

import os
import shutil
from pathlib import Path


class Disk:
    """The folder `root`, of which names and contents count as kept once they are fsynced. Folders always do."""

    def __init__(self, root):
        self.root = Path(root)
        self._contents: dict[int, bytes] = {}  # by inode, as last fsynced
        self._names: dict[int, dict[str, int]] = {}  # by inode of the folder, which may be renamed, as last fsynced
        self.keep_all()

    def fsynced(self, path):
        inode = os.stat(path).st_ino
        if os.path.isdir(path):
            self._names[inode] = _files(path)
        else:
            self._contents[inode] = Path(path).read_bytes()

    def keep_all(self):
        """Take all that is there now as fsynced."""
        for folder, _, _ in os.walk(self.root):
            names = self._names[os.stat(folder).st_ino] = _files(folder)
            self._contents |= {inode: Path(folder, name).read_bytes() for name, inode in names.items()}

    def image(self, chance, *, power):
        """Return what a machine finds here when it is started again: less where its `power` was cut."""
        image: dict[str, dict[str, bytes]] = {}
        for folder, _, _ in sorted(os.walk(self.root)):
            if os.path.basename(folder).startswith("."):
                continue
            kept, there = self._names.get(os.stat(folder).st_ino, {}), _files(folder)
            image[folder] = {}
            for name in sorted({*kept, *there}):
                inode, now = there.get(name), b""
                if inode is not None:
                    now = Path(folder, name).read_bytes()
                if power and kept.get(name) != inode and chance.random() < 0.5:
                    inode = kept.get(name)
                    now = self._contents.get(inode, b"")
                if inode is not None:
                    image[folder][name] = _after_cut(self._contents.get(inode, b""), now, chance) if power else now
        return image

    def restore(self, image):
        shutil.rmtree(self.root)
        for folder, files in image.items():
            os.makedirs(folder, exist_ok=True)
            for name, data in files.items():
                Path(folder, name).write_bytes(data)
        self._names, self._contents = {}, {}
        self.keep_all()


def _files(folder):
    return {one.name: one.inode() for one in os.scandir(folder) if one.is_file() and not one.name.startswith(".")}


def _after_cut(kept, now, chance):
    """Return the old contents, the new ones, or new ones that end somewhere."""
    if kept == now:
        return now
    start = len(kept) if now.startswith(kept) else 0
    return chance.choice([kept, now, now[: chance.randint(start, len(now))]])
