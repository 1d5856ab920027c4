"""Measure goodput, the share of the time that goes into steps that count, while faults occur, with launch, torchrun and
torchft.

    uv run [--with torchft-nightly] python tests/benchmarks/goodput.py [--minutes 6 --gaps 20 60] [--write]
    uv run python tests/benchmarks/goodput.py --only [--rounds 3] [--write]

Goodput: useful steps, each counted once, of what the undisturbed training does in the same time. The time begins at
the first step; the pace of the undisturbed training is that of the same run before the first fault. Three nodes of one
rank each, on this machine and on the hosts of tests/lab (as root): 20 minutes for two sides. One fault comes every
20 s, at random moments from a seed, the same for all sides: kills of ranks alone, or mixed with stopped ranks, killed
and frozen agents, killed zygotes, and cut cables where there are some. What it would be with one per 60 s is reckoned
from what a fault cost. A step that only a part of the ranks makes counts as that part.

`--sides "launch, hot" --places local` is `recovery: {mode: hot}`, for which a `Trainer` trains that model: only such
ranks stay when one is killed.

`--only` is another measurement, of launch alone: in each round each kind of fault once, and how long each phase of the
restart took. The next one comes when a host that was without power is back, as somebody has asked for the run's status.
"""

import contextlib
import itertools
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), *(str(Path(__file__).parents[1] / name) for name in ("local", "ssh"))]
from goodput_account import PHASES, Blow, at_gap, costs, first_of_all, middle_costs, pace, useful_steps
from goodput_faults import LAST, ON_HOSTS, ONE_BY_ONE
from goodput_worlds import HOT, KILLS, LAUNCH, MIXED, NODES, TORCHFT, TORCHRUN, side_of, small_side
from results import benchmark_parser, publish

from tests.chaos.schedule import Kind, Strike, drawn
from tests.chaos.worlds import SmallPool
from tests.lab.hosts import HostLab

START_S = 240.0
LASTS_S = 8.0  # of a fault that ends: longer than the lease, and the time that its host needs to start again
APART_S = {"local": 20.0, "ssh": 40.0}
ASK_S, LOOK_S = 60.0, 6.0
HERE, HOSTS = "local", "ssh"
SELDOM_S = 60
TARGETS = {(KILLS, 60): 0.97, (MIXED, 60): 0.90, (KILLS, 20): 0.92, (MIXED, 20): 0.75}
HOT_TARGETS = {(KILLS, 60): 0.99, (KILLS, 20): 0.97}


def moments(kinds, every_s, minutes, seed):
    """The strikes of one run, one in each `every_s`, at a random moment of it."""
    chance = random.Random(f"{seed} {every_s}")
    strikes = drawn(seed, kinds, int(minutes * 60 / every_s), (1.0, 1.0))
    return [(every_s * index + chance.uniform(0, every_s), strike) for index, strike in enumerate(strikes)]


class Disturbed:
    """One training of one side, and what was done to it."""

    def __init__(self, world, every):
        self.world, self.blows = world, []
        world.begin(every)

    def begun(self, calm_s):
        """Wait until all ranks have made a step and `calm_s` has passed; return the time, and the undisturbed pace."""
        since = self._until(lambda notes: first_of_all(notes, NODES))
        sleep_until(since + calm_s)
        now = time.time()
        return now, pace(self.world.notes(), NODES, since, now)

    def _until(self, condition):
        deadline = time.monotonic() + START_S
        while (found := condition(self.world.notes())) is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"no step of all in {START_S:.0f} s:\n{self.world.said()}")
            time.sleep(0.1)
        return found

    def strike(self, began, strikes):
        """Each fault at its moment, whatever the one before has left."""
        with contextlib.ExitStack() as undo:
            for after_s, strike in strikes:
                sleep_until(began + after_s)
                fault = self.world.faults[strike.fault](self.world, strike.target)
                at = time.time()
                if undo.enter_context(fault):
                    self.blows.append(Blow(at, strike.fault))
                sleep_until(at + strike.lasts_s)
                undo.pop_all().close()

    def strike_alone(self, strike, apart_s):
        """One fault, its end, and looks at the run, which bring hosts back, until the next one may come."""
        at = time.time()
        with self.world.one_by_one[strike.fault](self.world, strike.target) as hit:
            if hit:
                self.blows.append(Blow(at, strike.fault))
                sleep_until(at + strike.lasts_s)
            else:
                print_progress(f"    {strike.fault}: there was nothing to hit")
        while time.time() < at + apart_s:
            self.world.status(self.world.desk, ASK_S)
            sleep_until(min(time.time() + LOOK_S, at + apart_s))


