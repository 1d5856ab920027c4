"""NCCL's own report on its processes, given by a server that speaks as its RAS threads do."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.node.ranks.nccl_ras import with_nccl
from launcher.run.hangs import RankLook

REPORT = b"""NCCL version 2.27.5 compiled with CUDA 12.9

Warnings
  #0-0 (a1b2c3d4) INCOMPLETE: rank 3 has launched fewer collectives than the others
"""


@contextmanager
def ras(*pieces: bytes, ends: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one client of this process's port, and give the address and what was asked."""
    asked, done = list[bytes](), threading.Event()

    def serve() -> None:
        try:
            link, _ = listener.accept()
        except OSError:
            return  # nobody has asked
        with link:
            asked.append(link.recv(4096))
            for piece in pieces:
                link.sendall(piece)
            if not ends:
                done.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        done.set()
        listener.shutdown(socket.SHUT_RDWR)  # ends an accept that waits
        thread.join()


HERE = RankLook(0, 0, os.getpid(), "S")


def test_the_rank_that_holds_the_port_has_the_report() -> None:
    with ras(b"OK\n", REPORT[:40], REPORT[40:]) as (address, asked):
        looks = with_nccl([HERE, RankLook(1, 0, os.getppid(), "S")], address)
    assert looks[0].nccl[0].startswith("NCCL version 2.27.5")
    assert looks[0].nccl[-1].endswith("rank 3 has launched fewer collectives than the others")
    assert looks[1].nccl == ()
    assert asked == [b"TIMEOUT 1\nVERBOSE STATUS\n"]


def test_a_report_that_does_not_end_is_kept_as_far_as_it_came() -> None:
    with ras(b"OK\nNCCL version 2.27.5\n", ends=False) as (address, _):
        (look,) = with_nccl([HERE], address, bound_s=0.3)
    assert look.nccl == ("NCCL version 2.27.5",)


def test_a_listener_that_does_not_answer_is_said_in_one_line() -> None:
    with ras(ends=False) as (address, _):
        (look,) = with_nccl([HERE], address, bound_s=0.2)
    assert look.nccl == ("NCCL's RAS: timed out",)


def test_a_port_of_another_process_is_not_asked() -> None:
    with ras(REPORT) as (address, asked):
        (look,) = with_nccl([RankLook(0, 0, os.getppid(), "S")], address)
        assert look.nccl == ()
    assert asked == []


def test_only_the_node_of_rank_0_asks() -> None:
    with ras(REPORT) as (address, asked):
        (look,) = with_nccl([RankLook(4, 1, os.getpid(), "S")], address)
        assert look.nccl == ()
    assert asked == []


def test_without_a_listener_nothing_is_added() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"localhost:{closed.getsockname()[1]}"
    assert with_nccl([HERE], address) == [HERE]
