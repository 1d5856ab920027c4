"""Messages between a visitor and a rank's node: a greeting, one question, then JSON lines both ways.

```
visitor: RunCommand, AskStacks, … ─►   then Given, InputEnds, Resized, Signalled
                                       ◄─ host: Said, RankStacks …, and last CommandEnded or VisitDeclined
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
    """The terminal of who asks."""

    rows: _Cells
    columns: _Cells
    term: Annotated[str, msgspec.Meta(max_length=200)] = ""  # its TERM


class RunCommand(msgspec.Struct, frozen=True, tag="command"):
    """Run this beside the rank, in its environment and folder. Words as bytes: a file's name need be no text."""

    rank: _RankNumber
    argv: tuple[_Bytes, ...]  # none: the user's shell
    window: Window | None = None  # None: pipes


class AskStacks(msgspec.Struct, frozen=True, tag="stacks"):
    """A request for the Python stacks of this node's ranks, or of some of them."""

    ranks: frozenset[_RankNumber] | None = None


class AttachDebugger(msgspec.Struct, frozen=True, tag="attach"):
    """A request to connect this terminal to the debugger of a rank that waits in a breakpoint."""

    rank: _RankNumber


class KillHere(msgspec.Struct, frozen=True, tag="kill"):
    """A request to end a rank of this node, or all processes of the run there, at once, as a fault would."""

    rank: _RankNumber | None = None


Question = RunCommand | AskStacks | AttachDebugger | KillHere


class Given(msgspec.Struct, frozen=True, tag="given"):
    """To its stdin, or typed at its terminal."""

    data: _Bytes


class InputEnds(msgspec.Struct, frozen=True, tag="input_ends"):
    """A message that stdin has ended."""


class Resized(msgspec.Struct, frozen=True, tag="resized"):
    window: Window


class Signalled(msgspec.Struct, frozen=True, tag="signalled"):
    """A signal for the command and what it has started."""

    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


FromVisitor = Given | InputEnds | Resized | Signalled


class Said(msgspec.Struct, frozen=True, tag="said"):
    data: _Bytes
    err: bool = False  # on stderr


class RankStacks(msgspec.Struct, frozen=True, tag="rank_stacks"):
    """The stacks of one rank; if there are no lines, why not."""

    rank: _RankNumber
    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
    lines: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=20_000)] = ()
    problem: _Line = ""
    look: RankLook | None = None  # what else was seen of it


class CommandEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The end of a conversation. The code is 128 + n if signal n ended the command."""

    code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0


class VisitDeclined(msgspec.Struct, frozen=True, tag="declined"):
    """The reason why a request cannot be fulfilled."""

    lines: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=100)]
    exit_code: int


class KilledHere(msgspec.Struct, frozen=True, tag="killed"):
    """The end of a conversation, with the number of processes that were ended."""

    processes: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]


FromHost = Said | RankStacks | CommandEnded | VisitDeclined | KilledHere
