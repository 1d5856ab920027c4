"""Running Slurm's clients: in an environment without strangers' settings, and within a time limit of our own."""

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.agent.environment import cleaned
from launcher.errors import Unreachable

# On top of what a rank may not inherit: each client has defaults of its own in variables.
_CLIENT_PREFIXES = (
    "SQUEUE_", "SACCT_", "SACCTMGR_", "SCANCEL_", "SCONTROL_", "SINFO_", "SPRIO_", "SSHARE_", "SSTAT_", "SPANK_",
    "_SLURM_",
)  # fmt: skip
_WHICH_CLUSTER = "SLURM_CONF"
# Of the indices of an array that wait squeue would show the first 64 characters alone, and leave out the rest.
_FOR_ANSWERS = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
# What a client says where nobody took its question, or where it cannot tell whether somebody did.
_NO_ANSWER = (
    "unable to contact slurm controller",
    "socket timed out",
    "unexpected message received",  # all that scontrol requeue says of a controller that is down
    "controller not responding",
    "controller in standby mode",
    "controller is in standby mode",
    "protocol authentication error",
    "could not establish a configuration source",
    "zero bytes were transmitted or received",
    "incompatible versions of client and server",
    "problem talking to the database",
    "unable to connect to database",
    "connection refused",
    "connection reset by peer",
    "connection timed out",
    "no route to host",
    "network is unreachable",
)
_DEAD_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client left: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def this_user() -> str:
    """Whose jobs are ours, as squeue takes it."""
    return str(os.geteuid())


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what another job, or a habit, would tell Slurm's clients."""
    kept = {name: value for name, value in cleaned(environ).items() if not name.startswith(_CLIENT_PREFIXES)}
    if _WHICH_CLUSTER in environ:
        kept[_WHICH_CLUSTER] = environ[_WHICH_CLUSTER]
    return kept


def ask(
    argv: Sequence[str],
    *,
    limit_s: float = 10.0,
    environ: Mapping[str, str] | None = None,
    stdin: str | None = None,
    pass_fds: Sequence[int] = (),
) -> Answer:
    """What the client answers. Raises Unreachable where it is missing, too slow, or got no answer itself.

    That is no refusal: a controller that was frozen submits, requeues or cancels the job when it wakes.
    """
    environment = clean_environment(os.environ if environ is None else environ)
    if os.path.basename(argv[0]) != "sbatch" or "--test-only" in argv:  # else the job would inherit them
        environment |= _FOR_ANSWERS
    with (
        _memory(b"" if stdin is None else stdin.encode(errors="surrogateescape")) as given,
        _memory() as out,
        _memory() as err,
    ):
        try:
            # Files, not pipes: a pipe ends only when the last process has let go that a client left behind.
            # The mask is the job's too: what Slurm itself writes into the run's folder is for its user alone.
            client = subprocess.Popen(
                argv,
                stdin=given,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
                pass_fds=pass_fds,
                umask=0o077,
            )
        except OSError as error:
            raise _no_client(argv[0], error) from error
        if not _ends(client, limit_s):
            raise Unreachable(_silent(argv[0], f"nothing within {limit_s:g} s"))
        answer = Answer(client.returncode, _text(out), _text(err))
    _check(os.path.basename(argv[0]), answer)
    return answer


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


def _check(program: str, answer: Answer) -> None:
    """Raise where the answer is none."""
    said = re.sub(rf"^{re.escape(program)}: (error: |fatal: )?", "", answer.err, flags=re.MULTILINE)
    lines = [line.strip()[:200] for line in said.splitlines() if line.strip()]
    if answer.code < 0:
        raise Unreachable(f"{program} was killed by signal {-answer.code}")
    if answer.code > 0 and (silent := [line for line in lines if any(sign in line.lower() for sign in _NO_ANSWER)]):
        munge = [line for line in lines if "munge encode failed" in line.lower()]
        raise Unreachable(_silent(program, (munge or silent)[0]))
    # Where these two fail, jobs are unseen and not gone: but for a single id that squeue has forgotten, and for a
    # cluster that keeps no accounts. Of a user that it does not know squeue says so with exit code 0.
    known = {"squeue": "invalid job id specified", "sacct": "accounting storage is disabled"}.get(program)
    stranger = [line for line in lines if program == "squeue" and "invalid user" in line.lower()]
    if stranger or (answer.code > 0 and known is not None and known not in said.lower()):
        raise Unreachable(f"{program} cannot tell: {(stranger or lines[-1:] or [f'exit code {answer.code}'])[0]}")


def _silent(program: str, said: str) -> str:
    who = "accounting database" if program == "sacct" else "controller"
    return f"the Slurm {who} does not answer ({program}: {said})"


def _no_client(program: str, error: OSError) -> Unreachable:
    hint = "hint: this needs Slurm's programs: run it on a login node of the cluster, or load their module"
    if isinstance(error, FileNotFoundError):
        return Unreachable(f"no `{program}` on PATH", hint)
    return Unreachable(f"`{program}` cannot be started: {error.strerror}", hint)


@contextlib.contextmanager
def _memory(content: bytes = b"") -> Iterator[int]:
    """A file without a name or a disk."""
    file = os.memfd_create("slurm")
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
