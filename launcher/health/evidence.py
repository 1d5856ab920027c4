"""Judge a device's health from the lines that its checking program, device_there.py, printed and from how that
ended.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

DEVICE_CHECK = Path(__file__).with_name("device_there.py")  # run by path, under the interpreter of the run
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Fitness(StrEnum):
    """Whether a device is fit for ranks. `unknown` does not exclude a node; only a failed check does."""

    FIT = "fit"
    UNFIT = "unfit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of one device of one node: the verdict, a line about it, and the seconds that the check took."""

    device: str  # such as `cpu` or `cuda:0`
    fitness: Fitness
    text: str  # one line, which names the device
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How the checking program ended: with an exit code, by a signal, or, with neither, because the launcher killed it
    after `after_s` seconds, its time limit.
    """

    code: int | None = None
    signal: int | None = None
    after_s: float = 0.0


class _Line(msgspec.Struct):
    """A line that the checking program printed. The check has parts, such as multiplications, each with a name.

    A line has one of these: the device and its name, the part that `begins`, a part's result (`fit`, or what was
    `expected` and `seen`), why the device cannot be checked (`unable`), or that the check is over (`done`: True if no
    part failed).
    """

    device: _Text = ""
    name: _Text = ""
    begins: _Text = ""  # the part whose work begins
    part: _Text = ""  # the part whose result this is
    fit: bool = True
    expected: _Text = ""
    seen: _Text = ""
    note: _Text = ""  # a part's short result, for people
    unable: _Text = ""
    done: bool | None = None
    seconds: float = 0.0  # that the part took, or with `done` the whole check


_LINE: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


def devices_of(gpus: int) -> tuple[str, ...]:
    """Return the names of the devices to check on a node whose ranks have `gpus` GPUs: `cpu`, and `cuda:0` and so
    on.
    """
    return ("cpu", *(f"cuda:{number}" for number in range(gpus)))


def judge(device: str, said: Iterable[bytes], ending: Ending) -> DeviceHealth:
    """Return the health of a device: unfit if the checking program printed a wrong result, or hung or crashed in a part
    of the check; fit if it printed that it was done; else unknown, also if it printed that it is unable to check.

    `said` are the lines that the program printed, other output included, and `ending` is how it ended.
    """
    lines = [line for line in map(_line, said) if line is not None]
    name = next((line.name for line in reversed(lines) if line.name), "")
    about = f"{device} ({name})" if name else device
    unable = next((line.unable for line in lines if line.unable), "")
    wrong = next((line for line in lines if not line.fit), None)
    end = next((line for line in lines if line.done is not None), None)
    doing = next((line.begins for line in reversed(lines) if line.begins), "")
    if unable:
        return DeviceHealth(device, Fitness.UNKNOWN, f"{about}: {unable}")
    if wrong is not None:
        text = f"{about}: {wrong.part}: expected {wrong.expected}, got {wrong.seen}"
        return DeviceHealth(device, Fitness.UNFIT, text, wrong.seconds)
    if end is not None:
        return DeviceHealth(device, Fitness.FIT, f"{about}: {_parts(lines)}; {end.seconds:.2f} s", end.seconds)
    fitness = Fitness.UNFIT if doing and _is_telling(ending) else Fitness.UNKNOWN
    return DeviceHealth(device, fitness, f"{about}: {doing or 'the check'}: {_how(ending, doing)}")


def _line(text: bytes) -> _Line | None:
    """Return the decoded line, or None for text in another form, such as a library's warning between the lines."""
    try:
        return _LINE.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # a library's warning


def _parts(lines: Iterable[_Line]) -> str:
    """Return as text, for each part of the check in `lines`, its name, its result and how many seconds it took."""
    return ", ".join(f"{line.part} {line.note} in {line.seconds:.2g} s" for line in lines if line.part)


def _is_telling(ending: Ending) -> bool:
    """Return whether the program's end is evidence against the device: a time-out or a crash (such as SIGSEGV) is, a
    kill or an exit code is not.
    """
    return ending.signal in _CRASHES if ending.signal is not None else ending.code is None


def _how(ending: Ending, doing: str) -> str:
    """Return as text how the checking program ended while it worked on the part `doing` of the check ("": before the
    first part).
    """
    if ending.signal is not None:
        return f"its process was ended by {signal_name(ending.signal)}"
    if ending.code is not None:
        return f"its process left with exit code {ending.code}"
    return f"{'nothing came of it' if doing else 'it had not begun'} within {ending.after_s:.3g} s"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`, or `signal 99` for an unknown number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
