"""Define what a submitter asks of a host over one SSH connection (launcher/remote/rpc), and the answers. In a
docstring, `→` is followed by the answer to the request.

Open ─► Opened: the code is wanted ─► CodeTree ─► Open ─► Opened: its supervisor listens ─► Supervisors ─► GoAhead

Hosts send only data of these types. None of it becomes a path, a command, a kind of cluster, or a decision that our own
records could make.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from launcher.copies.mirror.roles import RoleReport
from launcher.copies.mirror.tails import Part
from launcher.ids import RunId
from launcher.remote.rpc.wire import Size, bytes_of
from launcher.remote.shipping.tree import FileEntry
from launcher.run.records import AttemptEnd, Exclusion, Intent, RunState, StopRequest
from launcher.states import Cause, State
from trainer.checkpoint_files.layout import Kind

MOST_OF_A_REPORT, MOST_OF_TAILS = 32 << 20, 8 << 20  # bytes that follow

Attempt = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class Peer(msgspec.Struct, frozen=True):
    """The address at which other supervisors reach a run's supervisor."""

    host: str  # its name in the pool
    address: str
    port: int


class OfRun(msgspec.Struct, frozen=True):
    """The base of questions about one run on a host."""

    run_id: RunId
    workdir: str  # the folder of all runs on the host


class OfCheckpoints(OfRun, frozen=True):
    """The base of questions about the checkpoints in one folder of a run."""

    folder: str  # relative to the run's folder


class Open(OfRun, frozen=True, tag="open"):
    """Prepare an attempt on the host: write its records and start a supervisor, which waits. The contents of `records`,
    files for the run's folder, follow the message in that order. No rank starts before GoAhead. → Opened
    """

    node: int  # the host's number in the plan
    plan: msgspec.Raw  # the plan's JSON
    code: str  # the digest of the user's code
    intent: Intent  # the attempt's number and token
    gpus: tuple[str, ...]  # the host's GPUs that may be used
    records: tuple[Part, ...]  # names and sizes of the records that follow

    @property
    def follows(self) -> int:
        """Return the number of bytes that follow the message."""
        return sum(one.size for one in self.records)


class Opened(msgspec.Struct, frozen=True):
    """The answer of a host that was asked to open an attempt: the port on which its supervisor for the attempt listens,
    or None if none was started, because the code has to be sent first, or the host shares its disk with another one.
    """

    port: Port | None  # the port of the waiting supervisor; None: the code is not on the host yet
    on_one_disk: bool = False  # it shares its disk with another host, against the plan; no supervisor was started


class CodeTree(msgspec.Struct, frozen=True, tag="code"):
    """Send the code to a host that lacks it, as its answer to Open says: the message is followed by the contents of the
    regular files in `files`, in order. → None
    """

    workdir: str  # the folder of all runs on the host
    digest: str  # of the whole code, under which the host stores it
    files: tuple[FileEntry, ...]  # all files of the code, with their sizes

    @property
    def follows(self) -> int:
        """Return the number of bytes that follow the message."""
        return bytes_of(self.files)


class Supervisors(msgspec.Struct, frozen=True, tag="roster"):
    """Give the host the address of each host's supervisor for this run, in the order of the plan's nodes. → None"""

    peers: tuple[Peer, ...]


class GoAhead(msgspec.Struct, frozen=True, tag="go"):
    """Tell the supervisor, which the request Open started on the host and which waits for this, to begin the attempt.
    → None
    """


class ListRuns(msgspec.Struct, frozen=True, tag="runs"):
    """Ask which runs of this user are on the host. → list of their ids"""

    workdir: str  # the folder of all runs on the host


class AskReport(OfRun, frozen=True, tag="look"):
    """Ask for the state of a run and the new part of its records. → RunReport"""

    events_from: int  # bytes of events.jsonl that the asker has


class OpenedByHosts(msgspec.Struct, frozen=True):
    """An attempt that hosts opened by themselves, to go on after the one before it ended, so that the machine that
    submitted the run does not know of it.
    """

    hosts: tuple[str, ...]  # the host of each of its nodes, in order of their numbers
    cause: Cause | None  # why the attempt before it ended; None: not known
    created_at: float  # seconds since 1970


class RunReport(msgspec.Struct, frozen=True):
    """The state of a run. After the message come the contents of `files`: the new piece of events.jsonl, and the ends
    of the attempt's logs.
    """

    state: State | None  # None: the host has no such run
    message: str = ""
    cause: Cause | None = None
    attempt: Attempt = 0  # the number of its newest attempt
    began: bool = False  # the attempt's supervisor was told to begin
    begun: OpenedByHosts | None = None  # its newest attempt if hosts opened that by themselves
    last: RunState | None = None  # the content of its state.json
    avoided: tuple[Exclusion, ...] | None = None  # the hosts that its next attempts do not use; None: no record of it
    stop: StopRequest | None = None  # the user's request to stop the attempt, if there is one
    end: AttemptEnd | None = None  # how the attempt ended; None: it has not, or the end is not reported yet
    roles: tuple[RoleReport, ...] = ()  # beside the main one
    files: tuple[Part, ...] = ()  # name, offset and size of each piece of a file that follows
    more: bool = False  # there are more events than fit into this answer
    supervised: bool = True  # its supervisor is there
    stale: bool = False  # its coordinator has been silent for a while: the message has the time


