"""Deliver one notification to one recipient within a time limit: by webhook, mail, apprise or command. Errors never
contain the address.
"""

import base64
import contextlib
import http.client
import os
import shutil
import signal
import smtplib
import socket
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from launcher.plan.secret_values import without_secrets
from launcher.supervisor.notify.message import Message
from launcher.supervisor.notify.record import MailServer, Notifying, Recipient

_ANSWER_S = 10.0
_COMMAND_S = 30.0
_MOST_BYTES = 1 << 16
_LATER = (408, 425, 429)  # client errors that may pass
_LONGEST = 200
_SLACK, _DISCORD, _TEAMS = 3000, 1900, 15_000  # characters that they take, with some room
_FENCE = "```"


def body(kind: str, message: Message) -> bytes:
    """Return the body of the HTTP request for a webhook of this kind: slack, discord or teams; for any other kind the
    whole message as JSON.
    """
    match kind:
        case "slack":
            said: dict[str, Any] = {"text": _marked(message, _SLACK, "*", _slack)}
        case "discord":
            said = {"content": _marked(message, _DISCORD, "**", str), "allowed_mentions": {"parse": []}}
        case "teams":
            said = _card(message)
        case _:
            return as_json(message)
    return msgspec.json.encode(said)


def as_json(message: Message) -> bytes:
    """Return the whole message as JSON; a number that is not finite becomes null."""
    return msgspec.json.encode({**msgspec.to_builtins(message), "text": message.text})


def mail(message: Message, sender: str, to: str) -> EmailMessage:
    """Return the message as a mail from `sender` to `to`."""
    letter = EmailMessage()
    letter["From"], letter["To"] = sender, to
    letter["Subject"] = " ".join(message.title.split())
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(message.text + "\n")
    return letter


def _marked(message: Message, most: int, bold: str, quote: Any) -> str:
    """Return the message as marked-up text of at most `most` characters: the title between `bold` marks, the end of the
    log in a code block. `quote` is called with each text and escapes what the service would take for markup.
    """
    head = "\n".join([f"{bold}{quote(message.title)}{bold}", *map(quote, message.lines)])[:most]
    log = quote("\n".join(message.tail)).replace(_FENCE, "'''")
    room = most - len(head) - 2 * len(_FENCE) - 3
    return f"{head}\n{_FENCE}\n{log[-room:]}\n{_FENCE}" if log and room > 0 else head


def _slack(text: str) -> str:
    """Return the text escaped for Slack, so that none of it becomes a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _card(message: Message) -> dict[str, Any]:
    """Return the message as an adaptive card for Microsoft Teams."""
    log = "\n".join(message.tail)[-_TEAMS:]
    blocks = [
        _block(message.title, weight="Bolder", size="Medium"),
        *(_block(line) for line in message.lines),
        *([_block(log, fontType="Monospace")] if log else []),
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [content]}


def _block(text: str, **more: str) -> dict[str, Any]:
    """Return a text block of an adaptive card, with the further properties `more`."""
    return {"type": "TextBlock", "text": text, "wrap": True, **more}


class NotDelivered(Exception):
    """Raised when a message was not delivered, for the reason `text`. With `again`, it may be accepted if it is sent
    again after `after_s` seconds.
    """

    def __init__(self, text: str, *, again: bool, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.text, self.again, self.after_s = text, again, after_s


def deliver(
    recipient: Recipient,
    message: Message,
    what: Notifying,
    folder: Path,
    *,
    answer_s: float = _ANSWER_S,
    command_s: float = _COMMAND_S,
) -> None:
    """Deliver the message to the recipient; raise NotDelivered if that fails.

    A server has `answer_s` for each answer, and a command `command_s` in all; a command runs in `folder`. `what` has
    the mail server.
    """
    try:
        match recipient.kind:
            case "email":
                _by_mail(recipient, message, what.mail, answer_s, command_s)
            case "command":
                _by_command(recipient.argv, message, folder, command_s)
            case "apprise":
                _by_apprise(recipient.address, message)
            case _:
                _by_web(recipient, message, answer_s)
    except NotDelivered as error:
        error.text = " ".join(without_secrets(error.text, what.secrets()).split())[:_LONGEST]
        raise


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An HTTP handler that refuses redirects, because a redirected POST would become a GET. The error then names the
    new address.
    """

    def redirect_request(self, *_: object) -> None:
        """Refuse the redirect by returning None."""


