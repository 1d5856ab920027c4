"""Holding a port for MASTER_PORT."""

import socket

import pytest

from launcher.node.ranks.ports import HeldPort


def test_a_held_port_is_given_to_nobody_else():
    held = HeldPort("127.0.0.1")
    with socket.socket() as stranger:
        try:
            stranger.bind(("127.0.0.1", held.number))
            taken = False
        except OSError:
            taken = True
    assert taken
    held.release()


def test_a_port_that_another_program_listens_on_is_not_taken():
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        number = stranger.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            HeldPort("127.0.0.1", number)
    held = HeldPort("127.0.0.1", number)
    assert held.number == number
    held.release()


def test_the_rank_itself_may_listen_on_it_as_torchs_store_does():
    held = HeldPort("127.0.0.1")
    with socket.socket(socket.AF_INET6) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("::", held.number))
        store.listen()
        with socket.create_connection(("127.0.0.1", held.number)) as rank:
            assert rank.getpeername()[1] == held.number
    held.release()


def test_ports_held_at_once_differ():
    held = [HeldPort("127.0.0.1") for _ in range(200)]
    assert len({port.number for port in held}) == 200
    for port in held:
        port.release()
