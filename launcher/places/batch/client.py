"""Run the commands of a scheduler, such as squeue, within a time limit."""

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from launcher.errors import Unreachable
from launcher.node.environment import cleaned
from launcher.run.processes import ends_in_time

_NOT_FOUND = 127  # how a shell leaves that was to become a program which is missing


class Answer(msgspec.Struct, frozen=True):
    """The result of a client program: its exit code and output."""

    code: int  # the exit code
    out: str  # its stdout
    err: str  # its stderr

    @property
    def refusal(self) -> str:
        """Return the error message of a command that failed, or its exit code as text if there is none; else ""."""
        return "" if self.code == 0 else (self.err or self.out).strip()[:300] or f"exit code {self.code}"


class Programs(msgspec.Struct, frozen=True):
    """The commands of a scheduler, and how to recognise that its server did not answer.

    `called` and `server` are names for messages; an output that contains one of `silence` means that no server
    answered; `environment` selects the variables that the commands get.
    """

    called: str  # the scheduler's name for users
    server: str  # what its commands ask, such as controller; for messages
    silence: Sequence[str]  # texts in their output that mean that no server received the request, or may not have
    environment: Callable[[Mapping[str, str]], Mapping[str, str]] = cleaned  # selects the variables that they get
    most_bytes: int = 128 << 20  # of their output: for 200,000 jobs squeue writes about a fifth of that

    def ask(
        self,
        argv: Sequence[str],
        *,
        limit_s: float = 10.0,
        environ: Mapping[str, str] | None = None,
        stdin: str | None = None,
        pass_fds: Sequence[int] = (),
        in_job: bool = False,
    ) -> Answer:
        """Run the command `argv` and return its output. Raise Unreachable if it is missing, takes longer than `limit_s`
        or is killed, or if the server did not answer it.

        The command gets `environ` (None: this process's variables), the text `stdin`, and the descriptors `pass_fds`.
        Unreachable does not mean refused: a suspended server carries out the request once it continues. With `in_job`
        this process's own job may be ending, and the command ignores the SIGTERM that is sent to all its processes.
        """
        given = self.environment(os.environ if environ is None else environ)
        answer = self._run(argv, given, limit_s, stdin, pass_fds, in_job=in_job)
        lines = error_lines(argv[0], answer.err)
        if answer.code and (unheard := [line for line in lines if any(sign in line.lower() for sign in self.silence)]):
            raise self._silent(argv[0], unheard[0])
        return answer

    def _run(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        limit_s: float,
        stdin: str | None,
        pass_fds: Sequence[int],
        *,
        in_job: bool,
    ) -> Answer:
        """Run the command `argv` and return its exit code, which may be any, and its output.

        Raise Unreachable if the command is missing, takes longer than `limit_s`, prints more than an answer can have
        (`most_bytes`), or is killed. The command gets the variables `environ`, the text `stdin`, and the descriptors
        `pass_fds`. With `in_job` it ignores SIGTERM.
        """
        with (
            _memory(b"" if stdin is None else stdin.encode(errors="surrogateescape")) as given,
            _memory() as out,
            _memory() as err,
        ):
            try:
                # Files, not pipes: a pipe ends only when the last process has let go that a client left behind.
                # The mask is the job's too: what the scheduler writes into the run's folder is for its user alone.
                client = subprocess.Popen(
                    ignoring_sigterm(argv) if in_job else argv,
                    stdin=given,
                    stdout=out,
                    stderr=err,
                    env=environ,
                    start_new_session=True,
                    pass_fds=pass_fds,
                    umask=0o077,
                )
            except OSError as error:
                raise _no_client(argv[0], self.called, error) from error
            ended = ends_in_time(client, limit_s, lambda: self._is_too_much(out, err))
            if self._is_too_much(out, err):
                name = os.path.basename(argv[0])
                raise Unreachable(f"{name} writes more than {self.most_bytes >> 20} MB, which is no answer")
            if not ended:
                raise self._silent(argv[0], f"nothing within {limit_s:g} s")
            answer = Answer(client.returncode, _text(out), _text(err))
        if in_job and answer.code == _NOT_FOUND:
            raise _no_client(argv[0], self.called, FileNotFoundError())
        if answer.code < 0:
            raise Unreachable(f"{os.path.basename(argv[0])} was killed by signal {-answer.code}")
        return answer

    def _is_too_much(self, *files: int) -> bool:
        """Return whether one of the files with a command's output, given as open descriptors, has more bytes than
        `self.most_bytes`.
        """
        return any(os.fstat(file).st_size > self.most_bytes for file in files)

    def _silent(self, program: str, said: str) -> Unreachable:
        """Return the error for a server that does not answer; `said` is what the command `program` printed."""
        return Unreachable(f"the {self.called} {self.server} does not answer ({os.path.basename(program)}: {said})")


def ignoring_sigterm(argv: Sequence[str]) -> list[str]:
    """Return the command preceded by words that make it ignore SIGTERM, which a scheduler sends to every process of a
    job that it ends.
    """
    return ["/bin/sh", "-c", "trap '' TERM; exec \"$@\"", "sh", *argv]


def error_lines(program: str, text: str) -> list[str]:
    """Return the lines of `text`, an error message of the command `program`, without the command's name, which many
    commands put in front.
    """
    said = re.sub(rf"^(?:{re.escape(os.path.basename(program))}: )?(?:error: |fatal: )?", "", text, flags=re.MULTILINE)
    return [line.strip()[:200] for line in said.splitlines() if line.strip()]


def _no_client(program: str, called: str, error: OSError) -> Unreachable:
    """Return the error for the command `program` of the batch system `called`, which is missing or cannot be
    started.
    """
    hint = f"hint: this needs {called}'s programs: run it on a login node of the cluster, or load their module"
    if isinstance(error, FileNotFoundError):
        return Unreachable(f"no `{program}` on PATH", hint)
    return Unreachable(f"`{program}` cannot be started: {error.strerror}", hint)


@contextlib.contextmanager
def _memory(content: bytes = b"") -> Iterator[int]:
    """Yield a descriptor of a file in memory that holds `content`."""
    file = os.memfd_create("client")
    try:
        os.write(file, content)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _text(file: int) -> str:
    """Return the whole content of the file with the descriptor `file` as text, wherever the file is positioned."""
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
