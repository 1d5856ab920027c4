"""Find evidence that the kernel killed a process for memory, in the counters of this process's cgroup, v2 or v1."""

from pathlib import Path


class OomCounter:
    """A count of the processes that the kernel has killed for memory in this process's cgroups."""

    def __init__(self, files: list[Path] | None = None) -> None:
        self._files = _counter_files() if files is None else files
        self._seen = self._count()

    def grew(self) -> bool:
        """Return whether the number of kills has grown since the last call or, at the first, since this was made."""
        now = self._count()
        grew = now > self._seen
        self._seen = now
        return grew

    def _count(self) -> int:
        """Return the number of kills in all cgroups."""
        return sum(_kills(path) for path in self._files)


def _kills(path: Path) -> int:
    """Return the number of kills in a counter file, or 0 if it cannot be read."""
    try:
        text = path.read_text()
    except OSError:
        return 0  # no such controller here: then there is no evidence either
    for line in text.splitlines():
        word, _, number = line.partition(" ")
        if word == "oom_kill" and number.isdigit():
            return int(number)
    return 0


def _counter_files() -> list[Path]:
    """Return the paths of `memory.events` for every v2 cgroup, and of `memory.oom_control` for every v1 memory cgroup,
    of this process. They need not exist.
    """
    files = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files += [Path(f"/sys/fs/cgroup{path}/memory.events"), Path(f"/sys/fs/cgroup/unified{path}/memory.events")]
        elif "memory" in controllers.split(","):
            files.append(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
    return files
