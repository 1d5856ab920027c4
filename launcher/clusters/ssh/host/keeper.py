"""The keeper of a run on one host: holds the host's slots, has the host's agent, and with the others keeps the run.

    python -m launcher.clusters.ssh.host.keeper RUN_DIR ATTEMPT NODE GPUS UP_FD GO_FD

It boots while the submitter is connected, says on UP_FD where it listens, hears on GO_FD who the others are and that it
is to go on, and from then on needs no submitter. Without that word nothing is started; whoever has heard of the others
and not the word asks them whether they have.

    wait for slots ─► all hosts have theirs (Begin) ─► leader: Allocation with the coordinator's agent ─┐
                                                       others: the agent of their node                  ├─► next attempt
                                      the leader is lost: the next in line of a majority takes over ────┘
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from launcher.agent.memory_tier import close_tier
from launcher.clusters.keeping.attempt_end import cut_short, write_end
from launcher.clusters.keeping.standby import detach, report
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.ssh.host.follower import Follower, TakeOver, leader_of
from launcher.clusters.ssh.host.keeper_rpc import Ask, Begin, Begun, KeeperRpc, KeeperStatus, granted, statuses
from launcher.clusters.ssh.host.keeper_state import KeeperState
from launcher.clusters.ssh.host.leader import Leader, pass_over_promised, propose, tell_others
from launcher.clusters.ssh.host.slots import Slots
from launcher.clusters.ssh.messages import GoAhead, Keepers, Up, encoded, read_request
from launcher.errors import Exit, Fenced, LaunchError
from launcher.rundir.durable import read_record, write_record
from launcher.rundir.layout import RunDir
from launcher.rundir.records import AttemptEnd, RunState
from launcher.words import State

_TURN_S = 0.5
_SOON_S, _SOON_FOR_S = 0.03, 3.0
_OTHERS_S = 30.0  # how long one that was left without a word looks for another that had it
_NOBODY_TIMES = 3  # so often in a row must nobody answer before that is taken for nobody being there
_LEADER_EVERY_S, _LEADER_ASK_S = 2.0, 1.0


def main() -> int:
    """Detach, report, wait for the word, keep the run."""
    run, number, node, gpus = RunDir(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    up_fd, go_fd = int(sys.argv[5]), int(sys.argv[6])
    detach()
    seat = KeeperState.take(run, number, node)
    bell = Wakeup()
    seat.council = KeeperRpc(seat.plan.nodes[node].address, seat.intent.token, seat.answering(bell))
    report(up_fd, encoded(Up(seat.council.port)))
    seat.log_to()
    try:
        if not _told_to_go(seat, go_fd):
            seat.discard()
            return Exit.OK
        return keep(seat, bell, tuple(name for name in gpus.split(",") if name))
    except Fenced as fenced:
        print(fenced, file=sys.stderr)
        return fenced.exit_code
    except LaunchError as error:
        print(error, file=sys.stderr)
        seat.give_up(str(error))
        if seat.leads:
            tell_others(seat, ())
        return error.exit_code
    finally:
        seat.council.close()


def _told_to_go(seat: KeeperState, go_fd: int) -> bool:
    """The roster, then the word; where the submitter died between the two, whether another keeper has had it."""
    knows = False
    with open(go_fd, "rb") as words:
        for line in words:
            match read_request(line):
                case Keepers(peers=peers):
                    seat.council.sit(peers, seat.node)
                    knows = True
                case GoAhead():
                    seat.told = True
                    return True
    return knows and _others_were_told(seat)


def _others_were_told(seat: KeeperState) -> bool:
    """Nobody was, once all say so or nobody is there; who does not answer is asked again for a while."""
    deadline, empty = time.monotonic() + _OTHERS_S, 0
    while time.monotonic() < deadline and empty < _NOBODY_TIMES:
        there = statuses(seat.council.ask(Ask()))
        if any(one.told for one in there.values()):
            seat.told = True
            return True
        if len(there) == len(seat.council.others):
            return False
        empty = 0 if there else empty + 1
        time.sleep(_TURN_S)
    return False


def keep(seat: KeeperState, bell: Wakeup, gpus: tuple[str, ...]) -> int:
    """Wait for what the host has to give, and then carry out one attempt after the other."""
    seat.present()
    slots = Slots(seat.plan.run_id, seat.stamp, seat.demand, gpus, seat.cpus)
    slots.enqueue()
    if not _wait_for_slots(seat, bell, slots):
        end = read_record(seat.attempt.end, AttemptEnd)
        return end.exit_code if end is not None else Exit.CANCELLED
    while True:
        seat.open_attempt()
        after = Leader(seat, bell).carry_out() if seat.leads else Follower(seat, bell).carry_out()
        if after is None:
            close_tier(seat.run.path, seat.attempt.number)
            end = read_record(seat.attempt.end, AttemptEnd)
            return end.exit_code if end is not None else Exit.OK
        seat.move(after)


def _wait_for_slots(seat: KeeperState, bell: Wakeup, slots: Slots) -> bool:
    """Until this host and all the others of the run have what they need; False where somebody does not want it now."""
    soon_until = time.monotonic() + _SOON_FOR_S  # the usual case: all is free, and hosts differ by moments
    vigil = QueueWatch(seat)
    while True:
        if bell.stop_asked:  # looked at right after its ring, which nobody hears twice
            _stopped(seat)
            return False
        seat.gpus = slots.try_take()
        seat.fds = slots.fds
        seat.waits_for = "" if seat.gpus is not None else slots.ahead()
        if seat.gpus is not None and (seat.began or (seat.leads and _all_begin(seat))):
            return True
        if seat.leads and seat.waits_for:
            _say_queued(seat, seat.waits_for)
        if not vigil.look():
            return False
        if seat.gpus is not None and slots.contested() and seat.let_go(slots):
            slots.enqueue()  # somebody who came before us waits here, and may hold what we wait for elsewhere
        bell.sleep(_SOON_S if time.monotonic() < soon_until else _TURN_S)


def _stopped(seat: KeeperState) -> None:
    seat.take_over_stop()
    end = cut_short(seat.attempt, "it waited for its hosts", time.time())
    write_end(seat.run, seat.attempt, end, seat.plan)
    if seat.leads:
        tell_others(seat, ())  # nobody may have asked them


class QueueWatch:
    """Of a keeper that waits for its slots: that there is still a leader which will begin with it."""

    def __init__(self, seat: KeeperState) -> None:
        self._seat = seat
        self._heard_at = self._next = 0.0
        self._attend()

    def look(self) -> bool:
        """False once the run has ended; raises Fenced where it goes on without us. Asks seldom: waits may be long."""
        seat = self._seat
        if seat.proposal is not None:
            self._move(seat.proposal.intent.attempt)
        end = read_record(seat.attempt.end, AttemptEnd)
        if end is not None and end.state.ended:
            return False
        if time.monotonic() < self._next:
            return True
        self._ask()
        self._next = time.monotonic() + _LEADER_EVERY_S
        return True

    def _attend(self) -> None:
        self._heard_at, self._next = time.monotonic(), time.monotonic() + _LEADER_EVERY_S
        self._succession = TakeOver(self._seat)

    def _move(self, number: int) -> None:
        self._seat.move(number)
        self._seat.present()
        self._attend()

    def _ask(self) -> None:
        seat = self._seat
        if seat.leads:
            if seat.gpus is None:  # else it is looked at before all begin
                seat.check_lead(statuses(seat.council.ask(Ask(), limit_s=_LEADER_ASK_S)))
            return
        pledge = seat.pledge
        leader = seat.council.ask_one(Ask(), leader_of(seat), _LEADER_ASK_S)
        if isinstance(leader, KeeperStatus):
            self._heard_at = time.monotonic()
            self._follow(leader, pledge)
        elif time.monotonic() > self._heard_at + seat.patience_s + seat.plan.spec.recovery.lease_s:
            self._succession.open()
        if seat.leaderless and (number := self._succession.look()) is not None:
            self._move(number)

    def _follow(self, leader: KeeperStatus, pledge: int) -> None:
        seat = self._seat
        if leader.attempt > seat.attempt.number and seat.proposal is None:
            raise Fenced(f"attempt {leader.attempt} goes on without {seat.host}")
        if leader.attempt != seat.attempt.number:
            return
        seat.leaderless = False
        if leader.began:
            seat.begin_late()
        elif not leader.pledged:
            seat.take_back(pledge)


def _all_begin(seat: KeeperState) -> bool:
    """The leader's question to all: has everybody what it needs? Then nobody lets go of it any more."""
    there = statuses(seat.council.ask(Ask()))
    seat.check_lead(there)
    waits = [answer.waits_for for answer in there.values() if not answer.has_slots]
    silent = [seat.council.peer(number).host for number in seat.council.others if number not in there]
    too_few = 1 + len(there) - len(waits) < seat.plan.nodes_min
    if waits or (silent and (too_few or time.monotonic() < seat.since + seat.patience_s)):
        waits += [f"{host} does not answer the other hosts (launch doctor finds out why)" for host in silent]
        _say_queued(seat, "; ".join(filter(None, waits)) or "waits for the other hosts")
        return False
    if any(one.promised > seat.attempt.number for one in there.values()):
        _open_anew(seat, there)
        return False
    seat.pledged = True
    pledged = granted(seat.council.ask(Begin(seat.attempt.number), there))
    seat.began = len(pledged) == len(there)
    seat.pledged = seat.began
    seat.council.ask(Begun(seat.attempt.number, by_all=seat.began), pledged)  # who misses it asks us
    return seat.began


def _open_anew(seat: KeeperState, there: Mapping[int, KeeperStatus]) -> None:
    """They had given us up, and promised not to begin this attempt any more; nobody has come of it."""
    pass_over_promised(seat, there)
    number = propose(seat, list(there), None, leads=True)
    if number is not None:
        seat.move(number)
        seat.present()


def _say_queued(seat: KeeperState, text: str) -> None:
    state = read_record(seat.run.state, RunState)
    if state is not None and (state.state is not State.QUEUED or state.message != text):
        queued = msgspec.structs.replace(state, attempt=seat.attempt.number, state=State.QUEUED, message=text)
        write_record(seat.run.state, msgspec.structs.replace(queued, updated_at=time.time()))


if __name__ == "__main__":
    sys.exit(main())