def _by_web(recipient: Recipient, message: Message, limit_s: float) -> None:
    """Post the message to the recipient's web address within `limit_s`; raise NotDelivered if that fails."""
    headers = {"Content-Type": "application/json", "User-Agent": "launch"}
    headers["Idempotency-Key"] = f"{message.run}/{message.key}/{recipient.id}"
    data = body(recipient.kind, message)
    try:
        address, login = _without_login(recipient.address)
        request = urllib.request.Request(address, data, headers | login, method="POST")  # noqa: S310 - it is http(s)
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=limit_s) as answer:
            answer.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise _of_answer(error) from None
    except (OSError, http.client.HTTPException) as error:
        raise NotDelivered(_said(error, limit_s), again=True) from None
    except ValueError:
        raise NotDelivered("its address is none", again=False) from None


def _without_login(address: str) -> tuple[str, dict[str, str]]:
    """Return (the address without `user:password@`, the HTTP headers that carry this login; {} if it has none)."""
    parts = urlsplit(address)
    if parts.username is None:
        return address, {}
    words = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    login = {"Authorization": f"Basic {base64.b64encode(words).decode()}"}
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), login


def _of_answer(error: urllib.error.HTTPError) -> NotDelivered:
    """Return the NotDelivered for an HTTP error. The message is worth sending again after a status of 500 or more, 408,
    425 or 429; the server's `Retry-After` in seconds, if there is one, says when.
    """
    later = error.headers.get("Retry-After", "") if error.headers is not None else ""
    again = error.code >= 500 or error.code in _LATER
    said = f"it answers {error.code} {error.reason}"
    return NotDelivered(said, again=again, after_s=float(later) if later.isdecimal() else 0.0)


def _said(error: Exception, limit_s: float) -> str:
    """Return the error as text without secrets, in the operating system's words; for a time-out, say that no answer
    came within `limit_s`.
    """
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {reason.verify_message}"
    if isinstance(reason, OSError) and reason.strerror:
        return f"{reason.strerror[:1].lower()}{reason.strerror[1:]}"
    return str(reason) or type(reason).__name__


def _by_apprise(url: str, message: Message) -> None:
    """Send the message with apprise, which has its own time limits; raise NotDelivered if apprise is missing or the
    service does not accept the message.
    """
    try:
        from launcher.supervisor.notify.by_apprise import send  # late: its library takes half a second to import
    except ImportError:
        raise NotDelivered("apprise is not installed on the machine that sends it", again=False) from None
    problem = send(url, message.title, message.text)
    if problem:
        raise NotDelivered(problem, again=True)


def _by_mail(
    recipient: Recipient, message: Message, server: MailServer | None, answer_s: float, command_s: float
) -> None:
    """Send the message by mail, through `server` or, if it is None, sendmail; raise NotDelivered if that fails.

    The server has `answer_s` for each answer, sendmail has `command_s` in all.
    """
    sender = server.sender if server is not None else None
    if sender is None:
        named = server.user if server is not None and server.user is not None and "@" in server.user else None
        sender = named or f"launch@{socket.gethostname() or 'localhost'}"
    letter = mail(message, sender, recipient.address)
    if server is None:
        _by_sendmail(letter, command_s)
        return
    try:
        with _connected(server, answer_s) as line:
            line.send_message(letter)
    except smtplib.SMTPRecipientsRefused as error:
        code, said = next(iter(error.recipients.values()))
        raise NotDelivered(
            f"{server.host} refuses {recipient.address}: {code} {_text(said)}", again=code < 500
        ) from None
    except smtplib.SMTPResponseException as error:
        text = f"{server.host} answered {error.smtp_code} {_text(error.smtp_error)}"
        raise NotDelivered(text, again=error.smtp_code < 500) from None
    except smtplib.SMTPNotSupportedError as error:
        raise NotDelivered(f"{server.host}: {error}", again=False) from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotDelivered(f"{server.host}: {_said(error, answer_s)}", again=True) from None


