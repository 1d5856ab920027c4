"""`launch notify`: show who was and will be notified, and send a test message."""

import argparse
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from launcher import api
from launcher.cli.arguments import RUN_HELP, Arguments
from launcher.cli.terminal import columns, safe, to_json
from launcher.errors import BadInput, Exit, LaunchError, Refused
from launcher.run.durable import read_lines, readable
from launcher.run.layout import RunDir
from launcher.run.records import NOT_TOLD, TOLD, Event
from launcher.spec.model import NotifyOptions
from launcher.supervisor.notify.delivery import NotDelivered, deliver
from launcher.supervisor.notify.late import notify_of_end
from launcher.supervisor.notify.message import Message
from launcher.supervisor.notify.record import Notifying
from launcher.supervisor.notify.settings import notifying_of, settings_file

EXAMPLES = """
  launch notify last              messages about the newest run: what was sent and when, what was not and why
  launch notify --test            sends a test message to all receivers in ~/.config/launch/notify.yaml
  launch notify --test job.yaml   to the receivers of a run of this spec
  launch notify --test last       to the receivers of the run
  launch notify --due             sends due messages that no process was left to send

Who carries a run tells of it. Of an end that only the cluster knows, such as a job that was killed with all its
processes, --due tells, once. On one machine, by cron: */15 * * * * launch notify --due. It looks at all runs, and so
does what `launch status` does too: jobs in the queue may have nodes again that were avoided for a while.

A test is sent from this machine; a run's messages are sent by the host that carries it. With --test the exit code is
5 if a receiver was not reached. ~/.config/launch/notify.yaml (mode 600) and `notify:` in a spec have the same options:
  to: [{slack: SLACK_WEBHOOK}, {email: me@example.org}, {command: notify-send}]
  on: [stalled, ended]            of started, restarted, stalled, ended
Also discord, teams and json; and apprise, for any service that apprise knows (extra `notify`). SLACK_WEBHOOK is a
variable that holds the address; {slack: {file: PATH}} has it in a file, and the settings, not a spec, may have the
address itself. Only the settings have who takes mail:
  smtp: {host: smtp.example.org, user: me, password: {file: ~/.smtp}}
"""


class Notified(msgspec.Struct, frozen=True):
    """A notification that was delivered or given up, as `launch notify --json` prints it."""

    at: float  # Unix time
    text: str  # the occasion, the recipient, and why it was not delivered if so


class NotifiedOf(msgspec.Struct, frozen=True):
    """A recipient of notifications, and the occasions on which it is notified."""

    recipient: str  # its kind and address without secrets, such as `email ann@example.org`
    on: tuple[str, ...]  # of started, restarted, stalled, ended


