"""The kind of value of `roles:`: the names of several programs of one run, and how each relates to the others."""

from msgspec import Struct

from launcher.spec.kinds.leaf import Json, Leaf
from launcher.spec.kinds.sections import Section
from launcher.spec.kinds.text import Text
from launcher.spec.model import Role
from launcher.spec.problems import Gather, Wrong, got, wrong
from launcher.spec.tree import Mapping, Node, Scalar, Unusable

_PATTERN = r"(?!last$)[a-z][a-z0-9_]{0,30}"  # commands call the newest run so, and a role's folder is one of a run
ROLE_NAME = Text("the name of a role, of a-z, 0-9 and _, at most 31 long, and not `last`", _PATTERN)

PORT_NAME = Text("the name of a port, of a-z, 0-9 and _, at most 31 long", r"[a-z][a-z0-9_]{0,30}")


class PortToTry(Leaf, frozen=True):
    """The kind of value that names the port of a rank to which a connection succeeds once the rank is ready: true for
    the first port, LAUNCH_PORT, or the name of one of the role's ports.
    """

    WORDS = "true or the name of a port"

    def convert(self, scalar: Scalar) -> bool | str:
        """Return True for `true`, else the text, which names a port; raise Unfit if it cannot be such a name."""
        return True if scalar.text == "true" else PORT_NAME.convert(scalar)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"anyOf": [{"const": True}, PORT_NAME.schema()]}


class RolesTable(Struct, frozen=True):
    """The table of roles, read only for how each relates to others (the options in `among`, such as `after`). The
    options in `of_a_spec`, such as `run`, are read later, once those common to all roles are merged in.
    """

    among: Section  # options on how a role relates to others
    of_a_spec: tuple[str, ...]  # the options that a role may have

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return "a mapping from the names of roles to their specs"

    def parse(self, node: Node) -> dict[str, Role]:
        """Return how each role relates to the others, by the role's name; raise Wrong with every problem in it."""
        if isinstance(node, Unusable):
            raise Wrong
        if not isinstance(node, Mapping) or not node.entries:
            raise wrong(node, f"expected {self.words()}, got {got(node)}", "write `learner:` and its spec below that")
        gather, found = Gather(), dict[str, Role]()
        for entry in node:
            name = gather.take(entry.key.text, ROLE_NAME.parse, entry.key)
            role = gather.take(entry.key.text, self._role, entry.value)
            if name is not None and role is not None:
                found[name] = role
        gather.close()
        return found

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        own = {key: {"$ref": f"#/properties/{key}"} for key in self.of_a_spec}
        among = self.among.schema()["properties"]
        role = {"type": "object", "additionalProperties": False, "properties": {**among, **own}}
        return {
            "type": "object",
            "propertyNames": ROLE_NAME.schema(),
            "minProperties": 1,
            "additionalProperties": role,
        }

    def _role(self, node: Node) -> Role:
        """Return the Role that is written at this node, read from the options in `among` alone, such as `main` or
        `after`; raise Wrong with every problem.
        """
        if isinstance(node, Unusable):
            raise Wrong
        if not isinstance(node, Mapping):
            raise wrong(node, f"expected a mapping of options, got {got(node)}", "write `run:` below it")
        mine = {key: entry for key, entry in node.entries.items() if key in self.among.by_key}
        role: Role = self.among.parse(Mapping(mine, node.mark))
        return role
