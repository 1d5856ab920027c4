"""Supervisors speaking with each other: only those who know the token, and never longer than asked for."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.errors import LaunchError
from launcher.places.ssh.host.ballot import Ballot
from launcher.places.ssh.host.supervisor_messages import (
    Agreed,
    Ask,
    Declined,
    Prepare,
    RecordsSaid,
    Replica,
    SupervisorStatus,
    Vote,
    granted,
)
from launcher.places.ssh.host.supervisor_rpc import WIRE, SupervisorRpc
from launcher.places.ssh.messages import Peer
from launcher.run.layout import RunDir
from launcher.wire.frames import wire_key

KEY, OTHER = (wire_key(token * 32, WIRE, "run", 1) for token in ("a1", "b2"))


def standing(node, **more):
    said = {"attempt": 1, "has_slots": True, "told": True, "began": False, "leads": node == 0, "leaderless": False}
    return SupervisorStatus(node, **(said | more))


@pytest.fixture
def seated():
    """Yield three supervisors on addresses of their own; `answers[i]` computes what supervisor i answers."""
    answers = [lambda _: Agreed() for _ in range(3)]
    rpcs = [
        SupervisorRpc(f"127.0.0.{node + 1}", KEY, lambda question, _, node=node: answers[node](question), ask_s=150.0)
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
    assert rpcs[2].ask_one(Prepare(1), 0) == Agreed()


def test_who_is_gone_or_slow_is_not_among_the_answers(seated):
    rpcs, answers = seated
    answered = threading.Event()
    answers[1] = lambda _: answered.wait(60) and Agreed()
    try:
        for limit_s in (0.3, 3.0, 30.0):  # on a busy machine whoever answers at once needs a while too
            if there := granted(rpcs[0].ask(Prepare(1), limit_s=limit_s)):
                break
        assert there == [2]
    finally:
        answered.set()


def test_a_silent_host_delays_no_answer_of_the_others_and_is_found_when_it_is_back(seated):
    """One that accepts connections and says nothing, as a host does whose supervisor is frozen."""
    rpcs, answers = seated
    answers[2] = lambda _: standing(2)
    asker, address, port = rpcs[0], "127.0.0.2", rpcs[1].port
    rpcs.pop(1).close()
    with socket.create_server((address, port)):
        asker.suspect("host1")
        began = time.monotonic()
        for question in (Ask(), Replica(0, 1, "state.json", -1, "")):
            assert asker.ask(question, limit_s=120.0).keys() == {2}
        assert time.monotonic() < began + 60, "it waited for the silent one"
    rpcs.append(SupervisorRpc(address, KEY, lambda *_: standing(1), port))
    until = time.monotonic() + 60
    while 1 not in asker.ask(Ask(), limit_s=120.0):
        assert time.monotonic() < until, "it is never waited for again"


def test_how_a_supervisor_is_waits_for_no_other_answer(seated):
    """However many of those wait for its disk: as many as there are threads for them, and more."""
    rpcs, answers = seated
    answered, busy = threading.Event(), threading.Barrier(ThreadPoolExecutor()._max_workers + 1)

    def answer(question):
        if isinstance(question, Ask):
            return standing(1)
        busy.wait(60)
        return answered.wait(60) and Agreed()

    answers[1] = answer
    askers = [threading.Thread(target=rpcs[0].ask, args=(Prepare(number), [1])) for number in range(busy.parties - 1)]
    try:
        for one in askers:
            one.start()
        busy.wait(60)
        assert rpcs[2].ask_one(Ask(), 1, 20.0) == standing(1)
    finally:
        answered.set()
        for one in askers:
            one.join()


def test_a_supervisor_is_gone_where_its_host_says_that_nobody_listens(seated):
    """And not where nothing is said; one that is started again listens where it did."""
    rpcs, answers = seated
    answered = threading.Event()
    answers[2] = lambda _: answered.wait(60) and Agreed()
    one, port = rpcs[0], rpcs[1].port
    rpcs.pop(1).close()
    try:
        one.ask(Ask(), limit_s=0.3)
        assert not one.all_gone(0.0), "one is silent"
    finally:
        answered.set()
    rpcs.pop(1).close()
    one.ask(Ask())
    assert one.all_gone(0.0) and not one.all_gone(60.0)
    rpcs.append(SupervisorRpc("127.0.0.2", KEY, lambda *_: Agreed(), port))
    assert (rpcs[1].port, granted(one.ask(Prepare(1)))) == (port, [1])
    assert not one.all_gone(0.0)


def test_a_refusal_is_no_agreement(seated):
    rpcs, answers = seated
    answers[2] = lambda _: Declined("no")
    assert granted(rpcs[0].ask(Prepare(1))) == [1]


def test_a_stranger_gets_nothing(seated):
    rpcs, answers = seated
    asked = []
    answers[0] = lambda question: asked.append(question) or Agreed()
    stranger = SupervisorRpc("127.0.0.9", OTHER, lambda *_: Agreed())
    stranger.join([Peer("host0", "127.0.0.1", rpcs[0].port), Peer("me", "127.0.0.9", stranger.port)], 1)
    assert stranger.ask(Ask(), limit_s=2) == {}
    with socket.create_connection(("127.0.0.1", rpcs[0].port), timeout=60) as peer:
        peer.recv(4096)
        peer.sendall(b'{"t":"ask"}\n')
        assert peer.recv(4096) == b""
    stranger.close()
    assert asked == []


def test_an_address_that_is_not_ours_is_said_at_once():
    with pytest.raises(OSError, match="assign"):
        SupervisorRpc("192.0.2.1", KEY, lambda *_: Agreed())


def test_it_listens_on_its_own_address_alone(seated):
    rpcs, _ = seated
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.7", rpcs[0].port), timeout=5)


def test_errors_of_ours_are_declined(seated):
    rpcs, answers = seated

    def fail(_question):
        raise LaunchError("not now")

    answers[1] = fail
    assert rpcs[0].ask_one(Prepare(1), 1) == Declined("not now")


def test_a_relay_at_a_dead_supervisors_port_adds_no_vote(seated):
    """It passes all on to the supervisor that lives, which would otherwise be counted twice."""
    rpcs, answers = seated
    asked = []
    answers[1] = lambda question: asked.append(question) or Agreed()
    dead = rpcs.pop()
    dead.close()
    with Relay(("127.0.0.3", dead.port), ("127.0.0.2", rpcs[1].port)) as relay:
        assert granted(rpcs[0].ask(Vote(2, 0, RecordsSaid(1, 0, "")))) == [1]
        assert relay.passed_on > 0
    assert asked == [Vote(2, 0, RecordsSaid(1, 0, ""))]


def test_what_was_said_once_cannot_be_said_again(seated):
    """Neither to who heard it, nor to another supervisor: every line of the asker is recorded and played anew."""
    rpcs, answers = seated
    asked = []
    for node in (1, 2):
        answers[node] = lambda question: asked.append(question) or Agreed()
    with Relay(("127.0.0.9", 0), ("127.0.0.2", rpcs[1].port)) as relay:
        rpcs[0].join([Peer("host0", "127.0.0.1", 1), Peer("host1", "127.0.0.9", relay.port)], 0)
        assert rpcs[0].ask(Vote(2, 0, RecordsSaid(1, 0, ""))) == {}
        recorded = bytes(relay.recorded)
    assert b"mac" in recorded
    for node in (1, 2):
        with socket.create_connection((f"127.0.0.{node + 1}", rpcs[node].port), timeout=60) as peer:
            peer.recv(4096)
            peer.sendall(recorded)
            assert peer.recv(4096) == b""
    assert asked == []


class Relay:
    """A program at one address that passes every byte on to another, and back."""

    def __init__(self, at, to):
        self.passed_on, self.recorded = 0, bytearray()
        self._to, self._ends, self._threads = to, [], []
        self._server = socket.create_server(at)
        self.port = self._server.getsockname()[1]

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        """Close all sockets."""
        self._server.shutdown(socket.SHUT_RDWR)  # who waits at it is woken, which closing it would not do
        self._threads[0].join()
        for one in self._ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in (self._server, *self._ends):
            one.close()

    def _start(self, work, *args):
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self):
        while True:
            try:
                asker, _ = self._server.accept()
            except OSError:
                return
            self._ends += [asker, answerer := socket.create_connection(self._to)]
            self._start(self._pass, asker, answerer, self.recorded)
            self._start(self._pass, answerer, asker, bytearray())

    def _pass(self, source, target, record):
        try:
            while data := source.recv(4096):
                record += data
                target.sendall(data)
                self.passed_on += len(data)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def test_on_one_disk_the_lowest_number_takes_over_in_any_attempt(tmp_path):
    """Nobody votes there: how many attempts a voter has accepted says nothing of who is next."""
    one, two = (Ballot(RunDir(tmp_path / "run"), me, ("a", "b", "c"), 1, on_disk=False) for me in (1, 2))
    assert one.is_next_in_line(standing(1, attempt=1, accepted=1), {2: standing(2, attempt=2, accepted=2)})
    assert not two.is_next_in_line(standing(2, attempt=1, accepted=1), {1: standing(1, attempt=2, accepted=2)})
