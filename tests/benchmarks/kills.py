"""Kill ranks at random moments, count the lost steps, and compare the weights with those of an undisturbed run.

    uv run python tests/benchmarks/kills.py [--trainings ddp hsdp] [--kills 70] [--seed N] [--write]

`recovery: {mode: hot}`, four ranks of this machine, each training one run. A rank is drawn, rank 0 as well as others,
and killed by SIGKILL at a random moment of the second after all have made a new step; one in three of these kills is
followed by another one within 0.4 s, which mostly comes while the ranks still recover. A validation and a save come
every five steps, so that kills meet those, too. What ranks did is told by themselves, at the end of each step, in a
file outside of the run: lost are the steps that all ranks had made and that are made again. The step under way is none.
`memory every N`: fsdp, `memory_every: N steps`, from its first checkpoint on. `--mode warm` shows that lost ones are
counted.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "local")]
from lab import Lab, kill, whole_lines
from results import benchmark_parser, publish

from tests.chaos.audit import Deed

RANKS = 4
PAUSE_S, WIDTH = 0.05, 20_000
AGAIN, AGAIN_S, WITHIN_S = 1 / 3, 0.4, 1.0
SAID_AGAIN = "; done again: "
PATIENCE_S, END_S = 120, 900  # against hanging alone
TRAININGS = {
    "ddp": ("ddp", ""),
    "zero1": ("zero1", ", memory_every: 1 steps"),
    "hsdp": ("hsdp", ""),
    "memory every 1": ("fsdp", ", memory_every: 1 steps"),
    "memory every 5": ("fsdp", ", memory_every: 5 steps"),
}


def spec(training, steps, mode, **more):
    strategy, memory = TRAININGS[training]
    given = {"steps": steps, "strategy": strategy, "width": WIDTH, **more}
    given |= {"shard-size": 2} if strategy == "hsdp" else {}
    return (
        f"name: kills\nrun: {{script: in_place.py, python: {json.dumps(sys.executable)}, args: {json.dumps(given)}}}\n"
        f"resources: {{ranks_per_node: {RANKS}, gpus_per_node: 0, cpus_per_rank: 1}}\n"
        f"checkpoint: {{every: 5 steps{memory}}}\n"
        f"recovery: {{mode: {mode}, killed: unlimited, communication: unlimited, no_progress: off}}\n"
    )


def lost_steps(deeds):
    """Return for each generation how many finished steps it repeats; 0 for the first."""
    done, lost = Counter(), {}
    for deed in sorted(deeds, key=lambda deed: deed.at):
        if deed.what == "start" and deed.generation not in lost:
            lost[deed.generation] = max(0, min(done[rank] for rank in range(RANKS)) - deed.step)
            done = Counter({rank: min(step, deed.step) for rank, step in done.items()})
        if deed.what == "done":
            done[deed.rank] = max(done[deed.rank], deed.step)
    return lost


def furthest(deeds):
    """The step that all ranks have made."""
    made = Counter()
    for deed in deeds:
        if deed.what == "done":
            made[deed.rank] = max(made[deed.rank], deed.step)
    return min(made[rank] for rank in range(RANKS))


class Struck:
    """One training, and what was done to it."""

    def __init__(self, lab, training, mode, kills, chance):
        self.lab, self.chance = lab, chance
        self.audit = lab.project.parent / "audit.jsonl"
        for name in ("in_place.py", "audited.py"):
            lab.script(name)
        self.steps = 40 + 14 * kills
        self.run = lab.submit(lab.spec(spec(training, self.steps, mode, pause=PAUSE_S, audit=str(self.audit))))
        self.blows = self.again = self.made = 0
        if training.startswith("memory"):  # until all have a copy in memory there is no way but anew
            lab.until("a checkpoint", lambda: lab.read_state(self.run)["checkpoint"], PATIENCE_S)
        while self.blows < kills:
            self.strike(again=False)
            if self.blows < kills and chance.random() < AGAIN:
                self.strike(again=True)
        self.status = lab.wait(self.run, timeout=END_S)

    def deeds(self):
        return [Deed(**json.loads(line)) for line in whole_lines(self.audit)]

    def strike(self, again):
        """A living rank is killed; counts it, and those that come while the ranks recover from the one before."""
        if not again:
            self.lab.until("a new step of all", self.all_train, PATIENCE_S)
        time.sleep(self.chance.uniform(0, AGAIN_S if again else WITHIN_S))
        self.lab.until("a living rank", self.hit, PATIENCE_S)

    def all_train(self):
        """Return whether all ranks have made a new step since the newest kill."""
        return furthest(self.deeds()) > self.made

    def hit(self):
        deeds = self.deeds()
        if (made := max(deed.step for deed in deeds)) > self.steps - 10:
            raise SystemExit(f"the training is over after {self.blows} kills")
        born = {deed.rank: deed.pid for deed in deeds if deed.what == "born"}
        if hit := kill(born[self.chance.randrange(RANKS)]):
            self.blows += 1
            self.again += self.made >= furthest(deeds)
            self.made = made
        return hit


def row(training, mode, kills, seed):
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        lab = Lab(Path(place))
        try:
            struck = Struck(lab, training, mode, kills, random.Random(f"{seed} {training}"))
            alone = lab.wait(lab.submit(lab.spec(spec(training, struck.steps, mode))), timeout=END_S)
        finally:
            lab.tidy()
        deeds = struck.deeds()
        lost = lost_steps(deeds)
        follows = [event["text"] for event in lab.events(struck.run, "regroup")]
        lines = lab.rank_logs(struck.run).splitlines()
    anew = [text for text in follows if "follows, hot" not in text]
    back = [line for line in lines if SAID_AGAIN in line and line.endswith(")")]  # with the reason: else it always does
    for text in anew + back:
        print(text, file=sys.stderr)
    equal = "equal" if alone["fingerprint"] == struck.status["fingerprint"] else "OTHER"
    cells = [
        training, kills, struck.again, len(follows) - len(anew), len(anew),
        sum(map(bool, lost.values())), sum(lost.values()), max(lost.values()), equal,
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main():
    parser = benchmark_parser(__doc__, seed=True)
    parser.add_argument("--trainings", nargs="+", default=["ddp", "hsdp"], choices=TRAININGS)
    parser.add_argument("--mode", choices=["hot", "warm", "auto"], default="hot")
    parser.add_argument("--kills", type=int, default=70)
    args = parser.parse_args()
    print("seed", args.seed, file=sys.stderr)
    lines = [
        "| training | kills | while recovering | in place | all anew | cost steps | steps lost | at most | weights |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for training in args.trainings:
        lines.append(row(training, args.mode, args.kills, args.seed))
        print(lines[-1], file=sys.stderr, flush=True)
    notes = (
        f"Each row is one training with `recovery: {{mode: {args.mode}}}` on four ranks of this machine, in "
        "which random ranks were killed. `ddp` and `hsdp` are strategies; `memory every 1` and `memory "
        "every 5` are FSDP with a snapshot in memory every 1 or 5 steps (`checkpoint.memory_every`). `while "
        "recovering` is the number of kills that came before the ranks had recovered from the kill before. "
        "`in place` is the number of recoveries in which the other ranks kept their processes, and `all "
        "anew` of those in which all ranks were started again. `cost steps` is the number of recoveries "
        "that repeated steps, `steps lost` the number of these steps, and `at most` the highest number in "
        "one recovery. `equal` means that the weights at the end were those of an undisturbed run. The "
        f"moments of the kills were drawn with seed {args.seed}."
    )
    publish("kills", "\n".join([*lines, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
