"""Format a message for each kind of recipient. Pure functions."""

from email.message import EmailMessage
from typing import Any

import msgspec

from launcher.supervisor.notify.message import Message

_SLACK, _DISCORD, _TEAMS = 3000, 1900, 15_000  # characters that they take, with some room
_FENCE = "```"


def body(kind: str, message: Message) -> bytes:
    """Return the body to post to a webhook of this kind."""
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
    """Return the whole message as JSON; numbers that are not finite become null."""
    return msgspec.json.encode({**msgspec.to_builtins(message), "text": message.text})


def mail(message: Message, sender: str, to: str) -> EmailMessage:
    """Return the message as a mail."""
    letter = EmailMessage()
    letter["From"], letter["To"] = sender, to
    letter["Subject"] = " ".join(message.title.split())
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(message.text + "\n")
    return letter


def _marked(message: Message, most: int, bold: str, quote: Any) -> str:
    """Return the message as marked-up text: the title in bold, and the end of the log in a code block."""
    head = "\n".join([f"{bold}{quote(message.title)}{bold}", *map(quote, message.lines)])[:most]
    log = quote("\n".join(message.tail)).replace(_FENCE, "'''")
    room = most - len(head) - 2 * len(_FENCE) - 3
    return f"{head}\n{_FENCE}\n{log[-room:]}\n{_FENCE}" if log and room > 0 else head


def _slack(text: str) -> str:
    """Return the text escaped for Slack, so that nothing in it becomes a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _card(message: Message) -> dict[str, Any]:
    """Return the message as an adaptive card for workflows and connectors of Teams."""
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
    """Return a text block of an adaptive card."""
    return {"type": "TextBlock", "text": text, "wrap": True, **more}
