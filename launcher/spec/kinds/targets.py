"""Kinds of values for recipients of notifications: the service, and its address or where that is stored. A kind reads
one form of value from a node of the YAML tree, describes it in messages, and gives its JSON Schema.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

from launcher.spec.kinds.groups import WORD, ListOf
from launcher.spec.kinds.leaf import Json, Leaf
from launcher.spec.kinds.names import VariableName
from launcher.spec.kinds.text import Text, any_path
from launcher.spec.model import NotifyTarget, Secret
from launcher.spec.problems import Problem, Wrong, got, wrong
from launcher.spec.tree import Mapping, Node, Scalar, Sequence, Unusable

WEBHOOKS = ("slack", "discord", "teams", "json")
APPRISE = "apprise"  # any service that the library of that name knows, by its URL
SECRET_ADDRESSES = (*WEBHOOKS, APPRISE)
TARGETS = (*SECRET_ADDRESSES, "email", "command")
WEB_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*", re.ASCII)
URL = re.compile(r"[A-Za-z][\w+.-]*://\S+", re.ASCII)
_VARIABLE, _FILE = VariableName(), any_path("the path of a file")
_EMAIL = Text("an address such as me@example.org", r"[^@\s,;:<>()\[\]\\\"]+@[^@\s,;:<>()\[\]\\\"]+")
_SHELL = Text("a command", lines=True)
_ARGV = ListOf(WORD, minimum=1)


class SecretText(Leaf, frozen=True):
    """A secret value that does not stand in the spec: the spec has the name of the environment variable that holds it,
    or the file as `{file: PATH}`. With `spelled_out`, the value may also stand there itself if it is a web address.
    """

    spelled_out: bool = False  # a web address may be written itself

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        more = "an address, " if self.spelled_out else ""
        return f"{more}the variable that holds it, or `{{file: PATH}}`"

    def parse(self, node: Node) -> Secret | str:
        """Return a Secret, which says where the value is stored, or with `spelled_out` the web address itself if the
        node is one. Raise Wrong with every problem in the node.
        """
        match node:
            case Unusable():
                raise Wrong
            case Scalar() if not node.is_null:
                return self._word(node)
            case Mapping() if list(node.entries) == ["file"]:
                return Secret("file", _FILE.parse(node.entries["file"].value))
        raise wrong(node, f"expected {self.words()}")  # never what stands there: it may be the secret

    def _word(self, node: Scalar) -> Secret | str:
        """Return the variable that the scalar names or, with `spelled_out`, the address that it is; raise Wrong for any
        other address.
        """
        if URL.fullmatch(node.text):
            if self.spelled_out:
                return node.text
            hint = "name a variable that holds it, {file: PATH}, or write it into ~/.config/launch/notify.yaml"
            raise wrong(node, "an address is a secret, and a spec is read by many", hint)
        return Secret(_VARIABLE.parse(node))

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        file = {"type": "object", "properties": {"file": _FILE.schema()}, "required": ["file"]}
        address = [{"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*://"}] if self.spelled_out else []
        return {"anyOf": [*address, _VARIABLE.schema(), {**file, "additionalProperties": False}]}


class NotifyRecipient(Struct, frozen=True):
    """The kind of a mapping with one key, which names a service for notifications: `email: me@example.org`, or
    `slack: SLACK_WEBHOOK`, with the environment variable that has the secret web address.
    """

    spelled_out: bool = False  # such an address may also be written itself, in place of where it is stored

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return "a mapping such as `slack: SLACK_WEBHOOK`"

    def parse(self, node: Node) -> NotifyTarget:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        if isinstance(node, Unusable):
            raise Wrong
        if not isinstance(node, Mapping):
            seen = "text" if isinstance(node, Scalar) and not node.is_null else got(node)  # it may be the secret
            raise wrong(node, f"expected {self.words()}, got {seen}")
        if len(node.entries) != 1:
            raise wrong(node, f"expected {self.words()}", "put a dash before each one")
        ((key, value),) = ((entry.key, entry.value) for entry in node)
        if key.text not in TARGETS:
            raise Wrong(Problem(key.mark, "unknown kind of recipient", key=(key.text,), word=key.text, options=TARGETS))
        try:
            return self._recipient(key.text, value)
        except Wrong as error:
            raise Wrong(*(replace(one, key=(key.text, *one.key)) for one in error.problems)) from None

    def _recipient(self, kind: str, value: Node) -> NotifyTarget:
        """Return the recipient at the service `kind`, such as slack, by its `value`: an e-mail address for `email`, a
        command to be run for `command`, else the name of a secret or an address. Raise Wrong for any other value.
        """
        if kind == "email":
            return NotifyTarget(kind, address=_EMAIL.parse(value))
        if kind == "command":
            argv = _ARGV.parse(value) if isinstance(value, Sequence) else ("/bin/sh", "-c", _SHELL.parse(value))
            return NotifyTarget(kind, argv=argv)
        found = SecretText(self.spelled_out).parse(value)
        if isinstance(found, Secret):
            return NotifyTarget(kind, found)
        return NotifyTarget(kind, address=found)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        address = SecretText(self.spelled_out).schema()
        kinds = {
            **dict.fromkeys(SECRET_ADDRESSES, address),
            "email": _EMAIL.schema(),
            "command": {"anyOf": [_SHELL.schema(), _ARGV.schema()]},
        }
        one = {"minProperties": 1, "maxProperties": 1, "additionalProperties": False}
        return {"type": "object", **one, "properties": kinds}
