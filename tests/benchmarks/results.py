"""The options that benchmarks share, and where their figures go: to the terminal, and on request into RESULTS.md."""

import argparse
import datetime as dt
import os
import platform
import random
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
LOAD_BEFORE = os.getloadavg()[0]
_HEAD = """# Results

The script in a section's heading writes the section: `uv run python tests/benchmarks/NAME.py --write`. Programs
that are compared take turns on one machine, and tables show medians. No test depends on these figures.
"""


def benchmark_parser(text, *, pairs=None, seed=False):
    """Return a parser of options: `--write`, `--pairs` where a number of them is given, and `--seed` if wanted."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if pairs is not None:
        parser.add_argument("--pairs", type=int, default=pairs, help="how often the sides take turns")
    if seed:
        parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    return parser


def publish(name: str, table: str, *, write: bool, title: str = "", what: str = "") -> None:
    """Print a benchmark's table, and with `write` replace the benchmark's section of RESULTS.md by it.

    `title` is the section's heading, by default the script's name. `what` is the imperative sentence that says what is
    measured, by default the first one of the script's docstring.
    """
    what = what or (sys.modules["__main__"].__doc__ or "").partition("\n\n")[0]
    task = what and f"Task of this script: {what[0].lower()}{what[1:]}"
    parts = (f"<!-- {name} -->", f"## {title or f'{name}.py'}", task, circumstances(), f"{table}\n<!-- /{name} -->\n")
    section = "\n\n".join(part for part in parts if part)
    print(f"{circumstances()}\n\n{table}", flush=True)
    if write:
        text = RESULTS.read_text() if RESULTS.exists() else _HEAD
        old = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->\n", re.DOTALL)
        text = old.sub(lambda _: section, text) if old.search(text) else f"{text}\n{section}"
        RESULTS.write_text(text)


def circumstances() -> str:
    """Return the date, the command, the machine and the versions, in one line."""
    cores = len(os.sched_getaffinity(0))
    words = [
        f"{cores} cores ({processor()})",
        f"Linux {platform.release().partition('-')[0]}",
        f"Python {platform.python_version()}",
        f"torch {installed('torch')} and msgspec {installed('msgspec')}",
    ]
    today = dt.datetime.now(dt.UTC).date().isoformat()
    options = " ".join(word for word in sys.argv[1:] if word != "--write")
    command = f"`{Path(sys.argv[0]).name} {options}".rstrip() + "`"
    machine = f"Measured on {today} with {command}, on a machine with {', '.join(words)}."
    return f"{machine} Its load average before the start was {LOAD_BEFORE:.1f}."


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