class SentNotice(msgspec.Struct, frozen=True):
    """A message that this command sent; `problem` is "" if it was delivered. A test message has no run ("")."""

    run: str  # id of the run that it is about; "": a test message
    recipient: str
    problem: str


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch notify`."""
    arguments.add_argument("run", metavar="RUN|FILE", nargs="?", help=f"{RUN_HELP}; or a spec")
    ways = arguments.add_mutually_exclusive_group()
    ways.add_argument("--test", action="store_true", help="send a test message now, and show the result")
    ways.add_argument("--due", action="store_true", help="send messages about ends that no process was left to send")
    arguments.prints_json(
        lambda: {"": list[Notified], "a spec, or none": list[NotifiedOf], "--test or --due": list[SentNotice]},
        "the same as JSON",
    )


def run(options: argparse.Namespace) -> int:
    """Run `launch notify` and return its exit code."""
    if options.due:
        if options.run is not None:
            raise BadInput("--due looks at all runs: expected no RUN")
        return _send_due(as_json=options.json)
    if options.test:
        return _test(_notifying(options.run), options.run, as_json=options.json)
    if options.run is None or _is_spec(options.run):
        return _print_recipients(_notifying(options.run), as_json=options.json)
    return _print_sent(api.run(options.run), as_json=options.json)


def _is_spec(named: str) -> bool:
    """Return whether the word names a spec file: it ends with .yaml or .yml."""
    return named.endswith((".yaml", ".yml"))


def _notifying(named: str | None) -> Notifying:
    """Return who is notified according to `named`: a spec file (*.yaml or *.yml), else a run, or, if it is None, the
    user's own settings.

    If nobody is notified, raise Refused for a run, and BadInput for a file or the settings.
    """
    if named is None:
        what = notifying_of(NotifyOptions(), Path(), Path(), os.environ)
        where = str(settings_file())
    elif _is_spec(named):
        what, where = api.notifying(named), named
    else:
        found = api.run(named)
        what, where = readable(RunDir(found.path).notify, Notifying), found.id
    if what is None:
        hint = "hint: `to: [{slack: SLACK_WEBHOOK}]` under `notify:` in the spec, or in ~/.config/launch/notify.yaml"
        raise (Refused if named is not None and not _is_spec(named) else BadInput)(f"{where}: nobody is to hear", hint)
    return what


def _print_recipients(what: Notifying, *, as_json: bool) -> int:
    """Print each recipient, without secrets, with the occasions on which all are notified, such as `ended`; as JSON
    with `as_json`. Return the exit code OK.
    """
    if as_json:
        print(to_json([NotifiedOf(recipient.label, tuple(what.on)) for recipient in what.recipients]))
        return Exit.OK
    for recipient in what.recipients:
        print(f"{safe(recipient.label)}: {', '.join(what.on)}")
    return Exit.OK


def _print_sent(found: api.Run, *, as_json: bool) -> int:
    """Print the notifications of a run that were sent or failed, as JSON with `as_json`; return the exit code."""
    found.status()
    told = [one for one in read_lines(RunDir(found.path).events, Event) if one.kind in (TOLD, NOT_TOLD)]
    if as_json:
        print(to_json([Notified(one.at, one.text) for one in told]))
        return Exit.OK
    rows = [(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at)), safe(one.text)) for one in told]
    none = "nothing was told yet" if RunDir(found.path).notify.exists() else f"nobody is to hear of {found.id}"
    print("\n".join(columns(rows)) if rows else none)
    return Exit.OK


def _send_due(*, as_json: bool) -> int:
    """Send every notification that is due, and print each, as JSON with `as_json`; return the exit code.

    Due are messages about ends of runs that no process was left to send. An error for one run does not stop the others.
    """
    reached, runs, sent = True, api.runs(), list[SentNotice]()
    for one, status in zip(runs, api.statuses(runs), strict=True):
        try:
            for told in notify_of_end(RunDir(one.path), status):
                sent.append(SentNotice(one.id, told.recipient, told.problem))
                if not as_json:
                    print(f"{one.id}: ended: {safe(told.recipient)}: {safe(told.problem) or 'delivered'}", flush=True)
                reached = reached and not told.problem
        except (LaunchError, OSError) as error:
            print(f"{one.id}: {safe(str(error))}", file=sys.stderr)
            reached = False
    return _outcome(sent, reached=reached, as_json=as_json)


def _outcome(sent: Sequence[SentNotice], *, reached: bool, as_json: bool) -> int:
    """Print what was sent if `as_json`; return the exit code: OK if all messages were delivered (`reached`), else
    UNREACHABLE.
    """
    if as_json:
        print(to_json(sent))
    return Exit.OK if reached else Exit.UNREACHABLE


def _test(what: Notifying, named: str | None, *, as_json: bool) -> int:
    """Send a test message to every recipient in `what` and print for each whether it was delivered, as JSON with
    `as_json`; return the exit code, which is UNREACHABLE if one was not.

    `named` is the run or spec that the message names; with None, it names no run.
    """
    host = socket.gethostname()
    message = Message(
        key=f"test/{time.time():.3f}",
        kind="test",
        run=named or "none",
        name=named or "none",
        title=f"a test by `launch notify --test` on {host}",
        at=time.time(),
        summary=f"it would be told: {', '.join(what.on)}",
    )
    sent = list[SentNotice]()
    for recipient in what.recipients:
        problem = ""
        try:
            deliver(recipient, message, what, Path.cwd())
        except NotDelivered as error:
            problem = error.text
        sent.append(SentNotice("", recipient.label, problem))
        if not as_json:
            print(f"{safe(recipient.label)}: {safe(problem) or 'delivered'}", flush=True)
    return _outcome(sent, reached=not any(one.problem for one in sent), as_json=as_json)
