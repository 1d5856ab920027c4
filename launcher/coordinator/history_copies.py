"""Tell a coordinator, in memory shared with its supervisor, how much of its history half of a pool's voters have."""

from math import inf


class HistoryCopies:
    """Two numbers: the supervisor, which copies the history to other hosts, sets one, and the coordinator the other."""

    def __init__(self, shared: "memoryview[float] | None" = None) -> None:
        """Use these two doubles, or memory of this process alone, in which all is copied."""
        self._shared = memoryview(bytearray(16)).cast("d") if shared is None else shared
        if shared is None:
            self.copied = inf

    @property
    def copied(self) -> float:
        """Return how many bytes of the history half of the voters have, the leader included."""
        return self._shared[0]

    @copied.setter
    def copied(self, size: float) -> None:
        self._shared[0] = size

    @property
    def awaited(self) -> bool:
        """Return whether a restart waits for the rest."""
        return self._shared[1] != 0.0

    @awaited.setter
    def awaited(self, awaited: bool) -> None:
        self._shared[1] = awaited
