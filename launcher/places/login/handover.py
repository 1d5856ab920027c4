"""Handing attempts to a login node, once: their tickets are the tokens for which it starts them, however often asked.

What was never said there is NotStarted. From the moment in which the request is on its way, nobody knows until there
is an answer: then the attempt has a handle, or an end.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.copies.mirror.fetch import bring_what_it_goes_on_from
from launcher.copies.mirror.holders import Holders
from launcher.errors import Exit, LaunchError, NotStarted, Unreachable
from launcher.places.login.address import KIND, Address, address_of
from launcher.places.login.files import LoginDisk, holders_of
from launcher.places.login.lines import ask, persistently
from launcher.places.login.messages import OpenAttempt, OpenRuns, RunWanted, SpecThere, VoidTokens
from launcher.places.login.waiting import options_there
from launcher.plan.build import repeat_of
from launcher.plan.model import Plan
from launcher.remote.rpc.client import FarLaunch, far_error, said_by
from launcher.remote.rpc.wire import Have, Outcome, Tree
from launcher.remote.shipping.tree import contents, digest_of, entries
from launcher.run.attempts import read_intent, read_plan
from launcher.run.code.listing import CodeList, list_frozen
from launcher.run.durable import read_lines, read_record, readable, write_record
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, BatchDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import ANEW, AttemptEnd, Event, Handle
from launcher.states import Cause, State
from launcher.supervisor.attempt_end import cancelled, write_end
from launcher.supervisor.notify.record import Notifying
from trainer.checkpoint_files.partial import Held


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long a login node is waited for: by who submits, and by who only looks and hands over on the way."""

    answer_s: float
    tree_s: float  # for a large tree to be written and read there


_PATIENT, _HASTY = _Patience(120.0, 600.0), _Patience(13.0, 30.0)


@dataclass(frozen=True, slots=True)
class LoginHandover:
    """One attempt, or the first ones of all runs that were submitted with it."""

    number: int
    runs: tuple[RunDir, ...]
    lock: Path

    @property
    def attempts(self) -> list[AttemptDir]:
        return [run.attempt(self.number) for run in self.runs]

    def is_unfinished(self) -> bool:
        """Nobody has written down what came of it."""
        return any(not (one.handle.exists() or one.end.exists()) for one in self.attempts if one.intent.exists())

    def is_in_hand(self) -> bool:
        """Its submitter lives and is at it, or about to be: one that could not do it has let go of the lock."""
        if alive(read_intent(self.attempts[0]).created_by) is False:
            return False
        if not self.lock.exists():
            return True
        with locked(self.lock) as free:
            return free is None


def handover_of(run: RunDir, attempt: AttemptDir) -> LoginHandover:
    batch = read_intent(attempt).batch
    if not batch:
        return LoginHandover(attempt.number, (run,), attempt.job_lock)
    folder = BatchDir(Path(batch))
    paths = read_record(folder.runs, list[str]) or [str(run.path)]
    return LoginHandover(attempt.number, tuple(RunDir(Path(path)) for path in paths), folder.lock)


def hand_over(wanted: LoginHandover) -> None:
    """Unless somebody else has. Raises NotStarted where surely nothing was begun, else what is wrong."""
    with locked(wanted.lock, wait=True):
        if wanted.is_unfinished():
            _carry_out(wanted, _PATIENT)


def finish(wanted: LoginHandover) -> None:
    """Do what its submitter, which was killed, did not; what never can be done gets its end. Raises Unreachable.

    A request of the submitter may have been heard all the same: the login node is asked before anything is given up.
    """
    with locked(wanted.lock) as free:
        if free is None or not wanted.is_unfinished():
            return  # whoever has the lock is at it
        try:
            _carry_out(wanted, _HASTY)
        except NotStarted as error:
            if error.exit_code == Exit.UNREACHABLE:
                raise Unreachable(*error.lines) from error
            if not _was_heard(wanted, address_of(wanted.runs[0], wanted.attempts[0])):
                for run, attempt in zip(wanted.runs, wanted.attempts, strict=True):
                    give_up(run, attempt, "; ".join(error.lines))


def _carry_out(wanted: LoginHandover, patience: _Patience) -> None:
    run, number = wanted.runs[0], wanted.number
    plan, address = read_plan(run, number), address_of(run, run.attempt(number))
    begun = False
    attempt = _next_attempt(wanted, plan, address)

    def work(line: FarLaunch) -> Outcome:
        nonlocal begun
        request = attempt or _new_runs(wanted, plan, address, line, patience)
        begun = True
        return line.ask(request, Outcome, timeout_s=patience.answer_s)

    try:
        if attempt is None and (number > 1 or (run.path / plan.spec.checkpoint.dir).exists()):
            _bring_checkpoints_there(run, address, read_intent(wanted.attempts[0]).ticket)
        outcome = persistently(address, work, without=plan.secrets)
    except LaunchError as error:
        if begun:
            raise
        raise _not_started(error) from error
    except KeyboardInterrupt:
        if begun:
            raise
        told = NotStarted("interrupted before the login node was told of it")
        told.exit_code = Exit.INTERRUPTED
        raise told from None
    settle(wanted, outcome)


