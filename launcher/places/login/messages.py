"""Requests to a login node about runs; after the arrow in a docstring stands the type of the answer. `on` is the
cluster's name on the login node, `folder` its folder for code and runs, `token` a submit token, by which a repeated
request is recognised.

README.md lists which modules send them. Login nodes with version 0.1.0 understand all of these requests.
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
    """A request for what a node of the cluster offers to this job. → Machine"""

    on: str
    spec: JobSpec


class AskHosts(msgspec.Struct, frozen=True, tag="hosts"):
    """A request for the cluster's hosts: what is free on them, and which runs they have. Options of `spec` override the
    cluster's own, such as its hosts. → list of HostNow
    """

    on: str
    spec: JobSpec


class AskQueue(msgspec.Struct, frozen=True, tag="queue"):
    """A question about conditions for the start of a run: the options `queue`, and runs on the login node that it has
    to follow (`to_follow`). The answer names those that the cluster does not support. → list of Misfit
    """

    on: str
    queue: QueueOptions
    to_follow: tuple[Predecessor, ...]  # runs on the login node


class AskRunsFolder(msgspec.Struct, frozen=True, tag="runs_folder"):
    """A request for the absolute path of the folder of runs on the login node: $LAUNCH_RUNS there if that is set, else
    `runs` in the launcher's folder `folder`. → str
    """

    folder: str


class ReleaseRun(msgspec.Struct, frozen=True, tag="release"):
    """A request to let a run start that was submitted to be held (`queue.hold`). → None"""

    run: RunId


class RemoteSpec(msgspec.Struct, frozen=True):
    """A spec as it was written on the submitting machine, with its overrides (KEY=VALUE) and the cluster's defaults.

    `called` are the spec's and project's names on that machine, for messages.
    """

    name: str  # name of the spec file
    text: bytes  # content of the spec file
    overrides: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]  # the cluster's (option such as `queue.hold`, YAML), from the clusters file
    called: tuple[str, str]  # names of spec and project on the user's machine, for messages


class AskPreview(msgspec.Struct, frozen=True, tag="preview"):
    """A question about what the login node would submit for this spec and the code with this digest. → RemotePreview"""

    folder: str
    on: str
    digest: str
    spec: RemoteSpec


class RemotePreview(msgspec.Struct, frozen=True):
    """The folder that the run would have (`run_dir`), and in `handed` what would be submitted to its batch system, None
    if nothing.
    """

    run_dir: str
    handed: Preview | None


class RunWanted(msgspec.Struct, frozen=True):
    """A run to be started.

    `run` is its id, if that is free on the login node (else it gets another there); `spec` and `repeat` are indices of
    its spec and of its repetition; `first` is the number of its first attempt there, and `roles` that of each role;
    `events` is its history elsewhere, `starts_at` the time before which it must not start.
    """

    run: RunId  # its id on this machine, which is used on the login node too if it is free
    spec: Count  # index of its spec in the request
    repeat: Count | None = None  # number of the repetition of that spec; None: it is not repeated
    first: AttemptNumber = 1  # number of its first attempt on the login node
    roles: dict[RunId, AttemptNumber] = {}  # likewise for each other role
    events: bytes = b""  # its history on other machines
    starts_at: float | None = None  # Unix time at which its spec lets it start, by this machine's clock


class OpenRuns(msgspec.Struct, frozen=True, tag="open"):
    """A request to start these runs, each from one of `specs`; if runs were started for this submit token before, the
    answer is their stored outcome. → Outcome
    """

    folder: str
    on: str
    token: str
    digest: str  # of their code, a tree that the login node has
    specs: tuple[RemoteSpec, ...]
    runs: tuple[RunWanted, ...]
    secrets: dict[str, str]  # values of environment variables, by name
    notifying: Notifying | None = None  # where to send notifications, with addresses; None: nowhere

    def __repr__(self) -> str:
        return f"OpenRuns({self.token[:8]}…)"  # never the secrets


class OpenAttempt(msgspec.Struct, frozen=True, tag="resume"):
    """A request to resume a run whose attempt `after` has ended, unless that was done for this submit token before. →
    Outcome

    `overrides` are new, `defaults` are None if unchanged, and `anew` permits a start without a checkpoint.
    """

    folder: str
    token: str
    run: RunId
    after: AttemptNumber
    overrides: tuple[str, ...]  # new ones only
    defaults: tuple[tuple[str, str], ...] | None = None  # the cluster's, if they have changed
    anew: bool = False  # a user has allowed it to begin without a checkpoint if none is complete


class VoidTokens(msgspec.Struct, frozen=True, tag="void"):
    """A request for the outcome of each submit token; tokens without one are refused from now on. → dict of Outcome by
    token
    """

    folder: str
    tokens: tuple[str, ...]


class KnownRun(msgspec.Struct, frozen=True):
    """The extent of a run's records on the submitting machine: its newest attempt, the size of the history, and a
    digest of the history's end.
    """

    run: RunId
    attempt: AttemptNumber  # the newest known one
    events: Count  # bytes of the history
    tail: str  # digest of the end of the known events, to see whether new ones continue them


class LookAtRuns(msgspec.Struct, frozen=True, tag="look"):
    """A request for news about runs; unknown runs are left out of the answer. → dict of RunNews by run id"""

    runs: tuple[KnownRun, ...]


class AttemptNews(msgspec.Struct, frozen=True):
    """An attempt of a run, as the login node's records show it."""

    number: AttemptNumber
    reason: str  # why it was opened: submit, resume or requeue
    cause: Cause | None  # why the attempt before it ended
    created_at: float  # Unix time
    end: AttemptEnd | None  # None: it has not ended
    stop: StopRequest | None  # None: no stop was requested


