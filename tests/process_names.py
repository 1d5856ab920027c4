"""Which processes of a run there are, by the names that `ps -o comm` shows, and which of them listen."""

import os
import re
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parents[1] / "launcher" / "docs" / "how-it-works.md"


def names_of(pids):
    """Return how many of these processes have each name; processes of Python count as `rank`."""
    return Counter(name for pid in pids if (name := name_of(pid)))


def name_of(pid):
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has just ended
    return "rank" if name.startswith("python") else name


def listening(pids):
    """Return how many TCP ports processes of each name listen on."""
    found = Counter()
    for pid in pids:
        sockets = set()
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(fd))
            except OSError:
                continue  # just closed
        rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        found[name_of(pid)] += sum(f"socket:[{row[9]}]" in sockets for row in rows if row[3] == "0A")
    return +found


def told_on_the_page():
    """The names of processes that the page of how it works has."""
    return set(re.findall(r"`(launch-\w+)`", PAGE.read_text()))
