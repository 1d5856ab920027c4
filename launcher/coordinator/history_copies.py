"""Share between a coordinator and its supervisor how much of the run's history half of a pool's voters have copied."""

from math import inf


class HistoryCopies:
    """Two numbers in memory that the coordinator and its supervisor share: how many bytes of the history are copied,
    and whether a restart waits for more.

    The supervisor, which copies the history to other hosts, sets `copied`; the coordinator sets `awaited`.
    """

    def __init__(self, shared: "memoryview[float] | None" = None) -> None:
        """Use the two shared doubles in `shared`, or without them private memory in which the whole history counts as
        copied.
        """
        self._shared = memoryview(bytearray(16)).cast("d") if shared is None else shared
        if shared is None:
            self.copied = inf

    @property
    def copied(self) -> float:
        """Return how many bytes of the history at least half of the voters have, the leader included."""
        return self._shared[0]

    @copied.setter
    def copied(self, size: float) -> None:
        self._shared[0] = size

    @property
    def awaited(self) -> bool:
        """Return whether a restart is held back until more of the history is copied."""
        return self._shared[1] != 0.0

    @awaited.setter
    def awaited(self, awaited: bool) -> None:
        self._shared[1] = awaited
