"""Sides of a race that take turns on the nodes of a lab, and the rows of its table; the first side is ours."""

import statistics
import time

LAUNCH = "launch"
START_S = 240.0
STEADY_S = 0.5  # so that a kill falls into steady training


def take_turns(pairs, peers, measure):
    """Return the results of `measure` for each side, one side after the other in every turn."""
    taken = {peer: [] for peer in peers}
    for turn in range(pairs):
        for peer, values in taken.items():
            values.append(measure(peer, turn))
    return taken


def to_recover(steps, strike, patience_s, ranks=4, left=None):
    """Seconds from the blow to the next step of all in processes that were not there before; None: it never comes.

    `left`: how many ranks there are then, where that is another number.
    """
    steps.wait(START_S, ranks=ranks)
    time.sleep(STEADY_S)
    notes = steps.notes()
    before = frozenset((rank, pid) for rank in notes for _, pid in notes[rank])
    at = time.monotonic()
    strike(notes)
    last = steps.wait(patience_s, after=at, strangers=before, ranks=left or ranks)
    return None if last is None else last - at


def first_step_row(what, taken):
    ours, (peer, theirs) = middle(taken[LAUNCH]), next(pair for pair in taken.items() if pair[0] != LAUNCH)
    return f"| {what} | {ours:.2f} s | {peer} {middle(theirs):.2f} s | {ours / middle(theirs):.2f} |"


def recovery_rows(what, taken):
    ours = middle([one for one in taken[LAUNCH] if one is not None])
    rows = []
    for peer, times in taken.items():
        if peer != LAUNCH:
            good = [one for one in times if one is not None]
            said = f"{middle(good):.2f} s, {len(good)} of {len(times)}" if good else f"never, 0 of {len(times)}"
            share = f"{ours / middle(good):.3f}" if good else "-"
            rows.append(f"| {what} | {ours:.2f} s | {peer} {said} | {share} |")
    return rows


def middle(values):
    return statistics.median(values)
