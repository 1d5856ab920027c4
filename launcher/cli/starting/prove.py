"""`launch prove`: train once undisturbed and several times with kills, and compare the results bit by bit."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.cli.arguments import Arguments, number_below
from launcher.cli.figures import duration
from launcher.cli.terminal import columns, paint, safe, show_news, tell, to_json
from launcher.errors import Exit

if TYPE_CHECKING:
    from launcher.apps.proof.findings import ComparedRun, Kill, Proof, StateDeparture

EXAMPLES = """
  launch prove job.yaml --steps 60                the training, 60 steps of it, undisturbed, and killed in each mode
  launch prove job.yaml --set run.args.epochs=1   if --steps finds no option for the number of steps
  launch prove last --steps 60                    a run's training, with the run's code
  launch prove job.yaml --modes power --kills 5   all processes of the run are killed five times, and the run is resumed
  launch prove job.yaml --seed 7                  the same kills again
  launch prove job.yaml --metric loss --json      what is compared; prints everything as JSON

Modes: warm, one rank is killed; power, all that there is of the run on a node; hot, one rank is killed and the others
stay (recovery.mode). Ends with 0 where the training is exact,
with 7 where it differs, with 4 where nothing could be hit or compared, else as the run that failed.
`launch help proof` is the page.
"""
_COLOURS = {"exact": "green", "differs": "red", "failed": "red", "unproven": "yellow"}
_KEPT_SHOWN = 3
_NUMBER = number_below(10**9)


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch prove`."""
    arguments.add_argument("what", metavar="RUN_OR_SPEC", help="a YAML file; or a run's id, or `last`, with its code")
    arguments.takes_place(default=None, shown="the cluster of a run; local for a spec")
    arguments.add_argument("--steps", metavar="N", type=_NUMBER, help="number of steps of the training, in all runs")
    arguments.add_argument(
        "--kills", metavar="N", type=_NUMBER, default=3, help="number of kills in each mode (default: 3)"
    )
    arguments.add_argument(
        "--modes",
        metavar="MODE,...",
        default="",
        help="some of warm, power, hot (default: all, but no hot where the spec's recovery.mode is warm)",
    )
    arguments.add_argument(
        "--seed", metavar="N", type=int, help="seed of the steps and ranks that are killed (default: a new one)"
    )
    arguments.add_argument(
        "--metric", metavar="NAME", action="append", default=[],
        help="compare this reported number at each step; may be repeated (default: losses, accuracies, lr, norm)",
    )  # fmt: skip
    arguments.add_argument("--keep", action="store_true", help="keep the runs even if the proof is exact")
    arguments.prints_json(_answers, "all that was found, for programs")


def _answers() -> "dict[str, type[Proof]]":
    """Return the type of what `launch prove --json` prints, under the key "", as it has only one form."""
    from launcher.apps.proof.findings import Proof  # late: the help does without

    return {"": Proof}


def run(options: argparse.Namespace) -> int:
    """Run `launch prove` and return its exit code."""
    from launcher.apps.proof.proving import prove  # late: the help does without

    show_news()
    proof = prove(
        options.what,
        on=options.on,
        overrides=options.overrides,
        kills=options.kills,
        seed=options.seed,
        modes=[mode.strip() for mode in options.modes.split(",") if mode.strip()],
        steps=options.steps,
        metrics=options.metric,
        keep=options.keep,
        tell=tell,
    )
    print(to_json(proof) if options.json else "\n".join(lines_of(proof)))
    return _exit_of(proof)


def _exit_of(proof: "Proof") -> int:
    """Return the exit code for the proof's verdict: OK if exact, DIFFERS if a run differs, REFUSED if unproven. If a
    run failed, return that run's exit code, or LAUNCHER_FAULT if none is known.
    """
    match proof.verdict.value:
        case "exact":
            return Exit.OK
        case "differs":
            return Exit.DIFFERS
        case "unproven":
            return Exit.REFUSED
        case _:
            codes = [one.exit_code for one in proof.compared if one.verdict == "failed"] or [proof.exit_code]
            return next((code for code in codes if code), Exit.LAUNCHER_FAULT)


