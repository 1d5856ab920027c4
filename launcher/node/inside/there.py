"""Serve one request about the ranks of a node, on that node: `python -m launcher.programs visit RUN_DIR ATTEMPT NODE`.
A visitor is the `launch` command that asks. DUMP_SIGNAL is the signal upon which a rank writes its Python stacks into
its log. A zygote is a process that has imported torch and forks the node's ranks.

The process answers one question and ends with the answer or when the visitor disconnects. The only permission that it
needs is being started as this user.
"""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import assert_never

from msgspec.structs import replace

from launcher.coordinator.tracebacks import stacks_in
from launcher.errors import Exit, LaunchError, Refused, said_by_the_system
from launcher.node import ZYGOTE
from launcher.node.inside.rank_command import run_for_visitor, users_shell
from launcher.node.inside.visit_messages import (
    PIECE_BYTES,
    AskStacks,
    AttachDebugger,
    CommandEnded,
    Given,
    InputEnds,
    KilledHere,
    KillHere,
    Output,
    Question,
    RankStacks,
    RunCommand,
    Signalled,
    VisitDeclined,
)
from launcher.node.inside.visitor import VisitorConnection
from launcher.node.ranks.looking import Subject, look_at
from launcher.node.ranks.native import with_native
from launcher.node.ranks.nccl_ras import ADDRESS, with_nccl
from launcher.node.ranks.start import DUMP_SIGNAL
from launcher.remote.rpc.server import take_stdio
from launcher.run.durable import readable
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, RunDir, debug_socket
from launcher.run.processes import TAG, become_subreaper, end_all, pids, signal_process, tagged
from launcher.run.records import RankProcess

_NATIVE_S = 10.0  # a user waits for the answer
_BOUND_S = 15.0
_LOOK_S = 0.01
_MOST_BYTES = 1 << 20
_MOST_LINES, _LONGEST_LINE = 10_000, 2000
# The rank's alone: who else writes there speaks for it.
_WIRES = ("LAUNCH_PROGRESS", "TORCHELASTIC_ERROR_FILE")


def ranks_here(attempt: AttemptDir, node: int) -> dict[int, RankProcess]:
    """Return the ranks of node `node` (this one) whose processes are alive, by rank number, from the attempt's records
    of its processes.
    """
    found = (readable(path, RankProcess) for path in attempt.rank_processes(node))
    return {one.rank: one for one in sorted(filter(None, found), key=lambda one: one.rank) if alive(one.process)}


def rank_here(attempt: AttemptDir, node: int, rank: int) -> RankProcess:
    """Return the process of a rank; raise Refused if it does not run on this node."""
    found = ranks_here(attempt, node).get(rank)
    if found is None:
        raise Refused(f"rank {rank} does not run on node {node} at the moment", "hint: it may be starting: try again")
    return found


def environment_of(rank: RankProcess, run: RunDir) -> dict[str, str]:
    """Return the environment with which the rank's own program began, without its pipes to the agent; raise Refused if
    it cannot be read.

    The kernel shows a forked rank's environment only as the zygote had it at its own start; the rest is taken from the
    rank's record.
    """
    for pid in (rank.process.pid, *_zygotes_beside(rank.process.pid)):
        shown = _environment(pid)
        if shown.get(TAG) == str(run.path):
            whole = {**shown, **rank.environment}
            return {name: value for name, value in whole.items() if name not in _WIRES}
    raise Refused(f"rank {rank.rank}: its environment cannot be read: its program may have overwritten it")


def folder_of_rank(rank: RankProcess) -> str:
    """Return the rank's working directory; raise Refused if the rank has ended."""
    try:
        return os.readlink(f"/proc/{rank.process.pid}/cwd")
    except OSError as error:
        raise Refused(f"rank {rank.rank} has just ended", "hint: it may be starting anew: try again") from error


def can_dump_stacks(pid: int) -> bool:
    """Return whether the process handles DUMP_SIGNAL; the signal would end one that does not."""
    return _mask_has_dump(_status(pid), "SigCgt")


def threads_blocking_dump(pid: int) -> set[str]:
    """Return the ids of the threads that block DUMP_SIGNAL now. A thread that is writing the stacks blocks it for that
    long, others may block it always.
    """
    return {task for task in _tasks(pid) if _mask_has_dump(_status(pid, f"task/{task}/"), "SigBlk")}


def has_pending_dump(pid: int) -> bool:
    """Return whether DUMP_SIGNAL was sent to the process `pid` and is still pending, because none of its threads has
    taken it; False if the process has ended.
    """
    return _mask_has_dump(_status(pid), "ShdPnd")