class AskSubmitted(OfRun, frozen=True, tag="submitted"):
    """Ask for a run's spec, overrides, hosts and time of submit, for a machine that has not seen it. → Submitted"""


class Submitted(msgspec.Struct, frozen=True):
    """A run's submission, for a machine that has not seen it."""

    spec: str  # the text of the spec
    overrides: tuple[str, ...]  # changes of the spec on the command line
    submitted_at: float  # seconds since 1970
    hosts: tuple[str, ...]  # the hosts of its newest plan


class AskTails(OfRun, frozen=True, tag="logs"):
    """Ask for what the files in `folders` of the run have beyond the bytes that the asker has (`known`). → Tails"""

    folders: tuple[str, ...]  # relative to the run's folder
    known: Mapping[str, int]  # how many bytes, by file relative to the run's folder; others are sent from the beginning


class Tails(msgspec.Struct, frozen=True):
    """The answer to AskTails: the list of the parts (new ends of files), whose bytes follow it in the same order."""

    parts: tuple[Part, ...]  # each with its file, its offset there and its size
    more: bool  # more is new than fits into one answer


class ListCheckpoints(OfCheckpoints, frozen=True, tag="inventory"):
    """Ask for the run's checkpoints on the host. → list of trainer.checkpoint_files.partial.Held"""


class SendFile(OfCheckpoints, frozen=True, tag="give"):
    """Ask for the bytes of a checkpoint's file, or of its manifest if no name is given. → None, and the bytes follow

    With `digest`, the file may also be from a copy that this host has not completed, if its manifest has that digest.
    """

    step: int
    name: str
    digest: str = ""  # of the manifest; "": only a complete checkpoint is read
    kind: Kind = "step"  # or "best", the one selected by a monitored value


class TakeFile(OfCheckpoints, frozen=True, tag="put"):
    """Store the file `name` of a checkpoint in `folder`, one of the run's folders; with the name "", only store the
    manifest. The checkpoint's manifest follows the message, then the file's bytes. → None
    """

    manifest_size: Size  # in bytes
    name: str
    size: Size  # of the file, in bytes
    kind: Kind = "step"  # or "best", the one selected by a monitored value

    @property
    def follows(self) -> int:
        """Return the number of bytes that follow the message."""
        return self.manifest_size + self.size


class Release(OfRun, frozen=True, tag="release"):
    """Release a run that was submitted to be held, so that it may start. → None"""


class Cancel(OfRun, frozen=True, tag="cancel"):
    """End all processes of the run on this host; its files stay. → CancelReport

    Record also that the run was cancelled, unless its end is recorded already; if the run's hosts share a disk, only
    the host that leads the attempt does this.
    """


class PassOnCancel(OfRun, frozen=True, tag="pass_on_cancel"):
    """Have this host inform the named hosts that the run was cancelled, as soon as it can reach them. → None"""

    hosts: tuple[str, ...]


class ComeBack(OfRun, frozen=True, tag="come_back"):
    """Start this run's supervisor on the host again, as it was lost and the run continues on the other hosts. → why
    not, or "" if it was started
    """


class Tidy(msgspec.Struct, frozen=True, tag="tidy"):
    """Ask how many bytes `runs`, and code that no other run needs, take in the host's folder `workdir`. With `remove`,
    delete them, except runs that have processes on the host. → Tidied
    """

    workdir: str  # the host's folder in which its runs and their code are
    runs: tuple[RunId, ...]
    remove: bool  # delete, too; the answer has the sizes from before


class Tidied(msgspec.Struct, frozen=True):
    """The bytes that the runs, and unneeded code, take on the host's disk, or took before their deletion."""

    runs: Mapping[RunId, Size]  # bytes that each run takes; runs without any are left out
    code: Size  # bytes of code that no other run than these needs
    live: tuple[RunId, ...] = ()  # runs that have processes on the host, so that nothing of theirs is deleted


class IncludeHosts(OfRun, frozen=True, tag="pardon"):
    """Let the run's next attempts use hosts again that it has excluded: those in `hosts`, or all if there are none in
    it. → None
    """

    hosts: tuple[str, ...]


Request = (
    Open | CodeTree | Supervisors | GoAhead | AskReport | AskSubmitted | ListRuns | AskTails | Release | Cancel
    | PassOnCancel | ComeBack | IncludeHosts | Tidy | ListCheckpoints | SendFile | TakeFile
)  # fmt: skip
