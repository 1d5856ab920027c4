"""Keepers speaking with each other: only those who know the token, and never longer than asked for."""

import socket
import threading
import time

import pytest

from launcher.clusters.ssh.host.keeper_messages import Agreed, Ask, Begin, Declined, KeeperStatus, granted
from launcher.clusters.ssh.host.keeper_rpc import KeeperRpc
from launcher.clusters.ssh.messages import Peer
from launcher.errors import LaunchError

TOKEN = "a1" * 32


def standing(node, **more):
    said = {"attempt": 1, "has_slots": True, "told": True, "began": False, "leads": node == 0, "leaderless": False}
    return KeeperStatus(node, **(said | more))


@pytest.fixture
def seated():
    """Three keepers on addresses of their own; `answers[i]` is what each says."""
    answers = [lambda _: Agreed() for _ in range(3)]
    rpcs = [
        KeeperRpc(f"127.0.0.{node + 1}", TOKEN, lambda question, node=node: answers[node](question))
        for node in range(3)
    ]
    peers = [Peer(f"host{node}", f"127.0.0.{node + 1}", rpc.port) for node, rpc in enumerate(rpcs)]
    for node, rpc in enumerate(rpcs):
        rpc.join(peers, node)
    yield rpcs, answers
    for rpc in rpcs:
        rpc.close()


def test_all_others_are_asked_at_once(seated):
    rpcs, answers = seated
    answers[1] = lambda _: standing(1)
    answers[2] = lambda _: standing(2, has_slots=False, waits_for="2 GPUs")
    assert rpcs[0].ask(Ask()) == {1: standing(1), 2: standing(2, has_slots=False, waits_for="2 GPUs")}
    assert rpcs[2].ask_one(Begin(1), 0) == Agreed()


def test_who_is_gone_or_slow_is_not_among_the_answers(seated):
    rpcs, answers = seated
    answered = threading.Event()
    answers[1] = lambda _: answered.wait(60) and Agreed()
    began = time.monotonic()
    try:
        assert granted(rpcs[0].ask(Begin(1), limit_s=0.3)) == [2]
        assert time.monotonic() - began < 30
    finally:
        answered.set()


def test_a_refusal_is_no_agreement(seated):
    rpcs, answers = seated
    answers[2] = lambda _: Declined("no")
    assert granted(rpcs[0].ask(Begin(1))) == [1]


def test_a_stranger_gets_nothing(seated):
    rpcs, answers = seated
    asked = []
    answers[0] = lambda question: asked.append(question) or Agreed()
    stranger = KeeperRpc("127.0.0.9", "b2" * 32, lambda _: Agreed())
    stranger.join([Peer("host0", "127.0.0.1", rpcs[0].port), Peer("me", "127.0.0.9", stranger.port)], 1)
    assert stranger.ask(Ask(), limit_s=2) == {}
    with socket.create_connection(("127.0.0.1", rpcs[0].port), timeout=5) as peer:
        peer.recv(4096)
        peer.sendall(b'{"t":"ask"}\n')
        assert peer.recv(4096) == b""
    stranger.close()
    assert asked == []


def test_an_address_that_is_not_ours_is_said_at_once():
    with pytest.raises(OSError, match="assign"):
        KeeperRpc("192.0.2.1", TOKEN, lambda _: Agreed())


def test_it_listens_on_its_own_address_alone(seated):
    rpcs, _ = seated
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.7", rpcs[0].port), timeout=5)


def test_errors_of_ours_are_declined(seated):
    rpcs, answers = seated

    def fail(_question):
        raise LaunchError("not now")

    answers[1] = fail
    assert rpcs[0].ask_one(Begin(1), 1) == Declined("not now")