def _mask_has_dump(status: dict[str, str], mask: str) -> bool:
    """Return whether DUMP_SIGNAL is in the signal mask that a process's `status` lists under the name `mask`, such as
    SigCgt.
    """
    return bool(int(status.get(mask, "0"), 16) >> (DUMP_SIGNAL - 1) & 1)


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped the process, so that it answers nothing until it continues."""
    return _status(pid).get("State", "")[:1] in ("T", "t")


def _tasks(pid: int) -> list[str]:
    """Return the ids of the threads of a process, or an empty list if it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended


def _status(pid: int, below: str = "") -> dict[str, str]:
    """Return the fields of `/proc/PID/status`, or an empty dict if the process has ended; `below`, such as `task/TID/`,
    selects a thread's.
    """
    try:
        with open(f"/proc/{pid}/{below}status") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}  # it has ended


def _parent(pid: int) -> int:
    """Return the pid of the parent process, or 0 if the process has ended."""
    return int(_status(pid).get("PPid", "0"))


def _zygotes_beside(pid: int) -> list[int]:
    """Return the pids of the zygotes (processes that fork ranks) whose parent is also the parent of process `pid`."""
    agent = _parent(pid)
    return [one for one in pids() if _parent(one) == agent and _is_zygote(one)]


def _is_zygote(pid: int) -> bool:
    """Return whether the command line of the process is that of a zygote, a process that forks ranks."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsencode(ZYGOTE) in file.read().split(b"\0")
    except OSError:
        return False


def _environment(pid: int) -> dict[str, str]:
    """Return the environment that the kernel shows for a process: as it was at exec. It is empty if the process has
    ended.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return {}
    return {
        os.fsdecode(name): os.fsdecode(value) for name, sign, value in (word.partition(b"=") for word in words) if sign
    }


def attach(visitor: VisitorConnection, rank: RankProcess) -> None:
    """Connect a visitor to the rank's debugger until either of them disconnects. If the visitor does, the rank stays at
    its prompt.
    """
    with _connected(rank) as debugger, contextlib.suppress(ConnectionError):  # the rank has ended
        _relay(visitor, rank, debugger)
    visitor.send(CommandEnded())


def _relay(visitor: VisitorConnection, rank: RankProcess, debugger: socket.socket) -> None:
    """Forward the visitor's input and SIGINT to the debugger, and its output to the visitor, until either of them ends
    or the visitor sends SIGQUIT.
    """
    while True:
        ready = [visitor.source] if visitor.has_more else select.select([visitor.source, debugger.fileno()], [], [])[0]
        if debugger.fileno() in ready:
            data = debugger.recv(PIECE_BYTES)
            if not data:
                return
            visitor.send(Output(data))
        for word in visitor.receive() if visitor.source in ready else ():
            match word:
                case Given(data=data):
                    debugger.sendall(data)
                case InputEnds():
                    debugger.shutdown(socket.SHUT_WR)  # it answers the input, and detaches at its next prompt
                case Signalled(number=signal.SIGQUIT):
                    return
                case Signalled(number=signal.SIGINT):
                    signal_process(rank.process, signal.SIGINT)  # its debugger takes it, at a prompt and at work


def _connected(rank: RankProcess) -> socket.socket:
    """Return a connection to the rank's debugger; raise Refused if the rank is not stopped at a breakpoint."""
    path = debug_socket(Path(rank.environment["LAUNCH_PROGRESS"]))
    debugger = socket.socket(socket.AF_UNIX)
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            debugger.connect(f"/proc/self/fd/{fd}/{path.name}")  # a whole path may be too long for a socket
        finally:
            os.close(fd)
    except (FileNotFoundError, ConnectionError):
        debugger.close()
        hint = "hint: it waits in one once it has come to a breakpoint() in its Python code; `launch status` says so"
        raise Refused(f"rank {rank.rank} is in no breakpoint", hint) from None
    return debugger


def stacks_of(rank: RankProcess, run: RunDir) -> RankStacks:
    """Make the rank write its Python stacks into its log in the folder of `run`, and return them; if that takes longer
    than 15 seconds or is impossible, return a RankStacks whose `problem` says why.
    """
    pid = rank.process.pid
    if problem := _why_no_dump(pid):
        return RankStacks(rank.rank, pid, problem=problem)
    log = run.path / rank.log
    try:
        before, deaf = log.stat().st_size, threads_blocking_dump(pid)
        if not signal_process(rank.process, DUMP_SIGNAL):
            return RankStacks(rank.rank, pid, problem="has just ended")
        until = time.monotonic() + _BOUND_S
        while has_pending_dump(pid) or threads_blocking_dump(pid) - deaf:
            if time.monotonic() >= until:
                return RankStacks(rank.rank, pid, problem=f"did not answer within {_BOUND_S:g} s")
            time.sleep(_LOOK_S)
        lines = stacks_in([*_written(log, before)])
    except OSError as error:
        return RankStacks(rank.rank, pid, problem=said_by_the_system(error))
    problem = "" if lines else "wrote nothing into its log: its stderr leads somewhere else"
    return RankStacks(rank.rank, pid, tuple(line[:_LONGEST_LINE] for line in lines[:_MOST_LINES]), problem)


