"""Measure the job `gpt` on one NVIDIA GPU: speed, memory, how much communication overlaps, and the cost of a save.

    uv run python tests/benchmarks/gpu.py [--write]

Without a GPU it says so and ends. One GPU is a world of one: FSDP has nobody to share with, so its memory beside DDP's
says what it costs, not what it saves. Each figure comes from a process of its own; the sides take turns.
- training: tokens/s of the steps after the first ones, how much the Trainer's own `samples_per_s` is of what CUDA
  events say of the same steps (1.00 is the truth), its MFU, and the most memory that tensors took;
- overlap: DDP's buckets of gradients are handed on while backward goes on. One GPU has no other to send to: a copy of
  each bucket, again and again on a stream of its own, is in the place of the all-reduce, which NCCL does for a world of
  one without any work. Hidden is the part of that work by which a step did not become longer;
- saving: a model and its Adam. What the call holds up the host for, and how much longer as many steps took with a save
  among them than without (the device waits for the copy, the host for nothing). The copy goes into pinned memory;
- loading: every byte compared, against reading as many bytes into memory that is there already;
- meshes: with several GPUs ddp and fsdp over all of them, and beside them ranks that work on the same samples, a line
  for each mesh of `--mesh`: layers divided (tp) with fsdp, stages of layers (pp) with ddp. All share one batch;
- recovery: ranks are killed, as `launch prove` does, with `recovery: {mode: hot}` and warm: from the kill to the next
  step of all, and whether the end is that of an undisturbed run, bit for bit. With one GPU its two ranks share it
  (shared_gpu.py), and their steps are slow; how they part and meet again is as elsewhere. `waits once a step` is
  what a step costs where it can be gone on from in place: the host lets the GPU finish it before the update;
- collectives: with several GPUs what `launch doctor --collectives` says of nccl between them, every result checked;
- hangs: with several GPUs the kinds of hang of hang.py on nccl: whether the right rank was named, and how soon.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoint_load import memory, read
from hang import INAPPLICABLE, KINDS, Case, counted, judged
from hang import spread as spread_of_hangs
from replica import Replica, folder_for_all, ratio, spread
from results import benchmark_parser, publish
from torch.nn.parallel import DistributedDataParallel

from launcher.apps.collectives.tables import size
from trainer import Checkpointer
from trainer.checkpoint_files.layout import folder_name
from trainer.loop import Trainer
from trainer.loop.callbacks import Callback
from trainer.strategies import Strategy
from trainer.tasks import gpt
from trainer.world import join

SPEEDS = {
    "fp32": ["--precision", "fp32"],
    "tf32": ["--precision", "tf32"],
    "fp16": ["--precision", "fp16"],
    "bf16": ["--precision", "bf16"],
    "bf16, waits once a step": ["--precision", "bf16", "waits"],
    "bf16, compiled": ["--precision", "bf16", "--compile"],
    "bf16, recomputed": ["--precision", "bf16", "--activation-checkpointing"],
    "bf16, zero1": ["--precision", "bf16", "--strategy", "zero1"],
    "bf16, fsdp": ["--precision", "bf16", "--strategy", "fsdp"],
    "bf16, fsdp, recomputed": ["--precision", "bf16", "--strategy", "fsdp", "--activation-checkpointing"],
    "bf16, dp": ["--precision", "bf16", "--strategy", "dp"],
}
KILLED = """name: killed
run:
  script: shared_gpu.py
  args: [{task}, --max-steps, {steps}, --batch-size, 32, --seed, 1, --deterministic, {words}]
resources:
  nodes: 1
  ranks_per_node: {ranks}
  gpus_per_node: 0  # the ranks see for themselves
  cpus_per_rank: 1
recovery:
  killed: {{restarts: unlimited, backoff: 0s..0s}}
checkpoint:
  every: {every} steps
