"""Records of a run that are damaged while it goes on: cut short, with bytes that are others, or zeros.

So that it can be seen: a record that says something else is none that anybody could know for damaged, as they have no
checksums; its run may do what it says.
"""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

OF_THE_RUN = ("state.json", "plan.json", "avoided.json", "events.jsonl", "FENCE")
OF_AN_ATTEMPT = (
    "token.json", "handle.json", "coordinator.json", "keepers.json", "seat.json", "voter.json", "exit.json",
    "plan.json", "node-*/agent.json",
)  # fmt: skip
_TAIL = 2000  # what is changed of a file is in its last bytes, as of one that grows the newest lines are read


def records(folders: Iterable[Path]) -> Iterator[Path]:
    """Return all present records in a stable order."""
    for folder in folders:
        for name in (*OF_THE_RUN, *(f"attempts/*/{one}" for one in OF_AN_ATTEMPT)):
            yield from sorted(path for path in folder.glob(name) if path.is_file() and path.stat().st_size)


def harm(path: Path, draw: random.Random) -> str:
    """Damage the file in place, as a disk does, and return what was done.

    A program that replaces the file repairs it.
    """
    how = draw.choice(["cut", "flipped", "zeros"])
    with path.open("r+b", buffering=0) as file:
        data = file.read()
        first = max(0, len(data) - _TAIL)
        if how == "cut":
            file.truncate(draw.randint(first, len(data) - 1))
            return how
        places = range(first, len(data)) if how == "zeros" else draw.sample(range(first, len(data)), min(3, len(data)))
        for at in places:
            file.seek(at)
            file.write(b"\0" if how == "zeros" else bytes([data[at] ^ 0x80]))
    return how