def settle(wanted: LoginHandover, outcome: Outcome) -> None:
    """Write down what came of it. Raises what went wrong there."""
    ticket = read_intent(wanted.attempts[0]).ticket
    for attempt, made in zip(wanted.attempts, outcome.runs, strict=False):
        write_record(attempt.handle, Handle(KIND, ticket=ticket, run=made.run, path=made.path))
    if outcome.runs and not outcome.error:
        return
    who = address_of(wanted.runs[0], wanted.attempts[0])
    error = said_by(str(who), far_error(outcome.error or ("the login node gave no answer",), outcome.exit_code))
    if not outcome.runs:
        raise _not_started(error)
    for run in wanted.runs[len(outcome.runs) :]:
        give_up(run, run.attempt(wanted.number), f"not started there: {error.lines[0]}")
    raise error


def give_up(run: RunDir, attempt: AttemptDir, why: str) -> None:
    end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, time.time(), why)
    write_end(run, attempt, end, read_plan(run, attempt.number))


def withdraw(wanted: LoginHandover, address: Address) -> bool:
    """Nothing is to come of it any more; False where something has, and the login node is to be asked to end it."""
    if _was_heard(wanted, address):
        return False
    for run, attempt in zip(wanted.runs, wanted.attempts, strict=True):
        write_end(run, attempt, cancelled("cancelled before it began"), read_plan(run, wanted.number))
    return True


def _was_heard(wanted: LoginHandover, address: Address) -> bool:
    """Whether the login node has begun it; from now on it never will where it has not."""
    ticket = read_intent(wanted.attempts[0]).ticket
    outcomes = ask(address, VoidTokens(address.folder, (ticket,)), dict[str, Outcome], timeout_s=_PATIENT.answer_s)
    outcome = outcomes.get(ticket, Outcome())
    if outcome.runs:
        settle(wanted, Outcome(outcome.runs))
    return bool(outcome.runs)


def _next_attempt(wanted: LoginHandover, plan: Plan, address: Address) -> OpenAttempt | None:
    """Where the attempt before was there too: the run that is there goes on."""
    run, after = wanted.runs[0], wanted.number - 1
    before = run.attempt(after)
    handle = read_record(before.handle, Handle) if after else None
    there = handle.run_there() if handle is not None and handle.cluster_kind == KIND else None
    if there is None or address_of(run, before) != address:
        return None
    last = read_plan(run, after)
    added = plan.overrides[len(last.overrides) :]
    if any(word.startswith("queue.") for word in added):
        added = (*added, *options_there(plan, address))
    usual = None if plan.defaults == last.defaults else _without_the_way(plan)
    anew = any(event.kind == ANEW and event.attempt == wanted.number for event in read_lines(run.events, Event))
    return OpenAttempt(address.folder, read_intent(wanted.attempts[0]).ticket, there, after, added, usual, anew)


def _new_runs(wanted: LoginHandover, plan: Plan, address: Address, line: FarLaunch, patience: _Patience) -> OpenRuns:
    """What starts them there, once their code is there."""
    first, number = wanted.runs[0], wanted.number
    code = list_frozen(first.code)
    digest = plan.code.digest if number == 1 else digest_of(code)  # ranks may have written into it elsewhere
    code_there(line, code, digest, address.folder, patience.tree_s)
    specs, runs = list[SpecThere](), list[RunWanted]()
    for run in wanted.runs:
        own = read_plan(run, number)
        spec = spec_there(own, run.spec.read_bytes(), options_there(own, address, again=number > 1))
        specs += [spec] if specs[-1:] != [spec] else []
        events = run.events.read_bytes() if number > 1 else b""
        runs.append(RunWanted(own.run_id, len(specs) - 1, repeat_of(own), number, events, own.starts_at))
    secrets = read_record(first.secrets, dict[str, str]) or {}
    notifying = readable(first.notify, Notifying)
    ticket = read_intent(wanted.attempts[0]).ticket
    return OpenRuns(address.folder, address.on, ticket, digest, tuple(specs), tuple(runs), secrets, notifying)


def _bring_checkpoints_there(run: RunDir, address: Address, token: str) -> None:
    """What the run goes on from, where that is not there: it was elsewhere before."""
    before = holders_of(run)  # other login nodes
    there = Holders(before.home, {address.login: LoginDisk(address, run.id, token=token)}, {}, {})

    def send(wanted: Held) -> None:
        before.bring_home(wanted)
        there.send(wanted, address.login, [*wanted.present, *wanted.missing])

    bring_what_it_goes_on_from(run, before, send)


def code_there(line: FarLaunch, code: CodeList, digest: str, folder: str, limit_s: float) -> None:
    """Have this code there, under its digest."""
    if not line.ask(Have(folder, digest), bool, timeout_s=limit_s):
        tree = Tree(folder, digest, entries(code))
        line.ask(tree, bool, contents=contents(code), timeout_s=limit_s)


def spec_there(plan: Plan, text: bytes, waits: tuple[str, ...]) -> SpecThere:
    """The spec as it goes to the login node: without how to get there. `waits`: options of what it waits for there."""
    defaults = _without_the_way(plan)
    file, project = os.fsencode(plan.spec_file), os.fsencode(plan.project)
    called = (file.decode(errors="replace"), project.decode(errors="replace"))
    return SpecThere(Path(called[0]).name, text, (*plan.overrides, *waits), defaults, called)


def _without_the_way(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What the clusters file says of options, but for how to get to the login node."""
    return tuple((key, value) for key, value in plan.defaults if not key.startswith(f"{KIND}."))


def _not_started(error: LaunchError) -> NotStarted:
    told = NotStarted(*error.lines)
    told.exit_code = error.exit_code
    return told
