"""Requests to a login node about runs, and the answers: one to each request, data only, typed.

README.md has the picture; behind each request's arrow stands its answer. Login nodes with 0.1.0 understand all of them.
"""

from typing import Annotated

import msgspec

from launcher.copies.mirror.logs import FOLDERS
from launcher.copies.mirror.roles import RoleReport
from launcher.copies.mirror.tails import Tail
from launcher.ids import RunId
from launcher.places.place import Preview
from launcher.run.records import AttemptEnd, Exclusion, RunState, StopRequest
from launcher.spec.model import JobSpec, Predecessor, QueueOptions
from launcher.states import Cause, State
from launcher.supervisor.notify.record import Notifying
from trainer.checkpoint_files.layout import Kind as SaveKind

PIECE_BYTES = 8 << 20
MOST_ATTEMPTS = 100  # of one answer: those that follow are in the next one
EVENTS_BYTES = 4 << 20
LOGS_OF = r"\A(roles/[a-z0-9_-]{1,60}/)?(logs|metrics)\Z"

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
AttemptNumber = Annotated[int, msgspec.Meta(ge=1, le=9999)]


class AskMachine(msgspec.Struct, frozen=True, tag="machine"):
    """Ask what a node of the remote cluster has for this job. → Machine"""

    on: str
    spec: JobSpec


class AskHosts(msgspec.Struct, frozen=True, tag="hosts"):
    """Ask what is free on the remote cluster's machines, and which runs have the rest. → list[HostNow]"""

    on: str
    spec: JobSpec


class AskQueue(msgspec.Struct, frozen=True, tag="queue"):
    """Ask which conditions to wait for the remote cluster does not support. → list of Misfit"""

    on: str
    queue: QueueOptions
    to_follow: tuple[Predecessor, ...]  # runs there


class AskRunsFolder(msgspec.Struct, frozen=True, tag="runs_folder"):
    """Ask for the folder that contains the folders of runs. → str"""

    folder: str


class ReleaseRun(msgspec.Struct, frozen=True, tag="release"):
    """Release a held run. → None"""

    run: RunId


class RemoteSpec(msgspec.Struct, frozen=True):
    """A spec as it was written on the submitting machine, with its overrides and defaults."""

    name: str  # of its file
    text: bytes
    overrides: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]  # of the cluster, as the user's clusters file has them
    called: tuple[str, str]  # what spec and project are called where the user is, for messages


class AskPreview(msgspec.Struct, frozen=True, tag="preview"):
    """Ask what would be handed over for this spec and code. → RemotePreview"""

    folder: str
    on: str
    digest: str
    spec: RemoteSpec


class RemotePreview(msgspec.Struct, frozen=True):
    """The folder that the run would have, and what would be handed to its batch system."""

    run_dir: str
    handed: Preview | None


class RunWanted(msgspec.Struct, frozen=True):
    """One run to be started."""

    run: RunId  # its id here, which it gets there too where that is free
    spec: Count  # which of the specs
    repeat: Count | None = None  # which of several runs of that spec
    first: AttemptNumber = 1  # the number of its first attempt there
    roles: dict[RunId, AttemptNumber] = {}  # likewise, of each role beside the main one
    events: bytes = b""  # what has happened to it before, elsewhere
    starts_at: float | None = None  # Unix time of the moment that its spec names, by the clock here


class OpenRuns(msgspec.Struct, frozen=True, tag="open"):
    """Start these runs, unless runs were started for this submit token before. → Outcome"""

    folder: str
    on: str
    token: str
    digest: str  # of their code, a tree that is there
    specs: tuple[RemoteSpec, ...]
    runs: tuple[RunWanted, ...]
    secrets: dict[str, str]
    notifying: Notifying | None = None  # with its addresses

    def __repr__(self) -> str:
        return f"OpenRuns({self.token[:8]}…)"  # never the secrets


class OpenAttempt(msgspec.Struct, frozen=True, tag="resume"):
    """Open a new attempt of a remote run whose attempt `after` has ended, unless one was opened for this token before.
    → Outcome
    """

    folder: str
    token: str
    run: RunId
    after: AttemptNumber
    overrides: tuple[str, ...]  # what is other than before
    defaults: tuple[tuple[str, str], ...] | None = None  # of the cluster, where they are other than before
    anew: bool = False  # a user has allowed it to begin anew if no checkpoint is whole


