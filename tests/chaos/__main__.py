"""A soak: `python -m tests.chaos KIND --minutes 60` disturbs one run after the other until the time is over.

Leaves with 1 at the first violation, after it has printed the seed and the shortest schedule that shows it again:
`python -m tests.chaos KIND --schedule 3:kill-rank:17:0,…` gives that one to a run.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("local", "ssh")]  # as pytest has it

from tests.chaos.driver import Outcome, disturb
from tests.chaos.schedule import Schedule, drawn, parse, shrunk
from tests.chaos.worlds import (
    Hot,
    HotFsdp,
    HotZero1,
    Local,
    LonelyLocal,
    LonelyPool,
    Pool,
    Slurm,
    SmallPool,
    World,
    local_world,
    pool_world,
    slurm_world,
)
from tests.lab.fixtures import open_folder
from tests.lab.hosts import HostLab
from tests.lab.slurm import SlurmLab

KINDS: dict[str, type[World]] = {
    "local": Local, "ssh": Pool, "slurm": Slurm, "hot": Hot, "hot-zero1": HotZero1, "hot-fsdp": HotFsdp,
    "local-lonely": LonelyLocal, "ssh-lonely": LonelyPool, "ssh-small": SmallPool,
}  # fmt: skip
GAPS_S = {
    "local": (0.5, 6.0),
    "local-lonely": (0.5, 6.0),
    "ssh": (1.0, 12.0),
    "ssh-lonely": (1.0, 12.0),
    "ssh-small": (2.0, 20.0),
    "slurm": (1.0, 15.0),
} | dict.fromkeys(("hot", "hot-zero1", "hot-fsdp"), (1.0, 8.0))


class Soak:
    """One lab, in which one run is disturbed after the other."""

    def __init__(self, kind: str, lab: HostLab | SlurmLab | None) -> None:
        self.kind, self._lab = kind, lab

    def outcome(self, schedule: Schedule) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder, self._world(Path(folder)) as world:
            return disturb(world, schedule)

    @contextlib.contextmanager
    def _world(self, folder: Path) -> Iterator[World]:
        if self._lab is None:
            with local_world(folder, KINDS[self.kind]) as world:
                yield world
            return
        self._lab.well()
        place: contextlib.AbstractContextManager[World]
        kind = KINDS[self.kind]
        if isinstance(self._lab, HostLab):
            assert issubclass(kind, Pool)
            place = pool_world(folder, self._lab, kind)
        else:
            place = slurm_world(folder, self._lab)
        with place as world:
            yield world
        self._lab.clear()


@contextlib.contextmanager
def soak_of(kind: str, hosts: int) -> Iterator[Soak]:
    world = KINDS[kind]
    if issubclass(world, Local):
        yield Soak(kind, None)
        return
    with (
        open_folder() as folder,
        HostLab(folder, hosts + 1, disk_size=world.disk_size) if issubclass(world, Pool) else SlurmLab(folder) as lab,
    ):
        yield Soak(kind, lab)


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    words.add_argument("kind", choices=KINDS)
    words.add_argument("--minutes", type=float, default=5.0)
    words.add_argument("--strikes", type=int, default=8, help="faults for each run (default: %(default)s)")
    words.add_argument("--hosts", type=int, default=3, help="hosts that a run of kind ssh takes (default: %(default)s)")
    words.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    words.add_argument("--schedule", type=parse, help="this one, instead of what a seed draws")
    words.add_argument("--go-on", action="store_true", help="tell of violations, do not look for a shorter schedule")
    chosen = words.parse_args()
    deadline, seed, fired, runs, wrong = time.monotonic() + 60 * chosen.minutes, chosen.seed, Counter[str](), 0, 0
    with soak_of(chosen.kind, chosen.hosts) as soak:
        while True:
            kinds = KINDS[chosen.kind].kinds
            schedule = chosen.schedule or drawn(seed, kinds, chosen.strikes, GAPS_S[chosen.kind])
            outcome = soak.outcome(schedule)
            runs, fired = runs + 1, fired + outcome.fired
            print(f"{chosen.kind} seed {seed}: {outcome}", flush=True)
            wrong += bool(outcome.wrong)
            if outcome.wrong and not chosen.go_on:
                if chosen.schedule is None:
                    print("shorter: ", soak.outcome(shrunk(schedule, lambda one: bool(soak.outcome(one).wrong))))
                return 1
            if chosen.schedule or time.monotonic() > deadline:
                break
            seed += 1
    print(f"{chosen.kind}: {runs} runs, {wrong} wrong, {sum(fired.values())} faults: {dict(fired)}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
