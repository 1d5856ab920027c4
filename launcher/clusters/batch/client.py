"""Running a scheduler's programs, within a time limit of our own."""

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from launcher.errors import Unreachable

_DEAD_WITHIN_S = 2.0
_MOST_BYTES = 256 << 20  # of 200,000 jobs squeue writes about a tenth of that


class Answer(msgspec.Struct, frozen=True):
    """What a client left: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    called: str,
    who: str = "controller",
    limit_s: float = 10.0,
    stdin: str | None = None,
    pass_fds: Sequence[int] = (),
    in_job: bool = False,
) -> Answer:
    """What the client of this scheduler leaves. Raises Unreachable where it is missing, too slow, or was killed.

    That is no refusal: a controller that was frozen submits, requeues or cancels the job when it wakes. `who`: whom
    the program asks. `in_job`: it may be asked from inside a job that is ended at that moment.
    """
    with (
        _memory(b"" if stdin is None else stdin.encode(errors="surrogateescape")) as given,
        _memory() as out,
        _memory() as err,
    ):
        try:
            # Files, not pipes: a pipe ends only when the last process has let go that a client left behind.
            # The mask is the job's too: what the scheduler itself writes into the run's folder is for its user alone.
            client = subprocess.Popen(
                deaf(argv) if in_job else argv,
                stdin=given,
                stdout=out,
                stderr=err,
                env=environ,
                start_new_session=True,
                pass_fds=pass_fds,
                umask=0o077,
            )
        except OSError as error:
            raise _no_client(argv[0], called, error) from error
        if not _ends(client, limit_s):
            raise silent(called, who, argv[0], f"nothing within {limit_s:g} s")
        if max(os.fstat(out).st_size, os.fstat(err).st_size) > _MOST_BYTES:
            raise Unreachable(
                f"{os.path.basename(argv[0])} writes more than {_MOST_BYTES >> 20} MB, which is no answer"
            )
        answer = Answer(client.returncode, _text(out), _text(err))
    if answer.code < 0:
        raise Unreachable(f"{os.path.basename(argv[0])} was killed by signal {-answer.code}")
    return answer


def deaf(argv: Sequence[str]) -> list[str]:
    """A command that is deaf to SIGTERM, which a scheduler sends to every process of a job that it ends."""
    return ["/bin/sh", "-c", "trap '' TERM; exec \"$@\"", "sh", *argv]


def silent(called: str, who: str, program: str, said: str) -> Unreachable:
    """The error to raise where the program got no answer."""
    return Unreachable(f"the {called} {who} does not answer ({program}: {said})")


def _ends(client: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it ends by itself in time. If not, its whole process group is killed."""
    end = os.pidfd_open(client.pid)  # readable when it ends: no step of a polling loop is lost on a quick client
    try:
        return _readable(end, limit_s) and client.poll() is not None
    finally:
        if client.poll() is None:
            os.killpg(client.pid, signal.SIGKILL)
            if _readable(end, _DEAD_WITHIN_S):
                client.wait()
        os.close(end)


def _no_client(program: str, called: str, error: OSError) -> Unreachable:
    hint = f"hint: this needs {called}'s programs: run it on a login node of the cluster, or load their module"
    if isinstance(error, FileNotFoundError):
        return Unreachable(f"no `{program}` on PATH", hint)
    return Unreachable(f"`{program}` cannot be started: {error.strerror}", hint)


@contextlib.contextmanager
def _memory(content: bytes = b"") -> Iterator[int]:
    """A file without a name or a disk."""
    file = os.memfd_create("client")
    try:
        os.write(file, content)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


def _readable(handle: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