class VoidTokens(msgspec.Struct, frozen=True, tag="void"):
    """Ask for the outcome of each token, and start nothing for these tokens from now on. → dict of Outcome"""

    folder: str
    tokens: tuple[str, ...]


class KnownRun(msgspec.Struct, frozen=True):
    """The part of a run's records that the submitting machine has already."""

    run: RunId
    attempt: AttemptNumber  # the newest one
    events: Count
    tail: str  # digest of the last of them: do others continue these?


class LookAtRuns(msgspec.Struct, frozen=True, tag="look"):
    """Ask for news of runs; the answer leaves out unknown runs. → dict of RunNews"""

    runs: tuple[KnownRun, ...]


class AttemptNews(msgspec.Struct, frozen=True):
    """One attempt of a run, as the login node knows it."""

    number: AttemptNumber
    reason: str
    cause: Cause | None
    created_at: float
    end: AttemptEnd | None
    stop: StopRequest | None


class RunNews(msgspec.Struct, frozen=True):
    """A run's state as the login node knows it, and its records."""

    state: State
    message: str
    cause: Cause | None
    job: str | None
    attempts: Annotated[tuple[AttemptNews, ...], msgspec.Meta(max_length=MOST_ATTEMPTS)]  # from the newest known one on
    last: RunState | None  # its state.json
    avoided: tuple[Exclusion, ...]
    events_at: Count  # where the events that follow belong; 0: they are all
    events: bytes
    more: bool = False  # events than fit into this answer
    roles: tuple[RoleReport, ...] = ()  # beside the main one


class AskLogs(msgspec.Struct, frozen=True, tag="logs"):
    """Ask for the new parts of a run's logs and metrics. → LogNews"""

    run: RunId
    known: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]]  # bytes that are there already, by name
    folders: tuple[Annotated[str, msgspec.Meta(pattern=LOGS_OF)], ...] = FOLDERS  # of the run and of its roles


class LogNews(msgspec.Struct, frozen=True):
    """New parts of files, and whether more parts follow."""

    tails: tuple[Tail, ...]
    more: bool  # there is more than fits into one answer


class AskOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """Ask for the new parts of the files that the run's ranks wrote beside their code. → LogNews"""

    run: RunId
    known: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]]  # as of logs


class EndRun(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel a run. → CancelReport"""

    run: RunId


class IncludeNodes(msgspec.Struct, frozen=True, tag="forgive"):
    """Include the named nodes again, or all if none is named. → list of Exclusion"""

    run: RunId
    hosts: tuple[str, ...]


class AskCheckpoints(msgspec.Struct, frozen=True, tag="checkpoints"):
    """Ask for the checkpoints of a run, or of a role beside its main one. → list of Checkpoint"""

    run: RunId
    verify: bool
    role: str = ""  # beside the main one; "": of the run itself


class AskStock(msgspec.Struct, frozen=True, tag="stock"):
    """Ask which of the run's checkpoints the login node has, now that `checkpoint` is to be fetched. → list of Held"""

    run: RunId
    checkpoint: Annotated[str, msgspec.Meta(pattern=r"\A(newest|none|[0-9]{1,18})\Z")]
    role: str = ""  # beside the main one; "": of the run itself


class GivePiece(msgspec.Struct, frozen=True, tag="give"):
    """Ask for bytes of a checkpoint's file from an offset on, or of its manifest if no name is given; empty at the end.
    → bytes
    """

    run: RunId
    step: int
    kind: SaveKind
    name: str
    at: Count
    role: str = ""  # beside the main one; "": of the run itself


class KeepPiece(msgspec.Struct, frozen=True, tag="keep"):
    """Keep bytes of a file of the checkpoint from which the run of this token continues. → None"""

    folder: str
    token: str
    manifest: bytes
    kind: SaveKind
    name: str
    at: Count
    piece: bytes
    size: Count  # of the whole file


class TidyRuns(msgspec.Struct, frozen=True, tag="tidy"):
    """Ask how much disk the runs, and code that no run needs, take on the login node; with `remove`, delete it. → list
    of KeptRemote
    """

    folder: str
    runs: tuple[RunId, ...]
    remove: bool  # and take it away, but for what lives


Request = (
    AskMachine | AskHosts | AskQueue | AskPreview | OpenRuns | OpenAttempt | ReleaseRun | VoidTokens | LookAtRuns
    | AskLogs | AskRunsFolder | AskOutputs | EndRun | IncludeNodes | AskCheckpoints | AskStock | GivePiece | KeepPiece
    | TidyRuns
)  # fmt: skip
