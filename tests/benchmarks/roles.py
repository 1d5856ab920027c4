"""Measure how fast a learner with actors (other programs of its run) starts, and how much a killed actor slows it.

    uv run python tests/benchmarks/roles.py [--pairs 7] [--kills 30] [--write]

Start: ddp_steps.py on two ranks, alone, and as the main one of three roles, with two actors that restart alone and a
reward server, plain Python both. The sides take turns; the first start of each does not count.

Kills: jobs/actor_learner.yaml with a learning rate of 0, so that its steps stay equally long. A random actor is killed
at a random moment; it works again when a new process has played an episode. The learner's steps until then, and in the
whole second from the kill on, are compared with those of as long a time right before the kill, summed over all kills
and both ranks. In brackets are the middle 95 % of that ratio over kills drawn anew (bootstrap).

While one of four actors is away, a learner that waits for episodes makes no more than three quarters of its steps.
"""

import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "local")]
from lab import Lab
from race import LAUNCH, Race
from results import benchmark_parser, publish
from sides import START_S, take_turns

ROOT = Path(__file__).parents[2]
RANKS = 2
THREE = "launch, three roles"
PAUSE_S = (2.0, 3.0)  # so that the second after one kill is over before the second before the next begins
PATIENCE_S = 30.0
EPISODES = 16
_DRAWS = 2000
BUDGET = "{restarts: unlimited, backoff: 0s..0s}"
IDLE = '{command: [python3, -c, "import time; time.sleep(600)"]}'
BESIDE = f"""  actors: {{run: {IDLE}, resources: {{ranks_per_node: 2, gpus_per_node: 0}}, restart: alone}}
  reward: {{run: {IDLE}, resources: {{gpus_per_node: 0}}}}
"""
NOTE = 'open({notes!r}, "a").write(f"{{time.monotonic():.6f}} {name} {{os.getpid()}}\\n")'
AFTER = {"learner": "        step += 1\n", "actor": "                played += 1\n"}  # a note of each


class ThreeRoles(Race):  # type: ignore[misc] # found on the path of scripts
    def _spec(self):
        main = super()._spec().partition("\n")[2]
        indented = "".join(f"    {line}\n" for line in main.splitlines())
        return f"name: race\nroles:\n  main:\n    main: true\n{indented}{BESIDE}"


def first_step_s(peer, _turn):
    """Seconds until the slowest rank of the main program has made its first step."""
    kind = ThreeRoles if peer == THREE else Race
    with kind(peer, RANKS, "--steps", 1) as race:
        if not race.wait(race.firsts, START_S):
            raise SystemExit(f"{peer} did not make a step in {START_S} s:\n{race.said()}")
        return max(race.firsts()) - race.began


def start_rows(pairs):
    taken = take_turns(pairs + 1, (LAUNCH, THREE), first_step_s)
    alone = statistics.median(taken[LAUNCH][1:])
    for peer, (_, *seconds) in taken.items():
        middle = statistics.median(seconds)
        yield f"| {peer} | {middle:.2f} | {min(seconds):.2f}-{max(seconds):.2f} | {middle / alone:.2f} |"


