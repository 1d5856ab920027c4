"""Measure the time from kill -9 of a rank to the next step: launch, torchft, NVRx, Ray Train, Monarch and torchrun.

    uv run python tests/benchmarks/field.py [--peers launch torchft NVRx …] [--starts 5] [--write]

The tiny MLP of tiny_mlp.py by DDP on 4 ranks, with the same data, batch, pause in each step and steps to a checkpoint
under all: in a `Trainer` under launch (`recovery: {mode: hot}`) and torchrun, under the others as their documentation
shows it (field_steps.py). Each peer gets an environment of its own from the package index, with the torch of this one;
one that cannot be installed or does not make a step is named with its error, and the others are measured.

A random rank is killed at a random moment: any but rank 0, whose process has the store of NVRx. It is whole again when
all 4 ranks make a step in which one that is in another process has part. torchft's survivors go on before that: theirs
is the first step that all three make and that the killed one cannot have had part in. NVRx waits for
gloo's time-out, and has two rows: with the 10 s of its examples and its defaults, and with as little as may be.
"""

import dataclasses
import itertools
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from race import HOT, WITH_VARIABLE, Race, free_port
from results import benchmark_parser, installed, publish
from resume_step import PRELOAD
from sides import take_turns

TORCHFT, NVRX, NVRX_SHORT, RAY, MONARCH = "torchft", "NVRx", "NVRx, shorter time-outs", "Ray Train", "Monarch"
PACKAGES = {
    TORCHFT: "torchft-nightly",
    NVRX: "nvidia-resiliency-ext",
    NVRX_SHORT: "nvidia-resiliency-ext",
    RAY: "ray[train]",
    MONARCH: "torchmonarch",
}
# Its newest wheels are for glibc 2.39; what the race uses of it is plain Python, which runs with an older one.
PLATFORM = {"nvidia-resiliency-ext": ["--python-platform", "x86_64-manylinux_2_39"]}
LIMITS = {NVRX: ["--patience-s", 10], NVRX_SHORT: ["--patience-s", 1, "--look-s", 0.1]}
PAUSE_S = (0.5, 1.5)
START_S = 400  # Ray takes minutes on a busy machine


class Peer(Race):  # type: ignore[misc] # found on the path of scripts
    """A training of field_steps.py, with the Python that its packages are installed for."""

    def __init__(self, peer, python, ranks, kills, *words):
        super().__init__(peer, ranks, *words, script="field_steps.py")
        self.python, self.kills = python, kills

    def _command(self):
        how = {TORCHFT: self._torchft, NVRX: self._nvrx, NVRX_SHORT: self._nvrx, RAY: self._ray, MONARCH: self._monarch}
        return how[self.peer]()

    def _steps(self, name, *words):
        return shlex.join(map(str, [self.python, self.script, name, "--ranks", self.ranks, *self._words, *words]))

    def _torchft(self):
        """A lighthouse, and a loop in a shell for each replica group, which starts what has ended anew."""
        port = free_port()
        quorum = [
            "--min_replicas",
            "1",
            "--quorum_tick_ms",
            "100",
            "--join_timeout_ms",
            "1000",
            "--bind",
            f"[::]:{port}",
        ]
        lighthouse = shlex.join([str(self.python.with_name("torchft_lighthouse")), *quorum])
        groups = [f"while :; do {self._steps('torchft', '--rank', rank)}; done" for rank in range(self.ranks)]
        return in_shell([lighthouse, *groups]), {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}

    def _nvrx(self):
        """Processes for all ranks and for as many as will be killed: those stand by, and are not started anew."""
        port = free_port()
        size = self.ranks + self.kills
        words = [f"RANK={rank} {self._steps('nvrx', '--rank', rank, '--port', port)}" for rank in range(size)]
        return in_shell(words), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}

    def _ray(self):
        """Without what it makes of a parent that is `uv run`: workers in that environment, where there is no Ray."""
        more = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_AUTH_MODE": "disabled"}
        return shlex.split(self._steps("ray")), {"PYTHONPATH": str(self.folder / "project"), **more}

    def _monarch(self):
        return shlex.split(self._steps("monarch")), {"PYTHONPATH": str(self.folder / "project")}


def in_shell(commands):
    return ["sh", "-c", "\n".join([*(f"({command}) &" for command in commands), "wait"])]


class NotMeasuredError(Exception):
    """A peer that cannot be installed, or makes no step: its last words."""


def python_with(package, folder):
    """The Python of a new environment in which there are a package and the torch of this one."""
    where = folder / package.partition("[")[0]
    if not where.exists():
        torch = f"torch=={installed('torch').partition('+')[0]}"
        output_of(["uv", "venv", "--quiet", "--python", sys.executable, where])
        platform = PLATFORM.get(package, [])
        output_of(["uv", "pip", "install", "--quiet", *platform, "--python", where, torch, "numpy", package])
    return where / "bin" / "python"