def sleep_until(at):
    time.sleep(max(0.0, at - time.time()))


def measure(peer, kind, every_s, args, hosts):
    """Goodput, and the costs of its faults."""
    with tempfile.TemporaryDirectory(prefix="goodput-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with side_of(peer, folder, hosts) as world:
            kinds = world.mixed if kind == MIXED else {"kill-rank": Kind()}
            disturbed = Disturbed(world, args.every)
            began, rate = disturbed.begun(args.calm_s)
            until = began + args.minutes * 60
            disturbed.strike(began, moments(kinds, every_s, args.minutes, args.seed))
            sleep_until(until)
            notes = world.notes()
            share = useful_steps(notes, NODES, began, until) / (rate * (until - began))
            found = costs(notes, NODES, disturbed.blows, world.decisions(), rate, until)
            print_progress(
                f"{peer}, {kind} every {every_s} s: {share:.3f}, {rate:.1f} steps/s, {len(disturbed.blows)} faults"
            )
            print_costs(found)
            return share, [blow.fault for blow in disturbed.blows], found


def measure_one_by_one(place, args, hosts):
    """Return the faults that hit, and the cost of each."""
    with tempfile.TemporaryDirectory(prefix="goodput-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with small_side(folder, hosts) as world:
            disturbed = Disturbed(world, args.every)
            _, rate = disturbed.begun(args.calm_s)
            apart_s, target = args.apart_s or APART_S[place], random.Random(args.seed)
            for fault in args.only or world.one_by_one:
                if fault in world.one_by_one:
                    disturbed.strike_alone(Strike(0.0, fault, target.randrange(1000), LASTS_S), apart_s)
            found = costs(world.notes(), NODES, disturbed.blows, world.decisions(), rate, time.time())
            print_progress(f"{place}, one by one: {rate:.1f} steps/s, {len(disturbed.blows)} faults")
            print_costs(found)
            return [blow.fault for blow in disturbed.blows], found


def print_costs(found):
    """Print what each fault cost."""
    for cost in found:
        phases = " ".join(f"{phase} {seconds:.2f}" for phase, seconds in cost.phases.items())
        print_progress(f"    {cost.fault}: {cost.total_s:.2f} s: {phases} again {cost.again_s:.2f}")


def print_progress(text):
    """Print the text on stderr at once."""
    print(text, file=sys.stderr, flush=True)


def goodput_rows(place, taken):
    """Return the table's rows; those for rare faults are computed from the others unless they were measured."""
    yield "| where | faults | one per | | goodput | range | faults that hit | target |"
    yield "|---|---|---|---|---|---|---|---|"
    for (kind, every_s, peer), rounds in taken.items():
        shares = sorted(share for share, _, _ in rounds)
        hits = sum(len(hits) for _, hits, _ in rounds)
        yield goodput_row(place, (kind, every_s, peer), shares, hits)
        if (kind, SELDOM_S, peer) not in taken:
            seldom = [at_gap(share, every_s, SELDOM_S) for share in shares]
            yield goodput_row(place, (kind, SELDOM_S, peer), seldom, "reckoned")


def goodput_row(place, of, shares, hits):
    kind, every_s, peer = of
    target = {LAUNCH: TARGETS, HOT: HOT_TARGETS}.get(peer, {}).get((kind, every_s), "")
    span = f"{shares[0]:.3f}-{shares[-1]:.3f}"
    middle = statistics.median(shares)
    return f"| {place} | {kind} | {every_s} s | {peer} | {middle:.3f} | {span} | {hits} | {target} |"


def cost_rows(place, taken):
    yield f"| where | | fault | n | {' | '.join(PHASES)} | next step | made again | whole, s |"
    yield "|---" * (len(PHASES) + 7) + "|"
    for peer in dict.fromkeys(peer for _, _, peer in taken):
        found = [cost for (_, _, one), rounds in taken.items() if one == peer for *_, costs in rounds for cost in costs]
        for fault, (count, phases, *sums) in middle_costs(found).items():
            cells = " | ".join(f"{phases[phase]:.2f}" if phase in phases else "" for phase in PHASES)
            yield f"| {place} | {peer} | {fault} | {count} | {cells} | {' | '.join(f'{s:.2f}' for s in sums)} |"
        hits = Counter(
            hit for (*_, one), rounds in taken.items() if one == peer for _, hits, _ in rounds for hit in hits
        )
        for fault in sorted(hits.keys() - {cost.fault for cost in found}):
            yield f"| {place} | {peer} | {fault} | {hits[fault]} |{' |' * (len(PHASES) + 2)} no start seen |"


def main():
    parser = benchmark_parser(__doc__, seed=True)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="in each of which all sides take their turn")
    parser.add_argument("--calm-s", type=float, default=10.0, help="before the first fault, for the undisturbed pace")
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--gaps", type=int, nargs="+", default=[20], help="seconds to a fault")
    parser.add_argument("--faults", nargs="+", choices=[KILLS, MIXED], default=[KILLS, MIXED])
    only = [*(ONE_BY_ONE | ON_HOSTS | LAST)]
    parser.add_argument(
        "--only", nargs="*", choices=only, help="the phases of these faults alone; of all where none is named"
    )
    parser.add_argument("--apart-s", type=float, help=f"from one of --only to the next (default: {APART_S})")
    parser.add_argument("--places", nargs="+", choices=[HERE, HOSTS], default=[HERE, HOSTS])
    peers = [LAUNCH, HOT, TORCHRUN, TORCHFT]
    parser.add_argument("--sides", nargs="+", choices=peers, help=f"default: all that are installed, but {HOT}")
    args = parser.parse_args()
    missing = find_spec("torchft") is None
    if missing and TORCHFT in (args.sides or ()):
        parser.error("not installed: torchft; run it by `uv run --with torchft-nightly python …`")
    if HOT in (args.sides or ()) and HOSTS in args.places:
        parser.error(f"{HOT}: on this machine alone; add `--places {HERE}`")
    args.sides = args.sides or [peer for peer in peers if peer != HOT and (peer != TORCHFT or not missing)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the lab comes down
    if args.only is None:
        measure_goodput(args, missing=missing)
    else:
        measure_phases(args)


def measure_goodput(args, *, missing):
    """Measure the goodput of each side, and publish it."""
    tables = []
    for place in args.places:
        with lab_of(place) as hosts:
            taken = {}
            for number in range(args.rounds):
                args.seed += number
                for kind, every_s, peer in ((k, e, p) for k in args.faults for e in args.gaps for p in args.sides):
                    found = measure(peer, kind, every_s, args, hosts)
                    taken.setdefault((kind, every_s, peer), []).append(found)
        tables += ["", *goodput_rows(place, taken), "", *cost_rows(place, taken)]
    publish("goodput", "\n".join([*tables[1:], "", legend(args, missing)]), write=args.write)


def measure_phases(args):
    """Measure what each kind of fault costs, and publish it."""
    rows = [*cost_rows("", {})]
    for place in args.places:
        with lab_of(place, disk_size=SmallPool.disk_size) as hosts:
            rounds = []
            for number in range(args.rounds):
                args.seed += number
                rounds.append((0.0, *measure_one_by_one(place, args, hosts)))
            rows += itertools.islice(cost_rows(place, {("", 0, LAUNCH): rounds}), 2, None)
    text = (
        f"The training ran on {NODES} nodes with one rank each: in the rows `local` on this machine, in the "
        "rows `ssh` on hosts of tests/lab (network namespaces of this machine, each with an sshd), with one "
        "more host as a spare. Each kind of fault was injected alone, `n` times. A node without contact "
        f"counts as lost after 4 s. A new process imported what the training imports in {import_s():.2f} s."
    )
    text = f"{text}\n\nThe faults were:\n\n{FAULTS_MEAN}\n\n{PHASES_MEAN}"
    publish("goodput_phases", "\n".join([*rows, "", text]), write=args.write, title="goodput.py --only", what=ALONE)


def import_s():
    """Return the seconds that a new process takes to import what goodput_steps.py imports."""
    took, imports = [], "import torch.distributed, torch.nn.parallel, trainer; trainer.Checkpointer"
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", imports], check=True)
        took.append(time.monotonic() - began)
    return statistics.median(took)


@contextlib.contextmanager
def lab_of(place, *, disk_size=""):
    """Yield the hosts of this place, or None for this machine."""
    with tempfile.TemporaryDirectory(prefix="goodput-lab-") as name, contextlib.ExitStack() as stack:
        Path(name).chmod(0o755)
        yield stack.enter_context(HostLab(Path(name), NODES + 1, disk_size=disk_size)) if place == HOSTS else None


ALONE = "Measure how long each phase of a recovery by launch takes, for each kind of fault alone."
FAULTS_MEAN = (
    "- `kill-rank`, `kill-agent`, `kill-supervisor` and `kill-zygote` are a SIGKILL to one process of this kind.\n"
    "- `kill-coordinator` is a SIGKILL to the agent of node 0, which contains the coordinator, the part "
    "that decides about restarts.\n"
    "- `kill-all-warm` kills the rank, the zygote and the standby (a copy of the zygote) of a node, so that "
    "no process is left there that has imported torch.\n"
    "- `stop-rank` is a SIGSTOP to a rank.\n"
    f"- `freeze-agent` stops an agent for {LASTS_S:g} s, and `freeze-node` stops every process of the run on "
    f"a node for {LASTS_S:g} s.\n"
    f"- `full-disk` fills the disk of a node for {LASTS_S:g} s.\n"
    f"- `cut-both` drops the network packets that a host sends and receives, for {LASTS_S:g} s. `cut-link` "
    f"disconnects its network interface for {LASTS_S:g} s.\n"
    f"- `power` cuts the power of a host for {LASTS_S:g} s. `power-leader` does this to the host of node 0."
)
PHASES_MEAN = (
    "The columns from `noticed` to `step` are the phases of a recovery, in seconds and as medians over the "
    "`n` faults of a kind: the failure is `noticed` and all ranks have ended, the next start is `decided`, "
    "scripts have `begun`, their modules are `imported`, ranks have `met`, the state is `loaded`, the first "
    "`step` is done. A phase ends when the last rank has done it. `next step` is the sum of these phases. "
    "If no rank was restarted after a fault, there are no phases, and `next step` is the longest time "
    "without a step, less the usual time of one step. `made again` is the time of the steps since the last "
    "checkpoint, which are repeated, and `whole, s` is the sum of `next step` and `made again`."
)


def legend(args, missing):
    measured = (
        "The two tables with the column `goodput` have one training in each measured row: with the program "
        f"of the fourth column, for {args.minutes:g} minutes. Time was divided into intervals as long as the "
        "column `one per` says, and in each of them one fault occurred at a random moment (seed "
        f"{args.seed}). The training ran on {NODES} nodes with one rank each, and saved a checkpoint every "
        f"{args.every} steps. In the rows `local` the nodes were on this machine; in the rows `ssh` they "
        "were hosts of tests/lab (network namespaces of this machine, each with an sshd). The faults called "
        "`rank kills` were only of the kind `kill-rank`. The faults called `mixed` were of the kinds "
        "`kill-rank`, `stop-rank`, `kill-agent` and `freeze-agent`, for launch also `kill-zygote`, and on "
        "`ssh` also `cut-both` and `reset`."
    )
    goodput = (
        "`goodput` is the number of steps that were made, each counted once, divided by the number that the "
        "same training would have made in this time at its speed before the first fault. It exceeds 1 if "
        "the machine becomes faster. `faults that hit` is the number of faults, and `target` is the goodput "
        "that launch is meant to reach at least. A row with `reckoned` was not measured: its goodput, with "
        f"one fault per {SELDOM_S} s, is computed from the row above, as if each fault cost as much as "
        "there. This is too high if a program had not recovered when the next fault occurred."
    )
    faults = (
        "`kill-rank`, `kill-agent` and `kill-zygote` are a SIGKILL to such a process, and `stop-rank` is a "
        "SIGSTOP to a rank. `freeze-agent` stops an agent for 1 to 8 s. For as long, `cut-both` drops the "
        "network packets that a host sends and receives, and `reset` resets its TCP connections. torchft "
        "has no agents: there `kill-agent` and `freeze-agent` hit a rank."
    )
    costs_mean = (
        f"The two tables with the column `fault` have what a fault cost. {PHASES_MEAN} If a program does not "
        "report the end of a phase, its time is part of the next phase that is shown. `no start seen` means "
        "that between this fault and the next one no rank was started whose phases could be timed. A killed "
        "zygote is such a case: its ranks continue, so it costs no step."
    )
    absent = ["torchft was not installed."] if missing else []
    return "\n\n".join([measured, goodput, faults, costs_mean, *absent])


if __name__ == "__main__":
    main()
