"""In which order test files run and how they are divided into shards, by the times recorded in times.txt."""

from argparse import ArgumentTypeError
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TIMES = Path(__file__).parent / "times.txt"
_LEAST_S = 2  # faster files are not worth a line
_OTHERS_S = 1.0  # assumed of files without one

# Seconds of a file, in a daily run and in a nightly one.
Times = Mapping[str, tuple[int, int]]


class Report(Protocol):
    """pytest's report of one phase of one test."""

    nodeid: str
    duration: float


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `of` parts of the suite that take about the same time."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard that `K/N` names."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ArgumentTypeError(f"expected K/N with 1 <= K <= N, got {text!r}")
        return cls(int(number), int(of))

    def files(self, order: list[str], times: Times, *, nightly: bool) -> set[str]:
        """Return this shard's files of `order`: each file goes to the shard that has least to do so far."""
        loads, mine = [0.0] * self.of, set()
        for file in order:
            lightest = loads.index(min(loads))
            loads[lightest] += _seconds(file, times, nightly=nightly)
            if lightest == self.number - 1:
                mine.add(file)
        return mine


def longest_first(files: Iterable[str], times: Times, *, nightly: bool) -> list[str]:
    """Return `files` with the slowest first, so that none of them begins when the others are done."""
    return sorted(files, key=lambda file: (-_seconds(file, times, nightly=nightly), file))


def _seconds(file: str, times: Times, *, nightly: bool) -> float:
    return max(_OTHERS_S, times.get(file, (0, 0))[nightly])


def read_times(path: Path = TIMES) -> dict[str, tuple[int, int]]:
    """Return the recorded times of test files."""
    rows = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return {file: (int(daily), int(nightly)) for daily, nightly, file in rows}


def write_times(reports: Iterable[Report], *, nightly: bool, path: Path = TIMES) -> None:
    """Replace the recorded times of the files that `reports` name, of this kind of run."""
    taken: dict[str, float] = defaultdict(float)
    for report in reports:
        taken[report.nodeid.split("::")[0]] += getattr(report, "duration", 0.0)
    times = {file: [*both] for file, both in read_times(path).items()}
    for file, seconds in taken.items():
        times.setdefault(file, [0, 0])[nightly] = round(seconds)
    rows = [f"{both[0]:5} {both[1]:7}  {file}" for file, both in sorted(times.items()) if max(both) >= _LEAST_S]
    header = "# Seconds in a daily and in a nightly run beside four other workers: pytest --write-times [--nightly]"
    path.write_text("\n".join([header, *rows, ""]))
