"""Slots of a host: never two runs on one, first come first served, and nothing is left by the dead."""

import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import LaunchError
from launcher.supervisor.slots import table as slot_table
from launcher.supervisor.slots import take
from launcher.supervisor.slots.table import alone_name, held_name, lock_name, waits_name
from launcher.supervisor.slots.take import Demand, SlotHolder, Slots, SlotWaiter, occupancy
from tests.sizes import SEED
from tests.waits import until

ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).parent / "scripts"
BOUND_S = 150.0
HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"


# -- the table


def row(name, kind="0001"):
    return f"00000000ef3f7d44: 00000002 00000000 00000000 {kind} 01 7689310 @{name}\n"


def test_the_table_is_read_as_the_kernel_writes_it():
    table = HEAD + row("/tmp/.X11-unix/X0") + "00000000ef3f7d44: 00000003 00000000 00000000 0001 03 16385\n"
    table += row("launch/gpu/10") + row("launch/held/gpu/10/ann/vit-9x2d")
    table += row("launch/gpu/2") + row("launch/held/gpu/2/ann/vit-9x2d") + row("launch/gpu/3")
    table += row("launch/held/cpu/8/ben/prep-2b4c") + row("launch/taking/gpu")
    table += row("launch/waits/a/gpu/4/ann/late") + row("launch/waits/9/cpu/16/ben/early")
    seen = occupancy(table)
    assert seen.held == (
        SlotHolder("cpu", "8", "ben", "prep-2b4c"),
        SlotHolder("gpu", "2", "ann", "vit-9x2d"),
        SlotHolder("gpu", "3", "", ""),  # a lock that does not say whose it is holds all the same
        SlotHolder("gpu", "10", "ann", "vit-9x2d"),
    )
    assert seen.waiting == (SlotWaiter(9, "ben", "early", Demand(0, 16)), SlotWaiter(10, "ann", "late", Demand(4, 0)))


def waiter(stamp, user, priority=0, gpus=1):
    return SlotWaiter(stamp, user, f"run-{stamp}", Demand(gpus, 0), priority)


def served(*waiting):
    """Return the order in which waiters are served, as each of them determines it."""
    seen = occupancy("".join(row(waits_name(one)) for one in waiting))
    return sorted(waiting, key=lambda one: len(seen.before(one)))


def test_a_priority_counts_among_the_runs_of_one_user_and_nobody_else_waits_longer_for_it():
    first, bens, last, low = waiter(1, "ann"), waiter(2, "ben"), waiter(3, "ann", 10), waiter(4, "ann", -10)
    assert served(low, last, bens, first) == [last, bens, first, low]
    assert served(waiter(1, "ann", -99), bens) == [waiter(1, "ann", -99), bens]
    assert served(waiter(5, "ann", 99), bens) == [bens, waiter(5, "ann", 99)]


@given(st.lists(st.tuples(st.sampled_from(["ann", "ben"]), st.integers(-99, 99)), max_size=8))
def test_everybody_finds_the_same_order_and_a_user_has_the_places_that_he_came_for(users):
    waiting = [waiter(stamp, *one) for stamp, one in enumerate(users)]
    order = served(*waiting)
    seen = occupancy("".join(row(waits_name(one)) for one in waiting))
    assert [len(seen.before(one)) for one in order] == [*range(len(order))]
    assert [one.user for one in order] == [user for user, _ in users]
    for user in ("ann", "ben"):
        own = [(-one.priority, one.stamp) for one in order if one.user == user]
        assert own == sorted(own)


@pytest.mark.parametrize(
    "name",
    [
        "launch/waits/1.x/gpu/1/ann/run",
        "launch/held/gpu/0/ann/run",  # nobody holds the lock
        "launch/held/cpu/-1/ann/run",
        "launch/held/cpu/8/ann/%1b[31mred",
        "launch/held/cpu/8/%e2%80%aeann/run",
        "launch/held/cpu/8/ann/",
        "launch/held/cpu/8/ann/run/more",
        "launch/waits/x/gpu/1/ann/run",
        "launch/waits/1/gpu/99999999999/ann/run",
        "launch/waits/1/tpu/1/ann/run",
        "launch/gpu/" + "9" * 99,
        "launch/",
    ],
)
def test_names_that_are_not_ours_are_nothing(name):
    assert occupancy(HEAD + row(name)) == occupancy("")
    assert occupancy(row("launch/held/cpu/8/ann/run", kind="0002")) == occupancy("")


