"""From kill -9 of a rank to the next step of all ranks in the shipped image job: launch against torchrun.

    uv run python tests/benchmarks/resume_step.py [--write]

The same trainer, options and checkpoints under both. As in recover.py a random rank is killed at a random moment, and
it has recovered when every rank has made a step in a process that was not there at the kill: found out, ended, started,
met, loaded from the newest checkpoint, and trained on. torchrun has its own store for the ranks
(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1): as it comes, it mostly does not recover at all (recover.py).
"""

import argparse
import random
import statistics

from race import LAUNCH, PEERS, WITH_VARIABLE, Race
from recover import in_turns, kills, row
from results import publish

from launcher.plan.preload import TASKS, TORCH, TRAINER

PAUSE_S = (1.0, 3.0)  # after a recovery, so that there are new checkpoints
# The job is run by a script of its own, which notes the steps: the same is imported ahead as for the job itself.
_PRELOAD = (*TORCH, *TRAINER, *TASKS["trainer.tasks.resnet"])
_WORDS = [
    *("--max-steps", 1_000_000),
    *("--validate-every", 1_000_000),
    *("--batch-size", 16),
    *("--checkpoint-every", "10 steps"),
]


def rows(ranks, taken):
    ours = statistics.median([one for one in taken[LAUNCH] if one is not None])
    for peer, seconds in taken.items():
        yield f"| {ranks} {row(peer, seconds, ours)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kills", type=int, default=20, help="of launch")
    parser.add_argument("--peer-kills", type=int, default=10, help="of torchrun")
    parser.add_argument("--patience-s", type=float, default=90)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[LAUNCH, WITH_VARIABLE])
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    counts = {peer: args.kills if peer == LAUNCH else args.peer_kills for peer in args.peers}
    table = [
        "| ranks | | recovered | kill to next step of all, s | range | launch / this |",
        "|---|---|---|---|---|---|",
    ]
    for ranks in args.ranks:

        def some_kills(peer, count, ranks=ranks):
            def start():
                return Race(peer, ranks, *_WORDS, script="resnet_steps.py", preload=_PRELOAD)

            return kills(start, count, chance, args.patience_s, PAUSE_S)

        table += rows(ranks, in_turns(args.peers, counts, some_kills))
    notes = f"Checkpoints every 10 steps; a failed kill had {args.patience_s:g} s; seed {args.seed}."
    publish("resume_step", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