def _why_no_dump(pid: int) -> str:
    """Return why the process cannot write its stacks now (it is stopped, or does not handle DUMP_SIGNAL), or "" if it
    can.
    """
    if is_stopped(pid):
        return "is stopped (SIGSTOP, or a debugger): it answers only once it continues"
    if not can_dump_stacks(pid):
        return "answers with no Python stacks: it is another program, or has just been started"
    return ""


def _written(log: Path, since: int) -> Iterator[str]:
    """Yield the lines that the log has gained since its size was `since` bytes, from the first MiB of them."""
    with log.open("rb") as file:
        file.seek(since)
        yield from file.read(_MOST_BYTES).decode(errors="replace").splitlines()


class NodeHost:
    """The process that answers one visitor's question about the ranks of this node."""

    def __init__(self, run: RunDir, attempt: AttemptDir, node: int, visitor: VisitorConnection) -> None:
        self._run, self._attempt, self._node, self._visitor = run, attempt, node, visitor

    def serve(self) -> int:
        """Answer one question, or send the reason why it cannot be answered; always return exit code 0."""
        try:
            self._answer(self._visitor.begin())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return Exit.OK  # the visitor has left
        except LaunchError as error:
            self._visitor.send(VisitDeclined(error.lines, error.exit_code))
        except OSError as error:
            self._visitor.send(VisitDeclined((said_by_the_system(error),), Exit.REFUSED))
        return Exit.OK

    def _answer(self, question: Question) -> None:
        """Do what the visitor asks and send the answer: run a command or a debugger in connection with the visitor's
        terminal, read stacks, or kill ranks. Raise LaunchError or OSError if that is impossible.
        """
        match question:
            case RunCommand():
                self._run_command(question)
            case AttachDebugger():
                attach(self._visitor, rank_here(self._attempt, self._node, question.rank))
            case AskStacks(ranks=wanted):
                ranks = ranks_here(self._attempt, self._node)
                asked = [rank for number, rank in ranks.items() if wanted is None or number in wanted]
                looks = with_native(look_at([self._subject(rank) for rank in asked]), _NATIVE_S)
                if asked:
                    address = environment_of(asked[0], self._run).get("NCCL_RAS_ADDR", ADDRESS)
                    looks = with_nccl(looks, address, _NATIVE_S)
                for look, rank in zip(looks, asked, strict=True):
                    self._visitor.send(replace(stacks_of(rank, self._run), look=look))
                self._visitor.send(CommandEnded())
            case KillHere(rank=rank):
                self._visitor.send(KilledHere(self._kill_all() if rank is None else self._kill_rank(rank)))
            case _:
                assert_never(question)

    def _subject(self, rank: RankProcess) -> Subject:
        """Return what `ranks/looking.py` needs to inspect the rank: its pid, and its progress file, beside which
        questions to the rank are written.
        """
        return Subject(rank.rank, self._node, rank.process.pid, Path(rank.environment["LAUNCH_PROGRESS"]))

    def _kill_rank(self, rank: int) -> int:
        """Kill the rank with SIGKILL; return 1, or 0 if its process had ended before."""
        return int(signal_process(rank_here(self._attempt, self._node, rank).process, signal.SIGKILL))

    def _kill_all(self) -> int:
        """End all processes of the run on this node except this one, which still has to answer, and return how many
        were ended.
        """
        ended, _ = end_all(lambda: tagged(str(self._run.path), os.getuid()))
        return len(ended)

    def _run_command(self, asked: RunCommand) -> None:
        """Run the requested command (the user's shell if it is empty) in the environment and folder of the rank that
        the request names, until it ends. Its input and output are the visitor's, who then gets its exit code; it is
        ended if the visitor disconnects.
        """
        rank = rank_here(self._attempt, self._node, asked.rank)
        environment = environment_of(rank, self._run)
        if any(b"\0" in word for word in asked.argv):
            raise Refused("an argument of the command contains a NUL byte")
        if asked.window is not None and asked.window.term:
            environment["TERM"] = asked.window.term
        argv = asked.argv or (users_shell(),)
        run_for_visitor(self._visitor, argv, environment, folder_of_rank(rank), asked.window)


def main(argv: Sequence[str]) -> int:
    """Serve the visitor on stdin and stdout, and return the exit code. `argv` holds the run directory, the attempt and
    the node.
    """
    run = RunDir(Path(argv[0]))
    source, sink = take_stdio()
    become_subreaper()  # what a command leaves behind ends with it
    return NodeHost(run, run.attempt(int(argv[1])), int(argv[2]), VisitorConnection(source, sink)).serve()