class RunNews(msgspec.Struct, frozen=True):
    """A run's state on the login node, and what its records have beyond those of the machine that asks.

    `attempts` begin with the newest one that the asking machine knows, `last` is the content of the run's state.json.
    `events` are lines of its events.jsonl, from the byte `events_at` on (0: all of them), and `more` means that further
    events did not fit.
    """

    state: State
    message: str  # explains the state to people
    cause: Cause | None  # why it has that state, or None
    job: str | None  # id of the newest attempt's job in the cluster behind the login node
    attempts: Annotated[tuple[AttemptNews, ...], msgspec.Meta(max_length=MOST_ATTEMPTS)]  # from the newest known one on
    last: RunState | None  # its state.json
    avoided: tuple[Exclusion, ...]  # hosts that the run excludes for a while
    events_at: Count  # the offset of `events` in the file, in bytes; 0: they are all
    events: bytes  # lines of events.jsonl
    more: bool = False  # there are more events than fit into this answer
    roles: tuple[RoleReport, ...] = ()  # the roles other than the main one


class AskLogs(msgspec.Struct, frozen=True, tag="logs"):
    """A request for the new parts of a run's logs and metrics: what each file has beyond its size in `known`. → LogNews

    Files and folders are named relative to the run's folder.
    """

    run: RunId
    known: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]]  # bytes that the asking side has, by file
    folders: tuple[Annotated[str, msgspec.Meta(pattern=LOGS_OF)], ...] = FOLDERS  # such as logs, or roles/NAME/metrics


class LogNews(msgspec.Struct, frozen=True):
    """New pieces of files, and whether there are more than one answer holds."""

    tails: tuple[Tail, ...]
    more: bool  # there is more than fits into one answer


class AskOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """A request for the parts of text files that the asking side lacks: those which the run's ranks wrote beside their
    code. → LogNews

    Ask with an empty `known` first, then with the sizes received, until no more is left: the first request lists the
    files, and later ones of the series use that list.
    """

    run: RunId
    known: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]]  # number of bytes on the asking side, by file


class EndRun(msgspec.Struct, frozen=True, tag="cancel"):
    """A request to cancel a run. → CancelReport"""

    run: RunId


class IncludeNodes(msgspec.Struct, frozen=True, tag="forgive"):
    """A request to let a run use nodes again that it excludes: the named hosts, or all if none is named. → list of
    Exclusion, those that were removed
    """

    run: RunId
    hosts: tuple[str, ...]


class AskCheckpoints(msgspec.Struct, frozen=True, tag="checkpoints"):
    """A request for the list of a run's checkpoints, or of a role's; with `verify` the login node checks every byte of
    them against their manifests. → list of Checkpoint
    """

    run: RunId
    verify: bool
    role: str = ""  # a role other than the main one; "": the main role, or a run without roles


class AskStock(msgspec.Struct, frozen=True, tag="stock"):
    """A question about which files the login node has of each checkpoint of the run. → list of Held, one a checkpoint

    `checkpoint` is the one that the asker will fetch (the newest, none, or a step): if it is on other hosts, the login
    node first copies it from them.
    """

    run: RunId
    checkpoint: Annotated[str, msgspec.Meta(pattern=r"\A(newest|none|[0-9]{1,18})\Z")]
    role: str = ""  # a role other than the main one; "": the main role, or a run without roles


class GivePiece(msgspec.Struct, frozen=True, tag="give"):
    """A request for up to 8 MiB of a checkpoint's file from offset `at` on, or of its manifest if `name` is empty; an
    empty answer means that the file ends at `at`. → bytes
    """

    run: RunId
    step: int  # of the checkpoint
    kind: SaveKind  # of the checkpoint: step or best
    name: str  # of the file; "": the manifest
    at: Count
    role: str = ""  # a role other than the main one; "": the main role, or a run without roles


class KeepPiece(msgspec.Struct, frozen=True, tag="keep"):
    """A request to store bytes at offset `at` of a checkpoint's file, for the run that is about to be created for this
    submit token. → None
    """

    folder: str
    token: str
    manifest: bytes  # content of the checkpoint's MANIFEST.json
    kind: SaveKind  # of the checkpoint: step or best
    name: str  # of the file
    at: Count
    piece: bytes  # the bytes to store
    size: Count  # of the whole file


class TidyRuns(msgspec.Struct, frozen=True, tag="tidy"):
    """A question about how much disk space the runs, and code that no run needs, take on the login node. With `remove`
    the node deletes these files as well, except those of a run that has not ended. → list of KeptRemote
    """

    folder: str
    runs: tuple[RunId, ...]
    remove: bool  # delete the files, except those of a run that has not ended


Request = (
    AskMachine | AskHosts | AskQueue | AskPreview | OpenRuns | OpenAttempt | ReleaseRun | VoidTokens | LookAtRuns
    | AskLogs | AskRunsFolder | AskOutputs | EndRun | IncludeNodes | AskCheckpoints | AskStock | GivePiece | KeepPiece
    | TidyRuns
)  # fmt: skip
