"""Order the work of a pipeline: which micro-batch each rank works on, and when. These functions are pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape

from torch import nn

from trainer.errors import BadSettings

SCHEDULES = ("1f1b", "gpipe", "interleaved")
STAGES_OF_RANK = {"interleaved": 2}  # of others one
_PER_STAGE = 4  # micro-batches by default: a bubble of less than a fifth
_DRAWN = 8  # micro-batches, of which a picture fits into a line
_LEFT, _CELL, _LINE, _LETTER = 60, 26, 16, 7  # pixels
_FILLS = (("#a8d1f0", "#d3e8f8"), ("#f0b26b", "#f8d9b3"))  # of a rank's first stage, and its second


def parts_of(module: nn.Module) -> list[str]:
    """Return the names of a model's parts, each of which is called with the previous one's output.

    They come from the model's `pipeline`, a list of names and patterns such as `blocks.*` or a method that returns one;
    without it, an nn.Sequential is taken apart. Raises BadSettings for any other model, and if a pattern fits no module
    or a module comes twice.
    """
    own = getattr(module, "pipeline", None)
    wanted = own() if callable(own) else own
    if wanted is None and isinstance(module, nn.Sequential):
        return list(_of_sequence("", module))
    if not wanted:
        raise BadSettings(
            f"mesh: pp: expected the parts of {type(module).__name__} in their order, got none\n"
            "hint: an attribute `pipeline` of the model, as ['embedding', 'blocks.*', 'head'], whose parts are called "
            "one after the other; or an nn.Sequential"
        )
    names = [name for name, _ in module.named_modules() if name]
    found: list[str] = []
    for pattern in wanted:
        here = [name for name in names if fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")]
        if not here:
            raise BadSettings(f"pipeline: {type(module).__name__} has no part {pattern!r}")
        found += here
    if double := [name for name, count in Counter(found).items() if count > 1]:
        raise BadSettings(f"pipeline: {double[0]} of {type(module).__name__} comes twice")
    return found


def _of_sequence(prefix: str, module: nn.Module) -> Iterator[str]:
    """Yield the names of the modules in `module`, a Sequential, with each inner Sequential replaced by its modules.

    Each name begins with `prefix`: "" for the whole model, else the Sequential's own name in the model and a dot.
    """
    for name, child in module.named_children():
        if type(child) is nn.Sequential:
            yield from _of_sequence(f"{prefix}{name}.", child)
        else:
            yield prefix + name


def micro_batches(samples: int, stages: int, wanted: int | None) -> int:
    """Return into how many equal micro-batches to divide a rank's batch of `samples` samples.

    It is the greatest divisor of `samples` that is at most `wanted`, or at most four times the number of stages if
    `wanted` is None.
    """
    most = min(samples, wanted or _PER_STAGE * stages)
    return next(count for count in range(most, 0, -1) if samples % count == 0)


# -- the order of work


@dataclass(frozen=True, slots=True)
class Work:
    """A forward or backward pass of one stage on one micro-batch."""

    backward: bool
    stage: int
    micro: int  # the number of the micro-batch

    def __str__(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.micro}"


def fits(schedule: str, ranks: int, micros: int) -> bool:
    """Return whether the schedule (such as `1f1b`) works with so many ranks and micro-batches.

    `1f1b` needs at least one micro-batch for each rank. `interleaved` works in rounds, in which a rank passes some
    micro-batches through each of its stages in turn: `micros` has to be divisible by the number of rounds, `micros //
    ranks` but at least 1. `gpipe`, in which all micro-batches go forward first and then backward, always works, and
    callers use its order if another schedule does not.
    """
    if schedule == "1f1b":
        return micros >= ranks
    return schedule == "gpipe" or micros % max(1, micros // ranks) == 0


def order_of(schedule: str, ranks: int, rank: int, micros: int) -> list[Work]:
    """Return the passes of rank `rank` in the order of the schedule (such as `1f1b`).

    `ranks` and `micros` are the numbers of ranks and of micro-batches.
    """
    many = STAGES_OF_RANK.get(schedule, 1)
    if schedule == "gpipe" or not fits(schedule, ranks, micros):
        forth = [Work(False, chunk * ranks + rank, micro) for chunk in range(many) for micro in range(micros)]
        back = [Work(True, chunk * ranks + rank, micro) for chunk in range(many)[::-1] for micro in range(micros)]
        return forth + back
    turn = micros // max(1, micros // ranks) if many > 1 else micros  # micro-batches of one stage before the next one

    def at(place: int, *, backward: bool) -> Work:
        """Return the pass at this place in the order."""
        round_, rest = divmod(place, turn * many)
        chunk, micro = divmod(rest, turn)
        return Work(backward, (many - 1 - chunk if backward else chunk) * ranks + rank, round_ * turn + micro)

    total = micros * many
    ahead = min(total, (many - 1) * turn + (2 if many > 1 else 1) * (ranks - 1 - rank))
    found = [at(place, backward=False) for place in range(ahead)]
    for place in range(total - ahead):
        found += [at(ahead + place, backward=False), at(place, backward=True)]
    return found + [at(place, backward=True) for place in range(total - ahead, total)]


def timetable(schedule: str, ranks: int, micros: int) -> list[list[Work | None]]:
    """Return for each rank its pass in each unit of time, None while it waits, if every pass takes one unit.

    `schedule` is the schedule's name (such as `1f1b`), `micros` the number of micro-batches.
    """
    todo = [order_of(schedule, ranks, rank, micros)[::-1] for rank in range(ranks)]
    last = ranks * STAGES_OF_RANK.get(schedule, 1) - 1
    found: list[list[Work | None]] = [[] for _ in range(ranks)]
    done: set[Work] = set()
    while any(todo):
        now = [rest[-1] if rest and _needs(rest[-1], last) <= done else None for rest in todo]
        for rank, work in enumerate(now):
            found[rank].append(work)
            if work is not None:
                todo[rank].pop()
        done.update(work for work in now if work is not None)
    return found


def _needs(work: Work, last: int) -> set[Work]:
    """Return the passes whose results the pass `work` uses directly.

    A pass is the forward or backward one of a stage for a micro-batch. `last` is the number of the last stage.
    """
    if not work.backward:
        return {Work(False, work.stage - 1, work.micro)} if work.stage else set()
    after = {Work(True, work.stage + 1, work.micro)} if work.stage < last else set()
    return {Work(False, work.stage, work.micro), *after}


def bubble(schedule: str, ranks: int, micros: int) -> float:
    """Return the share of a step (0 to 1) in which ranks wait, the pipeline's bubble, if all stages are equally fast.

    `schedule` is the schedule's name (such as `1f1b`), `ranks` the number of ranks that share one copy of the model by
    stages, and `micros` the number of micro-batches.
    """
    rows = timetable(schedule, ranks, micros)
    return sum(work is None for row in rows for work in row) / sum(map(len, rows))


def drawn(schedule: str, ranks: int, micros: int) -> str:
    """Return the timetable as text, one line per rank, or "" for over 8 micro-batches, which are too wide for a line.

    F0 is the forward pass on the first micro-batch, B0 its backward pass. `schedule` is the schedule's name (such as
    `1f1b`), `micros` the number of micro-batches.
    """
    if micros > _DRAWN:
        return ""
    many = STAGES_OF_RANK.get(schedule, 1)

    def shown(work: Work | None) -> str:
        """Return one pass as text of the timetable."""
        if work is None:
            return "." * 2
        return str(work) + ("" if many == 1 or work.stage < ranks else "'")

    rows = [[shown(work) for work in row] for row in timetable(schedule, ranks, micros)]
    width = max(len(cell) for row in rows for cell in row)
    return "\n".join(
        f"  stage {rank}  " + " ".join(cell.ljust(width) for cell in row).rstrip() for rank, row in enumerate(rows)
    )


def picture(schedule: str, ranks: int, micros: int, stages: Sequence[str] = ()) -> str:
    """Return the timetable as SVG: forward passes blue, backward ones orange, waiting white.

    `schedule` is the schedule's name (such as `1f1b`), `micros` the number of micro-batches; if the schedule does not
    work with so many, gpipe is drawn, whose order is used then. `stages` are lines of text about the stages, which go
    below.
    """
    rows = timetable(schedule, ranks, micros)
    wide = max(_LEFT + _CELL * max(map(len, rows)), _LETTER * max(map(len, stages), default=0))
    high = _CELL * (ranks + 1) + _LINE * len(stages)
    way = schedule if fits(schedule, ranks, micros) else "gpipe"
    share = f"{bubble(schedule, ranks, micros):.0%} of a step is waiting"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="4" y="17">{way}, {ranks} ranks, {micros} micro-batches: {share}</text>',
    ]
    for rank, row in enumerate(rows):
        top = _CELL * (rank + 1)
        lines.append(f'<text x="4" y="{top + 17}">rank {rank}</text>')
        for at, work in enumerate(row):
            if work is not None:
                left, fill = _LEFT + _CELL * at, _FILLS[work.backward][work.stage // ranks]
                lines.append(f'<rect x="{left}" y="{top}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{fill}"/>')
                lines.append(f'<text x="{left + 3}" y="{top + 17}">{work}</text>')
    for place, line in enumerate(stages):
        lines.append(f'<text x="4" y="{_CELL * (ranks + 1) + _LINE * place + 11}">{escape(line)}</text>')
    return "\n".join([*lines, "</svg>", ""])
