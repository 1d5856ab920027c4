"""Serve one request about the ranks of a node, on that node: `python -m launcher.node.inside.there RUN_DIR ATTEMPT
NODE`.

It answers one question on its stdin and ends with it or with the visitor; being started as this user is the only
permission it needs.
"""

import os
import signal
import sys
from pathlib import Path
from typing import assert_never

from msgspec.structs import replace

from launcher.errors import Exit, LaunchError, Refused, said_by_the_system
from launcher.node.inside.attach import attach
from launcher.node.inside.rank_command import run_for_visitor, users_shell
from launcher.node.inside.ranks_here import environment_of, folder_of_rank, rank_here, ranks_here
from launcher.node.inside.stacks import stacks_of
from launcher.node.inside.visit_messages import (
    AskStacks,
    AttachDebugger,
    CommandEnded,
    KilledHere,
    KillHere,
    Question,
    RunCommand,
    VisitDeclined,
)
from launcher.node.inside.visitor import VisitorConnection
from launcher.node.ranks.looking import Subject, look_at
from launcher.node.ranks.native import with_native
from launcher.node.ranks.nccl_ras import ADDRESS, with_nccl
from launcher.remote.rpc.server import take_stdio
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.processes import become_subreaper, end_all, signal_process, tagged
from launcher.run.records import RankProcess

_NATIVE_S = 10.0  # a user waits for the answer


class NodeHost:
    """Serves one visitor's question about the ranks of this node."""

    def __init__(self, run: RunDir, attempt: AttemptDir, node: int, visitor: VisitorConnection) -> None:
        self._run, self._attempt, self._node, self._visitor = run, attempt, node, visitor

    def serve(self) -> int:
        """Answer one question, with the reason if it cannot be answered; return 0."""
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
        """Answer the question."""
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
        """Return the rank as a subject for `look_at`."""
        return Subject(rank.rank, self._node, rank.process.pid, Path(rank.environment["LAUNCH_PROGRESS"]))

    def _kill_rank(self, rank: int) -> int:
        """Kill this rank and return how many processes that ended: 0 or 1."""
        return int(signal_process(rank_here(self._attempt, self._node, rank).process, signal.SIGKILL))

    def _kill_all(self) -> int:
        """End all processes of the run on this node except this one, which must still answer, and return their
        number.
        """
        ended, _ = end_all(lambda: tagged(str(self._run.path), os.getuid()))
        return len(ended)

    def _run_command(self, asked: RunCommand) -> None:
        """Run the requested command, or the user's shell, in the environment and folder of its rank."""
        rank = rank_here(self._attempt, self._node, asked.rank)
        environment = environment_of(rank, self._run)
        if any(b"\0" in word for word in asked.argv):
            raise Refused("an argument of the command contains a NUL byte")
        if asked.window is not None and asked.window.term:
            environment["TERM"] = asked.window.term
        argv = asked.argv or (users_shell(),)
        run_for_visitor(self._visitor, argv, environment, folder_of_rank(rank), asked.window)


def main() -> int:
    """Serve the visitor on stdin and stdout, and return the exit code."""
    run = RunDir(Path(sys.argv[1]))
    source, sink = take_stdio()
    become_subreaper()  # what a command leaves behind ends with it
    return NodeHost(run, run.attempt(int(sys.argv[2])), int(sys.argv[3]), VisitorConnection(source, sink)).serve()


if __name__ == "__main__":
    sys.exit(main())