@given(st.integers(0, 2**45), st.integers(1, 4096), st.text(min_size=1), st.text(min_size=1))
def test_every_name_can_be_bound_and_says_who(stamp, number, user, run):
    user, run = (word.encode(errors="replace").decode() for word in (user, run))
    waits = waits_name(SlotWaiter(stamp, user, run, Demand(number, 0)))
    holds = held_name("gpu", str(number), user, run)
    assert all(len(name) <= 107 and name.isascii() and name.isprintable() for name in (waits, holds))
    seen = occupancy(row(waits) + row(holds) + row(lock_name(str(number))))
    if user.isprintable() and run.isprintable() and len(user.encode()) < 5 and len(run.encode()) < 20:
        assert seen.waiting == (SlotWaiter(stamp, user, run, Demand(number, 0)),)
        assert seen.held == (SlotHolder("gpu", str(number), user, run),)


def test_a_long_user_is_cut_before_the_run():
    run = f"{'r' * 63}-7k3f"
    seen = occupancy(row(waits_name(SlotWaiter(1_800_000_000_000, "DOMAIN\\somebody", run, Demand(128, 0)))))
    assert [(waiter.user, waiter.run) for waiter in seen.waiting] == [("DOMAI", run)]


def test_the_table_needs_no_new_python_and_nothing_of_ours():
    source = Path(slot_table.__file__).read_text()
    compile(source, "slot_table.py", "exec")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{source}\nprint(occupancy({row('launch/held/cpu/8/ann/run')!r}))"],
        capture_output=True,
        text=True,
    )
    assert "SlotHolder(kind='cpu', number='8', user='ann', run='run')" in done.stdout, done.stderr


# -- one process


def test_more_gpus_than_there_are_is_an_error_and_cpus_are_capped():
    with pytest.raises(LaunchError, match="node1: the run wants 4 GPUs on each host, and there are 2 to use"):
        Slots("run", 1, Demand(4, 0), ["0", "1"], 8, host="node1")
    with pytest.raises(LaunchError, match="and there is none to use"):
        Slots("run", 1, Demand(1, 0), [], 8)


# -- real processes, in a network of their own: what this machine really holds is none of their business


class Space:
    """A machine's worth of abstract sockets, and the processes that want some."""

    def __init__(self):
        self.anchor = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        self.takers = []
        self.agents = []
        own = os.readlink("/proc/self/ns/net")
        until("a network", lambda: os.readlink(f"/proc/{self.anchor.pid}/ns/net") != own)

    def command(self, script, *words):
        inside = ["nsenter", f"--net=/proc/{self.anchor.pid}/ns/net"]
        return [*inside, sys.executable, SCRIPTS / script, *map(str, words)]

    def run(self, script, *words):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(self.command(script, *words), env=environment, check=True, timeout=BOUND_S)

    def taker(self, run, stamp, **more):
        self.takers.append(Taker(self, run, stamp, **more))
        return self.takers[-1]

    def seen(self):
        return occupancy(Path(f"/proc/{self.anchor.pid}/net/unix").read_text())

    def holders(self):
        return [(holder.number, holder.user, holder.run) for holder in self.seen().held]

    def waiting(self):
        return [waiter.run for waiter in self.seen().waiting]

    def end(self):
        for pid in self.agents:
            os.kill(pid, signal.SIGKILL)
        for process in (*(taker.process for taker in self.takers), self.anchor):
            process.kill()
            process.communicate()


