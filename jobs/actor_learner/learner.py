"""REINFORCE on CartPole: actors play the episodes of a step, and all ranks of the learner train on them with DDP.

    launch submit jobs/actor_learner.yaml --follow

Which episodes belong to a step, and what happens in them, follows from the seed and the weights alone, and they are put
in the order of their numbers. So the learner resumes exactly, whichever process is killed and whichever actor plays.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import launcher
from jobs.actor_learner.episodes import Episodes, serve
from trainer import EXIT_RESUME_ME, Checkpointer

_DISCOUNT = 0.99
_UNITS = 16


def main() -> int:
    """Train the policy on this rank; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=32, help="of a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    net = new_policy()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    # DDP lays out its buckets anew after the first backward pass: one for nothing, so that every start adds up alike.
    model(torch.zeros(1, 4)).sum().backward()
    optimizer.zero_grad()

    checkpoints = Checkpointer(model=model, optimizer=optimizer, total_steps=args.steps)
    step = checkpoints.load()
    report = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)  # what `launch metrics` shows
    episodes = Episodes()
    if rank == 0:
        serve(episodes, launcher.peers("learner")[0])
        print(f"REINFORCE on {world} x cpu, step {step} of {args.steps}", flush=True)
    seen, since = 0, time.monotonic()
    while step < args.steps:
        batch = None
        if rank == 0:
            played = episodes.ask_for(step, as_lists(net), args.episodes)
            batch = shares(played, world)
            seen += sum(len(pushes) for _, pushes in played)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, batch, src=0)
        loss = policy_loss(model, *mine[0]) * world  # of which DDP takes the mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            metrics = {"step": step, "reward": sum(len(pushes) for _, pushes in played) / args.episodes}
            if step % 10 == 0:
                metrics["samples_per_s"] = seen / (time.monotonic() - since)
                seen, since = 0, time.monotonic()
                speed = f"{metrics['samples_per_s']:.0f} samples/s"
                print(f"step {step}/{args.steps}  reward {metrics['reward']:.1f}  {speed}", flush=True)
            report.write(json.dumps(metrics) + "\n")
        if checkpoints.after_step(step):
            return EXIT_RESUME_ME  # somebody asked this run to stop; all is saved, and launch starts it again
    fingerprint = checkpoints.finish(step)
    if rank == 0:
        print(f"fingerprint sha256={fingerprint}", flush=True)
    dist.destroy_process_group()
    return 0


def new_policy() -> nn.Sequential:
    """Return the policy's network with random weights."""
    return nn.Sequential(nn.Linear(4, _UNITS), nn.Tanh(), nn.Linear(_UNITS, 1))


def as_lists(net: nn.Sequential) -> dict[str, Any]:
    """Return the weights as the arguments of a cartpole.Policy."""
    hidden, hidden_bias, out, out_bias = (parameter.tolist() for parameter in net.parameters())
    return {"hidden": hidden, "hidden_bias": hidden_bias, "out": out[0], "out_bias": out_bias[0]}


def shares(played: Sequence[Any], world: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Divide the episodes over `world` ranks, and return for each rank (states, pushes, weights): three tensors with an
    entry for each push of its episodes, which are every `world`-th one.

    `played` has (states, pushes) for each episode. The weight of a push is the discounted time that the pole stood
    after it, less the mean over all pushes, in standard deviations, divided by the number of pushes of all ranks.
    """
    stood = [torch.arange(len(pushes), 0, -1) for _, pushes in played]
    returns = [(1 - _DISCOUNT**left) / (1 - _DISCOUNT) for left in stood]
    std, mean = torch.std_mean(torch.cat(returns))
    count = sum(map(len, returns))
    return [
        (
            torch.tensor([state for states, _ in played[rank::world] for state in states]),
            torch.tensor([float(push) for _, pushes in played[rank::world] for push in pushes]),
            (torch.cat(returns[rank::world]) - mean) / (std + 1e-8) / count,
        )
        for rank in range(world)
    ]


def policy_loss(model: nn.Module, states: Tensor, pushes: Tensor, worth: Tensor) -> Tensor:
    """Return the policy gradient's loss, summed over all states.

    `pushes` has for each state the push that was made there, 1 (right) or 0 (left), and `worth` the weight of that
    push. The larger the weight, the more likely training makes the same push in that state.
    """
    log_odds = model(states).squeeze(1)
    surprise = nn.functional.binary_cross_entropy_with_logits(log_odds, pushes, reduction="none")
    return (surprise * worth).sum()


if __name__ == "__main__":
    sys.exit(main())
