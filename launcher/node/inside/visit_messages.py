"""Messages between a visitor (a `launch` command) and the host process on a rank's node: a greeting, one question, then
JSON lines both ways.

```
visitor: RunCommand, AskStacks, … ─►   then Given, InputEnds, Resized, Signalled
                                       ◄─ host: Output, RankStacks …, and last CommandEnded or VisitDeclined
```
"""

from typing import Annotated

import msgspec

from launcher.run.hangs import RankLook

LONGEST_LINE = 1 << 20
PIECE_BYTES = 1 << 15
_Bytes = Annotated[bytes, msgspec.Meta(max_length=LONGEST_LINE)]
_RankNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
_Cells = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
_Line = Annotated[str, msgspec.Meta(max_length=10_000)]


class Window(msgspec.Struct, frozen=True):
    """The size of the visitor's terminal in character cells, and its type as in TERM."""

    rows: _Cells
    columns: _Cells
    term: Annotated[str, msgspec.Meta(max_length=200)] = ""  # the value of TERM


class RunCommand(msgspec.Struct, frozen=True, tag="command"):
    """A request to run a command beside the rank, in the rank's environment and folder.

    The arguments are bytes, because a file's name need not be text; without arguments, the user's shell is run. With
    `window` the command gets a terminal, else pipes.
    """

    rank: _RankNumber
    argv: tuple[_Bytes, ...]  # empty: the user's shell
    window: Window | None = None  # None: pipes


class AskStacks(msgspec.Struct, frozen=True, tag="stacks"):
    """A request for the Python stacks of this node's ranks, or of those in `ranks`."""

    ranks: frozenset[_RankNumber] | None = None  # global rank numbers; None: all of this node


class AttachDebugger(msgspec.Struct, frozen=True, tag="attach"):
    """A request to connect the visitor's terminal to the debugger of a rank that waits in a breakpoint."""

    rank: _RankNumber


class KillHere(msgspec.Struct, frozen=True, tag="kill"):
    """A request to kill one rank of this node without warning, as a fault would; None means all processes of the run on
    this node.
    """

    rank: _RankNumber | None = None


Question = RunCommand | AskStacks | AttachDebugger | KillHere


class Given(msgspec.Struct, frozen=True, tag="given"):
    """Input that the visitor sent for the command's stdin or typed at its terminal."""

    data: _Bytes


class InputEnds(msgspec.Struct, frozen=True, tag="input_ends"):
    """The message that the visitor's input has ended, and with it the stdin of the command that it runs beside the
    rank.
    """


class Resized(msgspec.Struct, frozen=True, tag="resized"):
    """A new size of the visitor's terminal."""

    window: Window


class Signalled(msgspec.Struct, frozen=True, tag="signalled"):
    """The visitor's request to send a signal, by its number: to the command that it runs beside a rank and to the
    processes that the command has started, or to the rank whose debugger it is connected to.
    """

    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


FromVisitor = Given | InputEnds | Resized | Signalled


class Output(msgspec.Struct, frozen=True, tag="said"):
    """Output of the command that a visitor runs beside a rank, from its stdout, or with `err` from its stderr."""

    data: _Bytes
    err: bool = False  # from stderr, not stdout


class RankStacks(msgspec.Struct, frozen=True, tag="rank_stacks"):
    """The Python stacks of one rank; if `lines` is empty, `problem` says why. `look` is what the rank was doing, or
    None if that was not read.
    """

    rank: _RankNumber
    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
    lines: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=20_000)] = ()
    problem: _Line = ""
    look: RankLook | None = None  # what the rank was doing, if that was read


class CommandEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The last message about a command: its exit code, or 128 + n if signal n ended it."""

    code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0


class VisitDeclined(msgspec.Struct, frozen=True, tag="declined"):
    """The answer to a request that cannot be fulfilled: the error's lines and exit code."""

    lines: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=100)]
    exit_code: int


class KilledHere(msgspec.Struct, frozen=True, tag="killed"):
    """The answer to KillHere, the request to kill one rank or all processes of the run on this node: the number of
    processes that were killed.
    """

    processes: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]


FromHost = Output | RankStacks | CommandEnded | VisitDeclined | KilledHere