def lines_of(proof: "Proof") -> list[str]:
    """Return the lines about a proof: kills, results, what differs and why, and the verdict last."""
    found = [f"{proof.id}: {proof.steps} steps, seed {proof.seed}"]
    if kills := [(one, kill) for one in proof.compared for kill in one.kills]:
        found += ["", *columns([_KILL_HEADS, *(_kill_cells(one.mode, kill) for one, kill in kills)])]
    if proof.compared:
        found += ["", *columns([_RUN_HEADS, _undisturbed_cells(proof), *(_run_cells(one) for one in proof.compared)])]
    for one in proof.compared:
        told = [*_differences(one)]
        found += ["", f"{one.mode} {one.verdict}:", *(f"  {line}" for line in told)] if told else []
    if proof.kept:
        ids = " ".join(proof.kept)
        found += ["", f"its runs: {ids}"]
    why = f": {proof.why}" if proof.why else ""
    return [safe(line) for line in found] + ["", paint(proof.verdict.value, _COLOURS[proof.verdict]) + safe(why)]


_KILL_HEADS = ("MODE", "KILLED", "AT STEP", "WENT ON FROM", "STEPS AGAIN", "NEXT STEP AFTER")
_RUN_HEADS = ("RUN", "TOOK", "STEPS COMPARED", "CHECKPOINTS", "FINGERPRINT", "VERDICT")


def _kill_cells(mode: str, kill: "Kill") -> tuple[str, ...]:
    """Return the cells of a kill's row in the table of kills, with the heads _KILL_HEADS.

    `mode` is the run's, from `--modes`: warm or hot (the run's `recovery.mode`), or power (all of a node is killed).
    """
    if kill.missed:
        return mode, "nobody", str(kill.planned_step), "-", "-", f"- ({kill.missed})"
    whom = f"all of node {kill.node}" if kill.rank is None else f"rank {kill.rank}"
    after = "-" if kill.next_step_s is None else f"{kill.next_step_s:.2f} s"
    return (
        mode,
        whom,
        *("-" if one is None else str(one) for one in (kill.step, kill.went_on_from, kill.steps_again)),
        after,
    )


def _undisturbed_cells(proof: "Proof") -> tuple[str, ...]:
    """Return the undisturbed run's row in the table of runs: how long it took and its fingerprint; the other columns
    are about kills and the comparison with it.
    """
    return "undisturbed", duration(proof.undisturbed_s), "-", "-", (proof.fingerprint or "none")[:12], "-"


def _run_cells(one: "ComparedRun") -> tuple[str, ...]:
    """Return the table's row of a disturbed run: the way it was disturbed, its duration, how many of its steps were
    compared, the last three compared checkpoints, the start of its fingerprint (the digest of its final state), and the
    verdict.
    """
    checkpoints = ", ".join(map(str, one.checkpoints[-3:])) or "none"
    mark = (one.fingerprint or "none")[:12]
    return one.mode, duration(one.took_s), str(one.steps), checkpoints, mark, one.verdict.value


def _differences(one: "ComparedRun") -> Iterator[str]:
    """Yield lines on where the disturbed run's metrics and saved state first differ from the undisturbed one's, and on
    probable causes.
    """
    if one.why:
        yield one.why
    if one.first is not None:
        yield (
            f"first at step {one.first.step}: {one.first.metric} of rank {one.first.rank} is {one.first.disturbed!r}, "
            f"undisturbed {one.first.undisturbed!r}"
        )
    if one.first_state is not None:
        yield from _state_lines(one.first_state)
    if one.again_differs is not None:
        yield f"a second undisturbed run differs as well, first at step {one.again_differs}"
    if one.causes:
        yield "what usually makes it:"
        yield from (f"- {cause}" for cause in one.causes)


def _state_lines(state: "StateDeparture") -> Iterator[str]:
    """Yield lines about the first checkpoint that differs: its first different tensor and other state."""
    head = f"first in the checkpoint of step {state.step}: "
    if state.tensor:
        place = f"[{', '.join(map(str, state.index))}]" if state.index else ""
        yield (
            f"{head}{state.tensor}{place} is {state.disturbed}, undisturbed {state.undisturbed}; "
            f"{state.different} of {state.tensors} tensors differ{'s'[: state.different == 1]}"
        )
    if state.kept:
        more = f" and {len(state.kept) - _KEPT_SHOWN} more" if len(state.kept) > _KEPT_SHOWN else ""
        yield f"{'' if state.tensor else head}other state that differs: {', '.join(state.kept[:_KEPT_SHOWN])}{more}"
