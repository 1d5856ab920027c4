"""Measure the time from kill -9 of a rank to the next optimizer step of all ranks, with launch and with torchrun.

    uv run python tests/benchmarks/recover.py [--write]

A random rank is killed at a random moment. It counts as recovered when every rank has made a step in a process that
was not there at the kill; where that takes longer than the patience, the job is started anew and the kill counts as
failed. The sides take turns, a fifth of their kills at a time.
"""

import os
import random
import signal
import statistics
import time

from race import LAUNCH, LEGEND, PEERS, TORCHRUN, WITH_VARIABLE, Race
from results import benchmark_parser, publish

START_S = 180
TURNS = 5
PAUSE_S = (0.3, 1.0)


def kills(start, count, chance, patience_s, pause_s=PAUSE_S, ended=lambda race: None):
    """Seconds from each kill to all ranks' next step; None for a kill that was not recovered from.

    `ended` is told of each race before it is cleared away.
    """
    taken = []
    while len(taken) < count:
        with start() as race:
            if not race.wait(race.firsts, START_S):
                raise SystemExit(f"{race.peer} did not make a step in {START_S} s:\n{race.said()}")
            while len(taken) < count:
                taken.append(kill(race, chance, patience_s, pause_s))
                if taken[-1] is None:
                    break
            ended(race)
    return taken


def in_turns(peers, counts, some_kills):
    """Return what `some_kills(peer, count)` gives for each peer, measured in turns of a fifth."""
    taken = {peer: [] for peer in peers}
    while any(len(taken[peer]) < counts[peer] for peer in peers):
        for peer in peers:
            count = min(-(-counts[peer] // TURNS), counts[peer] - len(taken[peer]))
            taken[peer] += some_kills(peer, count)
    return taken


def kill(race, chance, patience_s, pause_s):
    time.sleep(chance.uniform(*pause_s))  # the moment is part of the question
    race.wait(lambda: True, 1)
    before, strangers = race.pids(), race.all_pids()
    at = time.monotonic()
    try:
        os.kill(chance.choice(before), signal.SIGKILL)
    except ProcessLookupError:
        return None  # it had not stayed up after the kill before: that one was not recovered from

    def firsts():
        return race.firsts_in_place(strangers, at) if race.is_hot else race.firsts(strangers)

    return max(firsts()) - at if race.wait(firsts, patience_s) else None


def row(peer, taken, ours):
    good = sorted(one for one in taken if one is not None)
    share = f"{len(good)} of {len(taken)}"
    if not good:
        return f"| {peer} | {share} | - | - | - |"
    middle = statistics.median(good)
    return f"| {peer} | {share} | {middle:.2f} | {good[0]:.2f}-{good[-1]:.2f} | {ours / middle:.3f} |"


def main():
    parser = benchmark_parser(__doc__, seed=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=50, help="of launch")
    parser.add_argument("--peer-kills", type=int, default=20, help="of each torchrun")
    parser.add_argument("--patience-s", type=float, default=45)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    counts = {LAUNCH: args.kills, TORCHRUN: args.peer_kills, WITH_VARIABLE: args.peer_kills}

    def some_kills(peer, count):
        return kills(lambda: Race(peer, args.ranks, "--step-s", 0.01), count, chance, args.patience_s)

    taken = in_turns(args.peers, counts, some_kills)
    ours = statistics.median([one for one in taken[LAUNCH] if one is not None])
    head = "| | recovered | kill to next step of all, s | range | launch / this |"
    table = [head, "|---|---|---|---|---|", *(row(peer, taken[peer], ours) for peer in args.peers)]
    notes = (
        f"The job has {args.ranks} ranks. `recovered` is the number of kills after which all ranks made a step within "
        f"{args.patience_s:g} s. The times are of these kills only. Kills came at random moments (seed {args.seed}). "
        f"{LEGEND}"
    )
    publish("recover", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
