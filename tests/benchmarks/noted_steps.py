"""Read the notes of ddp_steps.py's ranks, and find the network card by which a lab's hosts reach each other."""

import time
from collections import defaultdict

RANKS = 4


class Steps:
    """The steps that ddp_steps.py's ranks have noted."""

    def __init__(self, path):
        self.path = path

    def notes(self):
        found = defaultdict(list)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            at, rank, pid, _ = line.split()
            found[int(rank)].append((float(at), pid))
        return found

    def firsts(self, after=0.0, strangers=frozenset(), ranks=RANKS):
        """Return when each rank made its first step after that time in a new process, or None until all have."""
        notes = self.notes()
        times = [
            next((at for at, pid in notes[rank] if at > after and (rank, pid) not in strangers), None)
            for rank in range(ranks)
        ]
        return None if None in times else times

    def wait(self, timeout_s, **how):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (times := self.firsts(**how)) is not None:
                return max(times)
            time.sleep(0.02)  # the times that count are in the notes
        return None


def network_card(node):
    """The interface by which the other nodes reach this one."""
    rows = [line.split() for line in node.exec("ip", "-oneline", "-4", "address").stdout.splitlines()]
    return next(row[1] for row in rows if row[3].startswith(node.address))