"""
TASKS = {
    "gpt, ddp": ("gpt", "--dropout, 0.1, --strategy, ddp"),
    "gpt, fsdp": ("gpt", "--dropout, 0.1, --strategy, fsdp"),
    "resnet, ddp": ("resnet", "--strategy, ddp"),
    "gpt, tp=2, fsdp": ("gpt", "--mesh, tp=2, --strategy, fsdp"),
    "gpt, pp=2, ddp": ("gpt", "--mesh, pp=2, --strategy, ddp"),
}
HERE = Path(__file__).parent
WARMUP = 20
LOG_EVERY = 10
WAIT_S = 1800


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Enough(Exception):
    """Raised when everything has been measured."""


class Clock:
    """Seconds between marks: of the GPU's own clock, or on a CPU of this process's."""

    def __init__(self, device):
        self._on_gpu = device == "cuda"

    def mark(self):
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, one, other):
        if not self._on_gpu:
            return other - one
        other.synchronize()
        return one.elapsed_time(other) / 1000


class Watch(Callback):
    """Times the steps after the first ones, and ends the training."""

    def __init__(self, args):
        self._args, self._clock = args, Clock(args.device)
        self._count = 0
        self._began = self._logged = None
        self.step_s = 0.0
        self.peak_bytes = 0
        self.told = []  # samples_per_s of the Trainer, as part of what the clock says of the same steps
        self.mfu = []

    def on_step(self, training):
        self._count += 1
        if self._count == WARMUP:
            synchronize(self._args.device)
            if self._args.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self._began = self._clock.mark()
        elif self._count == WARMUP + self._args.steps:
            self.step_s = self._clock.between(self._began, self._clock.mark()) / self._args.steps
            self.peak_bytes = torch.cuda.max_memory_allocated() if self._args.device == "cuda" else 0
            raise Enough

    def on_log(self, training, line):
        now = self._clock.mark()
        if self._logged is not None and training.step > WARMUP:
            true = LOG_EVERY * self._args.batch_size / self._clock.between(self._logged, now)
            self.told.append(line["samples_per_s"] / true)
            self.mfu += [line["mfu"]] if "mfu" in line else []
        self._logged = now


def train(args, words):
    """Return a rank's measurements; the first rank also returns what the Trainer reported."""
    watch = Watch(args)
    if "waits" in words:
        words.remove("waits")
        Strategy.step = functools.partialmethod(Strategy.step, updating=functools.partial(synchronize, args.device))
    gpt.Trainer = lambda *parts, **named: Trainer(*parts, **{**named, "callbacks": [watch]})
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Enough):
        gpt.main(
            [
                *("--max-steps", str(WARMUP + args.steps + 1), "--validate-every", "1000000"),
                *("--log-every", str(LOG_EVERY), *([] if {"dp", "--mesh"} & {*words} else ["--count-flops"])),
                *("--checkpoint-dir", f"{folder}/checkpoints", "--out", folder, "--device", args.device),
                *("--layers", str(args.layers), "--width", str(args.width), "--heads", str(args.width // 64)),
                *("--context", str(args.context), "--batch-size", str(args.batch_size), *words),
            ]
        )
    return {
        "tokens_per_s": args.batch_size * args.context / watch.step_s,
        "peak_bytes": watch.peak_bytes,
        "told": statistics.median(watch.told) if watch.told else None,
        "mfu": statistics.median(watch.mfu) if watch.mfu else None,
    }


def again_and_again(args, bucket):
    """Copy a bucket as often as an all-reduce over a slow network would take."""
    copy = bucket.clone()
    for _ in range(args.copies):
        copy.copy_(bucket)
    return copy


def overlap(args):
    """Milliseconds of a backward pass without sending, with it, and of sending alone, by round."""
    on_gpu, clock = args.device == "cuda", Clock(args.device)
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        layers = [torch.nn.Linear(args.width, args.width, device=args.device) for _ in range(4 * args.layers)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
        side = torch.cuda.Stream() if on_gpu else None
        buckets, sends = [], True

        def hook(_, bucket):
            future = torch.futures.Future(devices=[torch.device("cuda", 0)] if on_gpu else [])
            if sends:
                if on_gpu:
                    side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side) if on_gpu else contextlib.nullcontext():
                    again_and_again(args, bucket.buffer())
                    future.set_result(bucket.buffer())
            else:
                future.set_result(bucket.buffer())
            buckets.append(bucket.buffer().numel())
            return future

        model.register_comm_hook(None, hook)
        data = torch.randn(args.batch_size * 32, args.width, device=args.device)

        def timed(work):
            synchronize(args.device)
            first = clock.mark()
            work()
            return 1000 * clock.between(first, clock.mark())

        def backward():
            loss = model(data).square().mean()
            buckets.clear()
            return timed(loss.backward)

        def alone():
            for bucket in sizes:
                again_and_again(args, bucket)

        for _ in range(3):  # the first one shapes the buckets
            backward()
        sizes = [torch.zeros(count, device=args.device) for count in buckets]
        rounds = []
        for _ in range(args.rounds):
            sends = False
            without = backward()
            sends = True
            rounds.append([without, backward(), timed(alone)])
        dist.destroy_process_group()
    return {"buckets": len(sizes), "bytes": 4 * sum(map(len, sizes)), "rounds": rounds}


def save_and_load(args, megabytes):
    """By round: host blocked, time lost, until on disk, load, read. And the bytes of the state."""
    world, device = join(device=args.device), args.device
    replica = Replica(megabytes, device)
    square = torch.randn(4096 if device == "cuda" else 256, 4096 if device == "cuda" else 256, device=device)
    result = torch.empty_like(square)

    def steps():
        for _ in range(args.save_steps):
            for _ in range(20):
                torch.mm(square, square, out=result)
        synchronize(device)

    def timed(work):
        os.sync()
        synchronize(device)
        began = time.perf_counter()
        said = work()
        return time.perf_counter() - began, said

    rounds = []
    with folder_for_all(args.folder) as folder:
        saver = Checkpointer(folder, model=replica.model, optimizer=replica.optimizer, keep=1, world=world)
        saver.load()
        steps()
        saver.save(1, wait=True)  # the first one makes the memory that later ones use

        def steps_with_save(step):
            began = time.perf_counter()
            saver.save(step)
            blocked = time.perf_counter() - began
            steps()
            return blocked

        for turn in range(args.rounds):
            step = turn + 2
            before, _ = timed(steps)
            seconds, blocked = timed(functools.partial(steps_with_save, step))
            saver.wait()
            after, _ = timed(steps)
            durable, _ = timed(functools.partial(saver.save, 1000 + step, wait=True))
            files = sorted((folder / folder_name(1000 + step)).iterdir())
            kept = memory(max(path.stat().st_size for path in files))
            read(files, kept)
            load, _ = timed(saver.load)
            plain, _ = timed(functools.partial(read, files, kept))
            rounds.append([blocked, seconds - (before + after) / 2, durable, load, plain])
        saver.close()
    return {"bytes": replica.bytes, "rounds": rounds}


def child(args, *words, ranks=1):
    """The JSON of a process of its own, or of each rank, in the order in which they were ready."""
    own = ["device", "steps", "save_steps", "rounds", "layers", "width", "context", "batch_size", "copies"]
    options = [word for name in own for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    if args.folder:
        options += ["--folder", str(args.folder)]
    many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *many, __file__, *options, "--child", json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return found if ranks > 1 else found[-1]


def size_of(mesh):
    """Return how many ranks the mesh has: four for `dp=2,tp=2`."""
    return math.prod(int(part.partition("=")[2]) for part in mesh.split(","))


def mesh_rows(args):
    """Return the rows for each mesh on so many GPUs: tokens/s beside ddp; none for a single GPU."""
    meshes = [mesh for mesh in args.mesh if size_of(mesh) > 1]
    if args.ranks < 2 or not meshes:
        return
    sides = {f"{name}, {args.ranks} ranks": (args.ranks, ["--strategy", name]) for name in ("ddp", "fsdp")}
    for mesh in meshes:
        strategy = "ddp" if "pp=" in mesh else "fsdp"
        sides[f"{mesh}, {strategy}"] = (size_of(mesh), ["--mesh", mesh, "--strategy", strategy])
    found = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, (ranks, words) in sides.items():
            found[name].append(child(args, "train", "--precision", "bf16", *words, ranks=ranks))
    speeds = {name: [min(one["tokens_per_s"] for one in ranks) for ranks in found[name]] for name in sides}
    base = next(iter(speeds.values()))
    for name, values in speeds.items():
        peaks = statistics.median(max(one["peak_bytes"] for one in ranks) for ranks in found[name])
        middle = f"{statistics.median(values):,.0f} | {min(values):,.0f}-{max(values):,.0f}"
        yield f"| {name} | {sides[name][0]} | {middle} | {ratio(values, base):.2f} | {peaks / 1e9:.2f} |"


def speed_rows(args):
    if not args.speeds:
        return
    found = {name: [] for name in args.speeds}
    for _ in range(args.rounds):
        for name, ones in found.items():
            ones.append(child(args, "train", *SPEEDS[name]))
    base = [one["tokens_per_s"] for one in found[args.speeds[0]]]
    for name, ones in found.items():
        speeds = [one["tokens_per_s"] for one in ones]
        peak = statistics.median(one["peak_bytes"] for one in ones) / 1e9
        middle = f"{statistics.median(speeds):,.0f} | {min(speeds):,.0f}-{max(speeds):,.0f}"
        told = statistics.median(one["told"] for one in ones)
        shares = [one["mfu"] for one in ones if one["mfu"] is not None]
        mfu = f"{100 * statistics.median(shares):.1f} %" if shares else "not known"
        yield f"| {name} | {middle} | {ratio(speeds, base):.3f} | {told:.2f} | {mfu} | {peak:.2f} |"


def overlap_rows(args):
    found = child(args, "overlap")
    without, beside, alone = (statistics.median(ones) for ones in zip(*found["rounds"], strict=True))
    hidden = 100 * (1 - max(0.0, beside - without) / alone)
    what = f"{found['buckets']} of together {found['bytes'] / 1e6:.0f} MB"
    yield f"| {what} | {without:.2f} | {beside:.2f} | {alone:.2f} | {hidden:.0f} % |"


def save_rows(args):
    for megabytes in args.megabytes:
        found = child(args, "save", str(megabytes))
        blocked, lost, durable, load, plain = zip(*found["rounds"], strict=True)
        stall = " | ".join(f"{statistics.median(values) * 1000:.1f}" for values in (blocked, lost))
        cells = f"{stall} | {spread(durable)} | {spread(load)} | {ratio(load, plain):.2f}"
        yield f"| {found['bytes'] / 1e9:.2f} GB | {cells} |"


def recovery_rows(args):
    """Return the rows for each task and mode; on one GPU the ranks share it."""
    for name in args.tasks if args.kills else ():
        task, words = TASKS[name]
        ranks = max(2, args.ranks)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(HERE / "shared_gpu.py", folder)
            Path(folder, "pyproject.toml").touch()
            Path(folder, "job.yaml").write_text(
                KILLED.format(
                    task=task, steps=args.kill_steps, every=max(1, args.kill_steps // 10), words=words, ranks=ranks
                )
            )
            plan = ["--modes", "hot,warm", "--kills", str(args.kills), "--json"]
            command = [Path(sys.executable).parent / "launch", "prove", "job.yaml", *plan]
            env = {**os.environ, "LAUNCH_RUNS": f"{folder}/runs", "XDG_STATE_HOME": f"{folder}/state"}
            env |= {"CUDA_VISIBLE_DEVICES": ""} if args.device == "cpu" else {}
            done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=folder, env=env)
        if not done.stdout.startswith("{"):
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
        for run in json.loads(done.stdout)["compared"]:
            hit = [kill for kill in run["kills"] if kill["next_step_s"] is not None]
            seconds = [kill["next_step_s"] for kill in hit]
            again = max((kill["steps_again"] for kill in hit), default=0)
            after = spread(seconds) if seconds else "- | -"
            yield f"| {name} | {ranks} | {run['mode']} | {len(hit)} | {after} | {again} | {run['verdict']} |"


def collective_rows(args):
    """Return the rows of collectives on so many GPUs; none for a single GPU."""
    if args.ranks < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if args.device == "cuda" else "gloo"
        words = ["--ranks", str(args.ranks), "--sizes", args.sizes, "--backend", backend, "--json"]
        command = [Path(sys.executable).parent / "launch", "doctor", "--collectives", *words]
        env = {**os.environ, "LAUNCH_RUNS": f"{folder}/runs", "XDG_STATE_HOME": f"{folder}/state"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=folder, env=env)
    if done.returncode:
        raise SystemExit(f"the collectives failed:\n{done.stdout}{done.stderr}")
    for one in json.loads(done.stdout)["lines"]:
        if one["size_bytes"]:
            times = " | ".join(f"{1e3 * one[name]:.3f}" for name in ("usual_s", "fastest_s", "slowest_s"))
            what = f"{one['operation']}, {one['ranks']} x {size(one['size_bytes'])}"
            yield f"| {what} | {times} | {one['bus_bytes_per_s'] / 1e9:.2f} | {one['wrong']} |"


def hang_rows(args):
    """A row for each kind of hang, on so many GPUs; nothing of one alone."""
    if args.ranks < 2:
        return
    for kind in args.hangs:
        found = []
        for style in ("hand", "ddp", "fsdp"):
            if (kind, style) in INAPPLICABLE:
                continue
            with Case(kind, style, f"1x{args.ranks}", args.device) as case:
                took_s, verdict = case.seconds_to_verdict()
                found.append((judged(kind, verdict, case.crashed()), took_s))
        yield f"| {kind} | {counted(found)} | {spread_of_hangs([took_s for _, took_s in found])} |"


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try this script itself")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--speeds", nargs="*", choices=SPEEDS, default=[*SPEEDS])
    parser.add_argument("--megabytes", type=int, nargs="*", default=[1000, 2000, 4000])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--kills", type=int, default=3, help="of each task and mode; 0: none")
    parser.add_argument("--kill-steps", type=int, default=200, help="of each training that is killed")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS], help="that are killed")
    parser.add_argument("--copies", type=int, default=20, help="of a bucket, in the place of its all-reduce")
    gpus = torch.cuda.device_count()
    parser.add_argument("--ranks", type=int, default=gpus, help="of collectives (default: all GPUs; one has nobody)")
    usual = [f"tp={gpus}", f"pp={gpus}", *(["dp=2,tp=2", "pp=2,dp=2"] if gpus == 4 else [])] if gpus > 1 else []
    parser.add_argument("--mesh", nargs="*", default=usual, metavar="MESH", help="dp=2,tp=2: beside ddp on all ranks")
    parser.add_argument("--sizes", default="64KB,1MB,16MB,256MB", help="of collectives, as launch doctor takes them")
    parser.add_argument("--hangs", nargs="*", choices=KINDS, default=[*KINDS], metavar="KIND", help="of hang.py")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; left out: the temporary folder")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, *words = args.child
        work = {"train": train, "overlap": lambda args, _: overlap(args)}
        said = json.dumps(work[what](args, words) if what in work else save_and_load(args, int(words[0])))
        sys.stdout.write(said + "\n")  # at once: lines of several ranks do not mix
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu.py: there is no NVIDIA GPU here: nothing was measured")
        return
    table = []
    for heads, rows in (
        ("| gpt | tokens/s | range | of the first | samples_per_s, of the truth | MFU | most memory, GB |", speed_rows),
        ("| buckets | backward, ms | and sent meanwhile, ms | sent alone, ms | hidden |", overlap_rows),
        (
            "| state | host blocked, ms | lost, ms | on disk, s | range | loaded, s | range | loaded / read |",
            save_rows,
        ),
        ("| ranks together | GPUs | tokens/s | range | of ddp | most memory of a rank, GB |", mesh_rows),
        ("| killed | ranks | mode | kills | kill to next step of all, s | range | steps again | end |", recovery_rows),
        ("| collective, GPUs x size | ms | fastest | slowest | bus, GB/s | wrong |", collective_rows),
        ("| hang | right | unknown | wrong | crashed | seconds to the verdict |", hang_rows),
    ):
        begun = False
        for row in rows(args):
            table += [] if begun else ["", heads, "|---" * (heads.count("|") - 1) + "|"]
            begun = True
            table.append(row)
            print(row, file=sys.stderr, flush=True)  # all of it takes a while
    card = torch.cuda.get_device_name() if args.device == "cuda" else "no GPU"
    shape = f"The model has {args.layers} layers of {args.width}"
    shape += f"; a step has {args.batch_size} windows of {args.context} bytes"
    told = f"The GPU was: {card}, with CUDA {torch.version.cuda}. {shape}."
    notes = (
        "The table with tokens/s has the speed of a training on one rank. `bf16` and `tf32` are precisions; "
        "`fsdp` is a strategy, and the other rows have the default one. In the row `bf16, waits once a "
        "step` the host waits for the GPU in each step, which `recovery: {mode: hot}` requires. `of the "
        "first` divides the speed by that of the first row. `samples_per_s, of the truth` divides the "
        "figure `samples_per_s` that `Trainer` reports by the speed that CUDA events show. MFU is the share "
        "of the GPU's peak that `Trainer` reports, and `most memory` is the peak of the memory of tensors.\n\n"
        "The table of buckets shows whether DDP sends gradients while the backward pass continues. One GPU "
        "has no partner, so a copy of each bucket of gradients on a CUDA stream of its own takes the place "
        "of the all-reduce. `backward` is the time of a backward pass without sending, `and sent meanwhile` "
        "with it, and `sent alone` the time of the sending alone. `hidden` is the share of the sending that "
        "did not make the backward pass longer. If it is negative, both together took longer than one after "
        "the other.\n\n"
        "The table of saves is about a checkpoint of a model and its Adam. `host blocked` is how long the "
        f"call of a save keeps the program, and `lost` how much longer {args.save_steps} steps took with a "
        "save among them. `on disk` is the time until the checkpoint is durable. `loaded` is the time to "
        "load and verify it, and `loaded / read` divides this by the time to read as many bytes into "
        "memory.\n\n"
        "The table of kills has recoveries from a killed rank. With one GPU, two ranks share it; `mode` is "
        "`recovery.mode`. `steps again` is the highest number of repeated steps. `exact` means that the "
        "training ended with the weights of an undisturbed run, to the last bit."
    )
    publish("gpu", "\n".join([*table[1:], "", told, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
