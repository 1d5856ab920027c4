"""`python -m launcher.clusters.ssh.host.server`: the side of a host. Answers a submitter on stdin until it hangs up.

Nothing that was begun depends on the connection, and nothing begins before GoAhead.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from launcher.clusters.mirror import tails
from launcher.clusters.ssh.host import presence
from launcher.clusters.ssh.messages import (
    HELLO,
    Answer,
    AskReport,
    AskTails,
    Blob,
    Cancel,
    Cancelled,
    CodeTree,
    Failed,
    GoAhead,
    GrownFile,
    Keepers,
    ListCheckpoints,
    ListRuns,
    Ok,
    Open,
    Pardon,
    RunNames,
    RunReport,
    SendFile,
    Tails,
    TakeFile,
    read_request,
)
from launcher.errors import Exit, LaunchError
from launcher.hostlink.rpc.wire import encoded
from launcher.rundir.attempts import newest, read_plan
from launcher.rundir.avoided import pardon
from launcher.rundir.durable import read_record
from launcher.rundir.identity import alive
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Handle
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from trainer.errors import CheckpointDamaged

if TYPE_CHECKING:
    from launcher.clusters.ssh.host.receive import AttemptReceiver

_WHOLE_RECORDS = ("state.json", "avoided.json", "FENCE")
_FROM_THE_START = ("spec.yaml", "plan.json")
_OF_AN_ATTEMPT = ("token.json", "plan.json", "exit.json", "stop.json", "exits.jsonl", "keeper.log", "node-*/*.log")


def main() -> int:
    os.umask(0o077)
    asked, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
        told.write(HELLO)
        HostServer(asked, told).serve()
    return Exit.OK


class HostServer:
    """One connection."""

    def __init__(self, asked: IO[bytes], told: IO[bytes]) -> None:
        self._asked, self._told = asked, told
        self._arrival: AttemptReceiver | None = None

    def serve(self) -> None:
        """Until the other side hangs up, or what it sends can no longer be told from requests."""
        for line in self._asked:
            try:
                self._answer(line)
            except LaunchError as error:
                self._say(Failed(error.lines, error.exit_code))
            except CheckpointDamaged as error:
                self._say(Failed((str(error),), Exit.DAMAGED))
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                self._say(Failed((f"{type(error).__name__}: {error}",), Exit.INTERNAL))
            if self._arrival is not None and self._arrival.amid_code:
                return

    def _say(self, answer: Answer | None, *contents: bytes) -> None:
        """An answer and what follows it, or more of that."""
        if answer is not None:
            self._told.write(encoded(answer))
        for content in contents:
            self._told.write(content)
        self._told.flush()

    def _answer(self, line: bytes) -> None:
        match read_request(line):
            case Open() as opening:
                from launcher.clusters.ssh.host.receive import AttemptReceiver  # late: `launch status` needs none of it

                self._arrival = AttemptReceiver(self._asked, self._say)
                self._arrival.open(_run(opening.workdir, opening.run_id), opening)
            case (Keepers() | GoAhead()) as word:
                if self._arrival is None:
                    raise LaunchError("there is no keeper that could be told")
                self._arrival.pass_on(word)
            case AskReport() as question:
                self._look(question)
            case ListRuns(workdir=workdir):
                self._say(RunNames(tuple(path.name for path in sorted(Path(workdir, "runs").glob("[a-z0-9]*")))))
            case AskTails() as question:
                run = _run(question.workdir, question.run_id)
                grown, more = tails.grown(run.path, question.folders, question.known)
                files = tuple(GrownFile(one.name, one.at, len(one.content)) for one in grown)
                self._say(Tails(files, more), *(one.content for one in grown))
            case Cancel() as wish:
                self._say(_cancel(_run(wish.workdir, wish.run_id)))
            case Pardon() as wish:
                pardon(_run(wish.workdir, wish.run_id), wish.hosts)
                self._say(Ok())
            case (ListCheckpoints() | SendFile() | TakeFile()) as wish:
                self._move(wish)
            case CodeTree():
                raise LaunchError("nobody has asked for code")

    def _move(self, wish: ListCheckpoints | SendFile | TakeFile) -> None:
        """Of checkpoints: what is here, one to be given, one to be kept."""
        from launcher.clusters.mirror import given  # late: `launch status` needs none of it
        from launcher.clusters.ssh.host import checkpoint_files  # late: `launch status` needs none of it

        folder = given.folder_inside(_run(wish.workdir, wish.run_id).path, wish.folder)
        match wish:
            case ListCheckpoints():
                self._say(checkpoint_files.checkpoints(folder))
            case SendFile():
                checkpoint_files.give(folder, wish, self._say)
            case TakeFile():
                checkpoint_files.take(folder, wish, self._exactly)
                self._say(Ok())

    def _exactly(self, size: int) -> bytes:
        data = self._asked.read(size)
        if len(data) < size:
            raise EOFError
        return data

    # -- looking

    def _look(self, question: AskReport) -> None:
        run = _run(question.workdir, question.run_id)
        attempt = presence.decided(run)
        if attempt is None:
            self._say(RunReport(None, False, 0, ()))
            return
        status = derive(read_facts(run.path))
        wanted = (*_WHOLE_RECORDS, *(_FROM_THE_START if question.whole else ()))
        names = [name for name in wanted if (run.path / name).exists()]
        for pattern in _OF_AN_ATTEMPT:
            names += [str(path.relative_to(run.path)) for path in sorted(attempt.path.glob(pattern))]
        contents = {name: (run.path / name).read_bytes() for name in names}
        with contextlib.suppress(FileNotFoundError), run.events.open("rb") as events:
            events.seek(question.events_from)
            contents["events.jsonl"] = events.read()
        blobs = tuple(Blob(name, len(content)) for name, content in contents.items())
        self._say(RunReport(status, presence.began(attempt), attempt.number, blobs), *contents.values())


def _run(workdir: str, run_id: str) -> RunDir:
    if not run_id.isascii() or not run_id.replace("-", "").replace("_", "").isalnum():
        raise LaunchError(f"expected the id of a run, got {run_id[:100]!r}")
    return RunDir(Path(workdir) / "runs" / run_id)


def _cancel(run: RunDir) -> Cancelled:
    attempt = newest(run)
    if attempt is None:
        return Cancelled((), already=True)
    from launcher.clusters.local.cluster import end_here  # late: only to end a run

    plan = read_plan(run, attempt.number)
    report = end_here(run, attempt, plan, last_word=plan.disks_apart or _leader_was_here(attempt))
    return Cancelled(report.ended, report.already)


def _leader_was_here(attempt: AttemptDir) -> bool:
    """On a disk that all share, its host says how the run ended: elsewhere ranks may still have their grace."""
    handle = read_record(attempt.handle, Handle)
    return handle is None or handle.keeper is None or alive(handle.keeper) is not None


if __name__ == "__main__":
    sys.exit(main())