class Taker:
    def __init__(self, space, run, stamp, *, gpus=0, cpus=0, of_gpus="0,1,2,3", of_cpus=8, uid=""):
        words = [run, stamp, gpus, cpus, of_gpus, of_cpus, *([uid] if uid else [])]
        self.process = subprocess.Popen(
            space.command("taker.py", *words),
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.space = space

    def __call__(self, verb):
        self.process.stdin.write(f"{verb}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if verb == "agent":
            self.space.agents.append(answer)
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def space():
    if os.geteuid():
        pytest.skip("needs root")
    made = Space()
    yield made
    made.end()


def test_a_run_takes_what_it_wants_or_nothing(space):
    one, two = space.taker("one", 1, gpus=3), space.taker("two", 2, gpus=2)
    assert one("enqueue") is None and two("enqueue") is None
    assert one("take") == ["0", "1", "2"] == one("take")
    assert two("take") is None
    assert space.holders() == [(number, "root", "one") for number in "012"]  # not a fourth, that the other could use
    assert two("ahead") == "waits for 2 of 4 GPUs on node1: one (root) has 3"
    one("release")
    assert two("take") == ["0", "1"]
    assert space.waiting() == []


def test_first_come_first_served(space):
    first, second, third = (space.taker(run, stamp, gpus=4) for run, stamp in (("b", 7), ("c", 7), ("a", 8)))
    for taker in (third, second, first):
        taker("enqueue")
    assert space.waiting() == ["b", "c", "a"]
    assert third("take") is None and second("take") is None
    assert third("ahead") == "waits for 4 of 4 GPUs on node1: 2 runs are ahead"
    assert first("ahead") == "waits for 4 of 4 GPUs on node1: it is next"
    assert first("take") == ["0", "1", "2", "3"]
    assert third("take") is None and second("take") is None
    first("release")
    assert third("take") is None
    assert second("take") == ["0", "1", "2", "3"]
    assert not second("contested")
    first("enqueue")
    assert second("contested")  # that one came before


def test_a_small_run_does_not_pass_a_large_one(space):
    holds, large, small = space.taker("h", 1, gpus=1), space.taker("l", 2, gpus=4), space.taker("s", 3, gpus=1)
    assert holds("take") == ["0"]
    large("enqueue"), small("enqueue")
    assert large("take") is None and small("take") is None
    assert large("ahead").endswith("h (root) has 1")
    assert small("ahead").endswith("h (root) has 1; 1 run is ahead")
    large.kill()
    assert small("take") == ["1"]


def test_gpus_and_cpu_slots_do_not_wait_for_each_other(space):
    gpus, cpus, late = space.taker("g", 1, gpus=4), space.taker("c", 2, cpus=6), space.taker("l", 3, cpus=99)
    for taker in (gpus, cpus, late):
        taker("enqueue")
    assert cpus("take") == []
    assert late("take") is None
    assert late("ahead") == "waits for 8 of 8 CPU slots on node1: c (root) has 6"  # not 99: no more than there are
    cpus("release")
    assert late("take") == []
    assert gpus("take") == ["0", "1", "2", "3"]
    assert space.seen().taken("cpu") == (SlotHolder("cpu", "8", "root", "l"),)


def test_the_dead_hold_nothing_and_wait_for_nothing(space):
    holds, next_one, last = space.taker("h", 1, gpus=4), space.taker("n", 2, gpus=4), space.taker("l", 3, gpus=4)
    assert holds("take") is not None
    next_one("enqueue"), last("enqueue")
    holds.kill()
    assert space.holders() == []  # at once
    next_one.kill()
    assert space.waiting() == ["l"]
    assert last("take") == ["0", "1", "2", "3"]


def test_an_agent_that_has_the_slots_keeps_them(space):
    supervisor, other = space.taker("k", 1, gpus=2, of_gpus="0,1"), space.taker("o", 2, gpus=1, of_gpus="0,1")
    assert supervisor("fds") == []
    supervisor("take")
    assert len(supervisor("fds")) == 4
    agent = supervisor("agent")
    supervisor.kill()
    assert other("take") is None and other("ahead").endswith("k (root) has 2")
    again = space.taker("k", 1, gpus=2, of_gpus="0,1")  # nor are they given to another process of the run
    assert again("take") is None
    again("release")
    os.kill(agent, signal.SIGKILL)
    space.agents.remove(agent)
    until("the agent's end", lambda: not space.holders())
    assert other("take") == ["0"]


def test_without_being_asked_for_nothing_is_inherited(space):
    supervisor = space.taker("k", 1, cpus=8)
    supervisor("agent")  # has been started before
    assert supervisor("take") == []
    supervisor.kill()
    assert space.holders() == []


def test_two_users_see_each_other(space):
    root, other = space.taker("r", 1, gpus=3), space.taker("o", 2, gpus=2, uid=20001)
    assert root("take") == ["0", "1", "2"]
    other("enqueue")
    assert other("take") is None
    assert other("ahead") == "waits for 2 of 4 GPUs on node1: r (root) has 3"
    assert [(waiter.user, waiter.run) for waiter in space.seen().waiting] == [("20001", "o")]
    root("release")
    assert other("take") == ["0", "1"]
    root("enqueue")
    assert root("take") is None
    assert root("ahead") == "waits for 3 of 4 GPUs on node1: o (20001) has 2"


def test_gpus_that_a_user_leaves_out_are_not_in_the_way(space):
    one, two = space.taker("a", 1, gpus=2, of_gpus="2,3"), space.taker("b", 2, gpus=2, of_gpus="0,1,2")
    assert one("take") == ["2", "3"]
    assert two("take") == ["0", "1"]


def test_a_run_waits_in_one_process_alone(space):
    one, two = space.taker("k", 1, gpus=1), space.taker("k", 1, gpus=1)
    one("enqueue")
    assert two("enqueue") == "error: node1: run k waits here already, in another process"
    assert one("take") == ["0"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("launch/gpu/1", "1 taken"),  # by whom it does not say
        ("launch/held/gpu/1/root/k", "it is next"),  # an earlier process of the run is just letting go
        ("launch/taking/gpu", "it is next"),  # another one is just taking
    ],
)
def test_what_is_half_taken_or_half_let_go_is_left_alone(space, name, why):
    body = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind(b'\\0{name}'); print(1, flush=True); input()"
    inside = ["nsenter", f"--net=/proc/{space.anchor.pid}/ns/net", sys.executable, "-c", body]
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        stranger.stdout.readline()
        before = space.seen()
        taker = space.taker("k", 1, gpus=3, of_gpus="0,1,2")
        assert taker("take") is None
        assert taker("ahead") == f"waits for 3 of 3 GPUs on node1: {why}"
        assert space.seen() == before and taker("fds") == []
        stranger.communicate(b"\n")
    assert taker("take") == ["0", "1", "2"]


@pytest.mark.parametrize("queue", [1, 0], ids=["queued", "at once"])
@pytest.mark.parametrize(("gpus", "cpus"), [(4, 8), (0, 8)], ids=["gpus", "cpus"])
def test_fifty_racing_runs_never_share(space, tmp_path, gpus, cpus, queue):
    seed = SEED
    print("seed", seed)
    space.run("race.py", tmp_path / "log", seed, 50, gpus, cpus, queue)
    held, turns, most = {}, count(), 0
    for line in (tmp_path / "log").read_text().splitlines():
        run, verb, *what = line.split()
        if verb == "drops":
            assert held.pop(run) == what
            continue
        held[run] = what
        next(turns)
        taken = [gpu for each in held.values() for gpu in each]
        if gpus:
            assert len(set(taken)) == len(taken), f"{line}: shared in {held}"
        else:
            assert sum(map(int, taken)) <= cpus, f"{line}: too many in {held}"
        most = max(most, len(held))
    assert next(turns) == 50 and not held and most > 1
    assert space.holders() == [] and space.waiting() == []


# -- what others say of themselves


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def queue(monkeypatch):
    """A run that waits here and says since when it does, and those that come after it."""
    clock, names = Clock(), []
    monkeypatch.setattr(take, "time", clock)
    monkeypatch.setattr(take, "occupancy", lambda: occupancy("\n".join(row(name) for name in names)))
    monkeypatch.setattr(take, "_bind", lambda name: FakeSocket())
    honest = Slots("honest", 5000, Demand(1, 0), ["0"], 8)
    honest.enqueue()
    return clock, names, honest


class FakeSocket:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass

    def fileno(self):
        return 0


def test_who_comes_late_and_says_since_ever_is_not_served_first(queue):
    """Any user's `0` went before everybody, for as long as that user liked."""
    clock, names, honest = queue
    clock.now += 3600
    names.append(waits_name(SlotWaiter(0, "eve", "liar", Demand(1, 0))))
    assert honest.ahead().endswith("it is next")
    assert honest.try_take() == ("0",)
    assert not honest.contested()


def test_who_was_there_or_came_with_us_is_served_in_the_order_of_the_submits(queue):
    clock, names, honest = queue
    clock.now += 30  # told to go on another host first
    names.append(waits_name(SlotWaiter(4000, "ann", "older", Demand(1, 0))))
    assert honest.try_take() is None
    clock.now += 3600
    assert honest.try_take() is None and "1 run is ahead" in honest.ahead()
    names.clear()
    assert honest.try_take() == ("0",)


def test_one_s_own_run_of_a_higher_priority_goes_first_whenever_it_comes(queue):
    clock, names, honest = queue
    clock.now += 3600
    own = SlotWaiter(999_999, take._user(), "urgent", Demand(1, 0), 10)
    names.append(waits_name(own))
    assert honest.try_take() is None and "1 run is ahead" in honest.ahead()
    names.clear()
    assert honest.try_take() == ("0",)


def test_two_that_disbelieve_each_other_do_not_wait_for_ever(queue):
    """Each holds what the other wants; then who cannot begin lets go once."""
    clock, names, honest = queue
    clock.now += 3600
    assert honest.try_take() == ("0",)
    names.append(waits_name(SlotWaiter(1, "ann", "resumed", Demand(1, 0))))
    assert not honest.contested()
    clock.now += 41
    assert honest.contested()


def test_who_waits_hears_why_a_run_holds_what_it_may_not_need(queue):
    """It was cut off, and may have been ended where its other hosts are."""
    _, names, honest = queue
    names += [lock_name("0"), held_name("gpu", "0", "ann", "cut-1a2b"), alone_name("ben", "other-2b3c")]
    assert honest.ahead().endswith(": cut-1a2b (ann) has 1")
    names.append(alone_name("ann", "cut-1a2b"))
    assert honest.ahead().endswith(": cut-1a2b (ann) has 1, which has lost its leader and asks the other hosts")


def test_the_mark_goes_with_the_leader_s_return(queue, monkeypatch):
    bound = []
    monkeypatch.setattr(take, "_bind", lambda name: bound.append(name) or FakeSocket())
    mark = take.Alone("cut-1a2b")
    mark.set()
    mark.set()
    assert len(bound) == 1 and "launch/alone/" in bound[0]
    mark.clear()
    mark.set()
    assert len(bound) == 2