@contextlib.contextmanager
def _connected(server: MailServer, limit_s: float) -> Iterator[smtplib.SMTP]:
    """Yield a connection to the mail server, logged in if it names a user; `limit_s` is the time for each of its
    answers. With `tls` auto, the connection is encrypted if the server offers it, and always before a password is sent.

    Errors of the server are raised as smtplib's or OSError. Errors while the connection closes are ignored, because the
    mail has been accepted or refused by then.
    """
    context = ssl.create_default_context()
    line: smtplib.SMTP
    if server.tls == "tls" or (server.tls == "auto" and server.port == smtplib.SMTP_SSL_PORT):
        line = smtplib.SMTP_SSL(server.host, server.port, timeout=limit_s, context=context)
    else:
        line = smtplib.SMTP(server.host, server.port, timeout=limit_s)
    try:
        line.ehlo()
        secret = server.password is not None
        offered = line.has_extn("starttls")
        if (
            not isinstance(line, smtplib.SMTP_SSL)
            and server.tls != "none"
            and (offered or secret or server.tls == "starttls")
        ):
            line.starttls(context=context)
            line.ehlo()
        if server.user is not None and server.password is not None:
            line.login(server.user, server.password)
        yield line
        with contextlib.suppress(OSError, smtplib.SMTPException):
            line.quit()
    finally:
        line.close()


def _text(said: bytes | str) -> str:
    """Return a mail server's answer as text."""
    return said.decode(errors="replace") if isinstance(said, bytes) else said


def _by_sendmail(letter: EmailMessage, limit_s: float) -> None:
    """Send the mail with this machine's sendmail; raise NotDelivered if that fails or takes longer than `limit_s`."""
    program = shutil.which("sendmail", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib")
    if program is None:
        text = (
            "there is no sendmail on this machine, and no smtp in ~/.config/launch/notify.yaml where it was submitted"
        )
        raise NotDelivered(text, again=False)
    _run((program, "-t", "-i"), letter.as_bytes(), Path("/"), {}, limit_s)


def _by_command(argv: tuple[str, ...], message: Message, folder: Path, limit_s: float) -> None:
    """Run the recipient's command in `folder` with the message as JSON on its stdin.

    Raise NotDelivered if the command fails or takes longer than `limit_s`.
    """
    words = {"LAUNCH_RUN_ID": message.run, "LAUNCH_NOTIFY": message.kind, "LAUNCH_NOTIFY_TITLE": message.title}
    _run(argv, as_json(message), folder, words, limit_s)


def _run(argv: tuple[str, ...], data: bytes, folder: Path, words: dict[str, str], limit_s: float) -> None:
    """Run the command `argv` in `folder`, with `data` on its stdin and the variables `words`; raise NotDelivered if it
    fails.

    It runs in a session of its own, so that all its processes can be ended after `limit_s`.
    """
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said:
        told.write(data)
        told.seek(0)
        try:
            child = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, **words},
                stdin=told,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NotDelivered(f"{argv[0]}: {_said(error, limit_s)}", again=False) from None
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # our own child, not reaped yet: the number cannot be another's
            child.wait()
            raise NotDelivered(f"{argv[0]}: still running after {limit_s:g} s", again=True) from None
        said.seek(0)
        last = said.read(_MOST_BYTES).decode(errors="replace").strip().splitlines()[-1:]
    if code:
        raise NotDelivered(": ".join([f"{argv[0]}: exit code {code}", *last]), again=True)
