"""Measure the time from kill -9 of a rank to the next step of all ranks when launch or torchrun runs the same trainer.

    uv run python tests/benchmarks/resume_step.py [--jobs image mlp] [--write]

The same trainer, options and checkpoints under all. As in recover.py a random rank is killed at a random moment, and it
has recovered when every rank has made a step in a process that was not there at the kill: found out, ended, started,
met, loaded from the newest checkpoint, and trained on. With `recovery: {mode: hot}` only the killed rank has a new
process: there it is the first step that all of them make together. The last column leaves out, on both sides, the step
itself: the median of those that nothing disturbed. torchrun has its own store for the ranks
(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1): as it comes, it mostly does not recover at all (recover.py).

`launch, reserve` has a process in reserve for each rank, `launch, hot, reserve` one for all. Kills have to be far
enough apart for the next one to be ready: --pause-s 6 9.
"""

import random
import statistics

from race import HOT, HOT_RESERVE, LAUNCH, RESERVE, TORCHRUN, WITH_VARIABLE, Race
from recover import in_turns, kills
from results import benchmark_parser, publish

from launcher.plan.preload import TASKS, TORCH, TRAINER

PAUSE_S = (1.0, 3.0)  # after a recovery, so that there are new checkpoints
# The job is run by a script of its own, which notes the steps: the same is imported ahead as for the job itself.
PRELOAD = (*TORCH, *TRAINER, *TASKS["trainer.tasks.resnet"])
JOBS = {
    "image": [
        *("--checkpoint-every", "10 steps"),
        *("--max-steps", 1_000_000),
        *("--validate-every", 1_000_000),
        *("--batch-size", 16),
    ],
    "mlp": ["--mlp", "--checkpoint-every", "1 s"],
}


def rows(job, ranks, taken, steps):
    """Return the row of each side, with ratios to torchrun or the last side."""
    good = {peer: sorted(one for one in seconds if one is not None) for peer, seconds in taken.items()}
    step_s = {peer: statistics.median(steps[peer]) for peer in taken}
    reference = list(taken)[-1]
    for peer, seconds in taken.items():
        row = f"| {job} | {ranks} | {peer} | {len(good[peer])} of {len(seconds)} "
        if not good[peer] or not good[reference]:
            yield f"{row}| - | - | {step_s[peer]:.3f} | - | - |"
            continue
        ours, theirs = (statistics.median(good[one]) for one in (peer, reference))
        less = (ours - step_s[peer]) / (theirs - step_s[reference])
        span = f"{good[peer][0]:.2f}-{good[peer][-1]:.2f}"
        yield f"{row}| {ours:.2f} | {span} | {step_s[peer]:.3f} | {ours / theirs:.3f} | {less:.3f} |"


def main():
    peers = [LAUNCH, RESERVE, HOT, HOT_RESERVE, TORCHRUN, WITH_VARIABLE]
    parser = benchmark_parser(__doc__, seed=True)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kills", type=int, default=20, help="of launch")
    parser.add_argument("--peer-kills", type=int, default=10, help="of torchrun")
    parser.add_argument("--pause-s", type=float, nargs=2, default=PAUSE_S, help="between a recovery and the next kill")
    parser.add_argument("--patience-s", type=float, default=90)
    parser.add_argument("--peers", nargs="+", choices=peers, default=[LAUNCH, HOT, WITH_VARIABLE])
    args = parser.parse_args()
    chance = random.Random(args.seed)
    counts = {peer: args.kills if peer.startswith(LAUNCH) else args.peer_kills for peer in args.peers}
    last = args.peers[-1]
    table = [
        (
            "| job | ranks | | recovered | kill to next step of all, s | range | a step, s "
            f"| this / {last} | less a step |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for job, ranks in ((job, ranks) for job in args.jobs for ranks in args.ranks):
        steps = {peer: [] for peer in args.peers}

        def some_kills(peer, count, job=job, ranks=ranks, steps=steps):
            def start():
                return Race(peer, ranks, *JOBS[job], script="trained_steps.py", preload=PRELOAD)

            def note(race):
                steps[peer].append(race.step_s())

            return kills(start, count, chance, args.patience_s, args.pause_s, note)

        table += rows(job, ranks, in_turns(args.peers, counts, some_kills), steps)
    notes = (
        "The image job, a ResNet-18 on small images, saved a checkpoint every 10 steps; `mlp`, a tiny MLP, saved one "
        "each second. `recovered` is the number of kills after which all ranks made a step within "
        f"{args.patience_s:g} s. `a step, s` is the duration of an undisturbed step. The last two columns divide the "
        f"time of the row by that of the row `{last}` of the same job and number of ranks; `less a step` first "
        "subtracts `a step` from both, because a recovery ends with a whole step. Kills came at random moments (seed "
        f"{args.seed})."
    )
    publish("resume_step", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