def output_of(command):
    """Return the command's stripped stdout; raise `NotMeasuredError` with stderr's last line if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotMeasuredError(last_line(done.stderr))
    return done.stdout.strip()


def last_line(text):
    return text.strip().rpartition("\n")[2] or "it said nothing"


@dataclasses.dataclass(frozen=True)
class Recovery:
    """The recovery after a kill, in seconds from the kill."""

    survivors_s: float  # until the next step of those that were not killed
    whole_s: float


def kill(race, chance, patience_s):
    """None: it was not whole again in time."""
    time.sleep(chance.uniform(*PAUSE_S))  # the moment is part of the question
    race.wait(lambda: True, 1)
    victim, strangers = chance.randrange(1, race.ranks), race.all_pids()
    at = time.monotonic()
    os.kill(race.pids()[victim], signal.SIGKILL)
    if not race.wait(lambda: race.firsts_in_place(strangers, at), patience_s):
        return None
    whole = max(race.firsts_in_place(strangers, at)) - at
    others = [race.notes[rank] for rank in range(race.ranks) if rank != victim]
    if race.peer != TORCHFT:
        return Recovery(whole, whole)
    last = max(int(what) for when, _, what in race.notes[victim] if when < at)
    without = [next(when for when, _, what in notes if when > at and int(what) > last + 1) for notes in others]
    return Recovery(max(without) - at, whole)


def kills(race, count, chance, patience_s, steps):
    """Yield the recoveries from the kills of one start; after one without recovery there are no more."""
    taken = []
    with race:
        if not race.wait(race.firsts, START_S):
            raise NotMeasuredError(f"no step in {START_S} s: {last_line(race.said())}")
        while len(taken) < count and None not in taken:
            taken.append(kill(race, chance, patience_s))
            print(f"{race.peer}: {taken[-1]}", file=sys.stderr, flush=True)
        steps.append(race.step_s())
    return taken


def spread(values):
    return f"{statistics.median(values):.2f} | {min(values):.2f}-{max(values):.2f}"


def row(peer, taken, step_s, ours):
    good = [one for one in taken if one is not None]
    head = f"| {peer} | {len(good)} of {len(taken)} "
    if not good:
        return f"{head}| - | - | - | - | - | - | {step_s:.3f} |"
    survivors, whole = [one.survivors_s for one in good], [one.whole_s for one in good]
    shares = [f"{ours / statistics.median(values):.3f}" for values in (survivors, whole)]
    return f"{head}| {spread(survivors)} | {shares[0]} | {spread(whole)} | {shares[1]} | {step_s:.3f} |"


def starter(peer, args, folder):
    """Return a function that starts a peer's side of the race."""
    pause = ["--step-s", args.step_s]
    if peer in (HOT, WITH_VARIABLE):
        words = ["--mlp", "--checkpoint-every", f"{args.every} steps", *pause]
        return lambda: Race(peer, args.ranks, *words, script="trained_steps.py", preload=PRELOAD)
    words = ["--every", args.every, *pause, *LIMITS.get(peer, [])]
    python = python_with(PACKAGES[peer], folder)
    return lambda: Peer(peer, python, args.ranks, args.kills, *words)


def main():
    peers = [HOT, TORCHFT, NVRX, NVRX_SHORT, RAY, MONARCH, WITH_VARIABLE]
    parser = benchmark_parser(__doc__, seed=True)
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers, help="that race launch, hot")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--starts", type=int, default=5, help="of each")
    parser.add_argument("--kills", type=int, default=2, help="after each start")
    parser.add_argument("--step-s", type=float, default=0.02, help="time that a step takes beside its work")
    parser.add_argument("--every", type=int, default=50, help="steps to a checkpoint")
    parser.add_argument("--patience-s", type=float, default=90)
    args = parser.parse_args()
    args.peers = [HOT, *(peer for peer in args.peers if peer != HOT)]
    chance = random.Random(args.seed)
    steps, failed = {peer: [] for peer in args.peers}, {}
    with tempfile.TemporaryDirectory(prefix="field-") as name:
        folder = Path(name)

        def measure(peer, _):
            if peer in failed:
                return []
            try:
                return kills(starter(peer, args, folder)(), args.kills, chance, args.patience_s, steps[peer])
            except NotMeasuredError as error:
                failed[peer] = str(error)
                return []

        taken = {
            peer: [*itertools.chain(*found)] for peer, found in take_turns(args.starts, args.peers, measure).items()
        }
        used = {PACKAGES[peer] for peer in args.peers if peer in PACKAGES and peer not in failed}
        versions = [f"{package} {version_of(package, folder)}" for package in sorted(used)]
    publish("field", "\n".join([*table(taken, steps), "", *legend(args, versions, failed)]), write=args.write)


def version_of(package, folder):
    script = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    return output_of([python_with(package, folder), "-c", script, package.partition("[")[0]])


def table(taken, steps):
    yield (
        "| | recovered | kill to next step of survivors, s | range | launch / this | of all ranks, s | range "
        "| launch / this | a step, s |"
    )
    yield "|---" * 9 + "|"
    ours = statistics.median(one.whole_s for one in taken[HOT] if one is not None)
    for peer, found in taken.items():
        if found:
            yield row(peer, found, statistics.median(steps[peer]), ours)


def legend(args, versions, failed):
    yield (
        "`survivors` are the ranks that were not killed; `of all ranks` is the time from the kill until the killed "
        f"rank trains again, too. Only {TORCHFT}'s survivors make steps before that. Both columns `launch / this` "
        f"divide the time of `{HOT}` for all ranks by that of the row. Each program trained the tiny MLP on "
        f"{args.ranks} ranks, was started {args.starts} times, and had {args.kills} kills a start (seed {args.seed}). "
        "NVRx is the package nvidia-resiliency-ext; it had one standby process for each kill. Its second row has the "
        f"shortest time-outs that it can have. Versions: {', '.join(versions)}."
    )
    yield from (f"{peer} was not measured: `{error}`" for peer, error in failed.items())


if __name__ == "__main__":
    main()
