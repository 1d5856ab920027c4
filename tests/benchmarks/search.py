"""Compare the best values that two hyperparameter searches (TPE and random) find, with and without early stopping of
trials.

uv run python tests/benchmarks/search.py [--write]

The accuracy after `step` steps is `A * (1 - exp(-step / 25))`, and `A` is 0.95 at the best point (lr 0.003, depth 5,
batch 64), less the farther a point is from it: 0.08 times the decades of lr squared, 0.01 times the layers squared,
and 0.02 for another batch. Trials are asked for, reported and ended by what a conductor uses, without runs.
"""

import math
import statistics
import tempfile
from pathlib import Path

from results import benchmark_parser, publish

from launcher.apps.sweeps.folder import SweepDir, SweepRecord
from launcher.apps.sweeps.trial_book import TrialBook
from launcher.spec.model import Dimension, EarlyStop, SweepOptions

BEST, LONGEST = 0.95, 540
SPACE = {
    "lr": Dimension(low=1e-5, high=1e-1, log=True),
    "depth": Dimension(low=2, high=8, whole=True),
    "batch": Dimension(values=(32, 64, 128)),
}


def reached(point):
    """The accuracy that a training of these values ends near."""
    decades = math.log10(point["lr"] / 0.003)
    return BEST - 0.08 * decades**2 - 0.01 * (point["depth"] - 5) ** 2 - 0.02 * (point["batch"] != 64)


def accuracy(point, step):
    return reached(point) * (1 - math.exp(-step / 25))


def book(folder, search, seed, stop, parallel):
    sweep = SweepDir(Path(tempfile.mkdtemp(dir=folder)))
    options = SweepOptions("accuracy", "max", search, None, parallel, SPACE, stop=stop)
    return TrialBook(sweep, SweepRecord("x-abcd", "/p", "local", (), options, 1000 * seed, (), None, 0.0))


def searched(trials_in, count, parallel):
    """The best accuracy of so many trials, so many at a time, a step of each in turn, and the steps that all took."""
    trials, steps, best = {}, 0, 0.0
    begun = 0
    while trials or begun < count:
        while len(trials) < parallel and begun < count:
            number = trials_in.ask()
            trials_in.choose(number, f"x-t{number:04d}")
            trials[number] = 0
            begun += 1
        points = {one.number: one for one in trials_in.entries()}
        for number in [*trials]:
            trials[number] += 1
            steps += 1
            value = accuracy(points[number].params, trials[number])
            if trials[number] % 20 == 0 or trials[number] == LONGEST:
                trials_in.report(number, [(trials[number], value)], may_prune=trials[number] < LONGEST)
            if trials[number] == LONGEST:
                best = max(best, value)
                trials_in.tell(number, value, pruned=False, why="")
                del trials[number]
        for one in trials_in.entries():
            if one.number in trials and one.pruned_at is not None:
                trials_in.tell(one.number, None, pruned=True, why="")
                del trials[one.number]
    return best, steps


def chosen(trials_in, count):
    """The best accuracy of so many trials, one after the other, each to its end."""
    best = 0.0
    for _ in range(count):
        number = trials_in.ask()
        trials_in.choose(number, f"x-t{number:04d}")
        value = accuracy(trials_in.entries()[number].params, LONGEST)
        trials_in.tell(number, value, pruned=False, why="")
        best = max(best, value)
    return best


def beside_random(folder, seeds, trials):
    """Return for each seed the best value of TPE and of a random search."""
    none = EarlyStop("none")
    return [
        tuple(chosen(book(folder, search, seed, none, 1), trials) for search in ("tpe", "random")) for seed in seeds
    ]


def beside_no_stop(folder, seeds, trials, parallel):
    """Return for each seed the best value and the number of steps, with asha and without."""
    return [
        tuple(
            searched(book(folder, "random", seed, EarlyStop(early, 20, 3), parallel), trials, parallel)
            for early in ("asha", "none")
        )
        for seed in seeds
    ]


NOTES = (
    "A trial is a training with one choice of hyperparameters (learning rate, depth and batch size). Here "
    "no training ran: a formula gave the accuracy of each trial after each step, and at best 0.95. The "
    "searches and the early stopping are those of `launch sweep`.\n\n"
    "The first table compares the searches, TPE (tree-structured Parzen estimator) and random. Each chose "
    "its trials one after the other, and each trial ran to its end. `best accuracy` is the median over the "
    "seeds; `better than random` is the number of seeds with which TPE found a better value.\n\n"
    "The second table is random search, with four trials at a time, with early stopping by ASHA (`asha`) "
    "and without (`none`). `steps` is the number of steps of all trials together, and `share` is this "
    "number divided by that without early stopping. `of that without` is the best accuracy divided by the "
    "best accuracy of the row `none`, with the same seed."
)


def main():
    parser = benchmark_parser(__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--parallel", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = beside_random(Path(folder), range(args.seeds), args.trials)
        halved = beside_no_stop(Path(folder), range(args.seeds), args.trials, args.parallel)
    tpe, plain = zip(*pairs, strict=True)
    wins = sum(one > other for one, other in pairs)
    table = [
        f"| {args.trials} trials | best accuracy | range | better than random |", "|---|---|---|---|",
        f"| tpe | {statistics.median(tpe):.4f} | {min(tpe):.4f}-{max(tpe):.4f} | {wins} of {len(pairs)} seeds |",
        f"| random | {statistics.median(plain):.4f} | {min(plain):.4f}-{max(plain):.4f} |  |",
        "", f"| {args.trials} trials of {LONGEST} steps | steps | share | best accuracy | of that without |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    shares = [with_stop[1] / without[1] for with_stop, without in halved]
    found = [with_stop[0] / without[0] for with_stop, without in halved]
    stopped = statistics.median(one[0][0] for one in halved)
    whole = statistics.median(one[1][0] for one in halved)
    table.append(
        f"| asha | {statistics.median(one[0][1] for one in halved):.0f} | {statistics.median(shares):.3f} "
        f"({min(shares):.3f}-{max(shares):.3f}) | {stopped:.4f} | {min(found):.4f}-{max(found):.4f} |"
    )
    table.append(f"| none | {statistics.median(one[1][1] for one in halved):.0f} | 1 | {whole:.4f} | 1 |")
    publish("search", "\n".join([*table, "", NOTES]), write=args.write)


if __name__ == "__main__":
    main()