class Struck:
    """The job of the learner and its actors, which note each step and each episode."""

    def __init__(self, lab):
        self.lab, self.file = lab, lab.project.parent / "notes"
        shutil.copytree(ROOT / "jobs", lab.project / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
        for name, line in AFTER.items():
            script = lab.project / "jobs" / "actor_learner" / f"{name}.py"
            text = script.read_text()
            assert text.count(line) == 1, name
            note = line[: len(line) - len(line.lstrip())] + NOTE.format(notes=str(self.file), name=name)
            script.write_text(text.replace(line, f"{line}{note}\n"))
        words = {
            "roles.learner.run.args": f"{{steps: 100000000, episodes: {EPISODES}, lr: 0.0}}",
            "roles.learner.checkpoint.every": "1h",
            "roles.actors.recovery": f"{{killed: {BUDGET}}}",
        }
        sets = [word for key, value in words.items() for word in ("--set", f"{key}={value}")]
        lab.submit("jobs/actor_learner.yaml", *sets)

    def notes(self, name):
        """Return when programs of this kind noted something, and in which process."""
        lines = self.file.read_text().rpartition("\n")[0].splitlines() if self.file.exists() else []
        words = (line.split() for line in lines)
        return [(float(at), int(pid)) for at, who, pid in words if who == name]

    def kill(self, chance):
        """Return when a random actor was killed, and when a process that is new has played an episode."""
        known = {pid for _, pid in self.notes("actor")}
        newest = {pid for at, pid in self.notes("actor") if at > time.monotonic() - PAUSE_S[0]}
        killed = time.monotonic()
        os.kill(chance.choice(sorted(newest)), signal.SIGKILL)
        again = self.lab.until(
            "an episode of the actor", lambda: [at for at, pid in self.notes("actor") if pid not in known], PATIENCE_S
        )
        return killed, min(again)


def kill_row(kills, seed):
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="roles-") as place:
        lab = Lab(Path(place))
        try:
            struck = Struck(lab)
            lab.until("all actors", lambda: len({pid for _, pid in struck.notes("actor")}) == 4, START_S)
            times = []
            for _ in range(kills):
                time.sleep(chance.uniform(*PAUSE_S))  # the moment is part of the question
                times.append(struck.kill(chance))
            time.sleep(PAUSE_S[0])
            steps = [at for at, _ in struck.notes("learner")]
        finally:
            lab.tidy()
    away = [again - killed for killed, again in times]
    middle = f"{statistics.median(away):.2f} | {min(away):.2f}-{max(away):.2f}"
    meanwhile = compared(steps, [(killed, again - killed) for killed, again in times])
    return f"| {kills} | {middle} | {meanwhile} | {compared(steps, [(killed, 1.0) for killed, _ in times])} |"


def compared(steps, times):
    """The steps in so many seconds from each moment on, beside those in as many before it, and how sure that is."""
    after = [sum(at < step <= at + for_s for step in steps) for at, for_s in times]
    before = [sum(at - for_s < step <= at for step in steps) for at, for_s in times]
    low, high = between(after, before, random.Random(1))
    return f"{sum(after)} of {sum(before)} | {sum(after) / sum(before):.2f} ({low:.2f}-{high:.2f})"


def between(after, before, chance):
    """The middle 95 % of the ratio over kills drawn anew from these (bootstrap)."""
    drawn = (chance.choices(range(len(after)), k=len(after)) for _ in range(_DRAWS))
    sums = ((sum(after[one] for one in some), sum(before[one] for one in some)) for some in drawn)
    ratios = sorted(mine / theirs for mine, theirs in sums if theirs)
    return ratios[int(0.025 * len(ratios))], ratios[int(0.975 * len(ratios))]


def main():
    parser = benchmark_parser(__doc__, pairs=7, seed=True)
    parser.add_argument("--kills", type=int, default=30)
    args = parser.parse_args()
    table = [
        "| | start to first step, s | range | of the program alone |",
        "|---|---|---|---|",
        *start_rows(args.pairs),
        "",
        "| actors killed | work again, s | range | learner's steps meanwhile, of both ranks | | in the next second | |",
        "|---|---|---|---|---|---|---|",
        kill_row(args.kills, args.seed),
    ]
    notes = (
        "The first table has the time from the command to the first step of a DDP training on two ranks: "
        "alone (`launch`), and as the main program of a run with three roles (`launch, three roles`), which "
        "also has two actors and a reward server. `of the program alone` divides the time by that of the "
        "first row.\n\n"
        "The second table is about jobs/actor_learner.yaml: a learner with two ranks and four actors, which "
        f"play episodes for it. Random actors were killed at random moments (seed {args.seed}). `work again` "
        "is the time from the kill until a new process has played an episode. `learner's steps meanwhile` "
        "compares the learner's steps in this time with its steps in an equally long time before the kill, "
        "as sums over all kills and both ranks; the column to the right has their ratio, with a bootstrap "
        "interval of 95 % in brackets. The last two columns have the same for the whole second after the "
        "kill."
    )
    publish("roles", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
