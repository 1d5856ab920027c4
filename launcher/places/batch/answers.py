"""Parse the output of schedulers' commands: job ids, settings, XML, JSON, numbers. Pure functions."""

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

from launcher.errors import Unreachable

JOB_ID = re.compile(r"[0-9]{1,10}")


def read_submitted(text: str) -> str | None:
    """Return the id of the submitted job: the number on the only line that has nothing but a number, or a number and
    `;CLUSTER`. Return None if no line or several different ones are like this; a site's banner around it does not
    matter.
    """
    found = {line[1] for line in re.finditer(r"^[ \t]*([0-9]{1,10})(?:;[\w.-]+)?[ \t\r]*$", text, re.MULTILINE)}
    return found.pop() if len(found) == 1 else None


def read_settings(text: str, sign: str | None = None) -> dict[str, str]:
    """Return name and value from each line, separated by white space or by `sign`; a backslash continues a line.

    If a name occurs twice, the first value counts.
    """
    rows = (line.split(sign, 1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip())
    found: dict[str, str] = {}
    for name, *value in rows:
        found.setdefault(name.strip(), "".join(value).strip())
    return found


def read_xml(called: str, text: str) -> ET.Element:
    """Return the XML document in the text, after any banner of the site.

    Raise Unreachable if it is damaged, because jobs missing from it would seem to have ended; `called` names the batch
    system in the message.
    """
    try:
        return ET.fromstring(text[max(0, text.find("<?xml")) :])  # noqa: S314 # nosec B314 - the user's own server
    except ET.ParseError as error:
        got = repr(text.strip()[:100]) if text.strip() else "nothing"
        raise Unreachable(f"an answer of {called} is damaged: expected XML, got {got}") from error


def read_json(called: str, text: str) -> dict[str, Any]:
    """Return the JSON object in the text, after any banner of the site.

    Raise Unreachable if it is damaged, because jobs missing from it would seem to have ended; `called` names the batch
    system in the message. Control characters, which JSON does not allow in text, are accepted, because batch systems
    write them.
    """
    try:
        found = json.loads(text[max(0, text.find("{")) :], strict=False)
        if isinstance(found, dict):
            return found
    except (ValueError, RecursionError):
        pass
    got = repr(text.strip()[:100]) if text.strip() else "nothing"
    raise Unreachable(f"an answer of {called} is damaged: expected JSON, got {got}")


def child_text(node: ET.Element, name: str) -> str:
    """Return the text of the child element with this name, or "" if there is none."""
    return (node.findtext(name) or "").strip()


def child_texts(node: ET.Element, name: str) -> list[str]:
    """Return the texts of all elements named `name` in the node, at any depth, without empty ones."""
    return [one.text for one in node.iter(name) if one.text]


def number(text: str) -> float | None:
    """Return the number in the text, or None if the text is not digits, with or without a decimal point."""
    return float(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{0,15})?", text.strip()) else None
