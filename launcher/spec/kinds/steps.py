"""The kind of value of `steps:`: several jobs by name, which of them each needs, and how its spec differs."""

from msgspec import Struct

from launcher.spec.kinds.groups import ListOf
from launcher.spec.kinds.leaf import Json
from launcher.spec.kinds.text import Text
from launcher.spec.problems import Gather, Wrong, got, wrong
from launcher.spec.tree import Mapping, Node, Unusable

NEEDS_KEY, ON_KEY = "needs", "on"
_NAME = r"[a-z0-9][a-z0-9_-]{0,30}"
STEP_NAME = Text("the name of a step, of a-z, 0-9, _ and -, at most 31 long", _NAME)
NEEDS = ListOf(STEP_NAME, single=True, may_be_blank=True)
ON = Text("the name of a cluster", r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


class StepsTable(Struct, frozen=True):
    """The table of steps, read only for what each needs. The options in `of_a_spec` are read later, once those common
    to all steps are merged in.
    """

    of_a_spec: tuple[str, ...]  # the options that a step may have

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return "a mapping from the names of steps to their specs"

    def parse(self, node: Node) -> dict[str, tuple[str, ...]]:
        """Return {step: the names of the steps that it needs}; raise Wrong with every problem in the node."""
        if isinstance(node, Unusable):
            raise Wrong
        if not isinstance(node, Mapping) or not node.entries:
            raise wrong(node, f"expected {self.words()}, got {got(node)}", "write `train:` and its spec below that")
        gather, found = Gather(), dict[str, tuple[str, ...]]()
        for entry in node:
            name = gather.take(entry.key.text, STEP_NAME.parse, entry.key)
            needs = gather.take(entry.key.text, _needs, entry.value)
            if name is not None and needs is not None:
                found[name] = needs
        gather.close()
        return found

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        own = {key: {"$ref": f"#/properties/{key}"} for key in self.of_a_spec}
        step = {
            "type": "object",
            "additionalProperties": False,
            "properties": {NEEDS_KEY: NEEDS.schema(), ON_KEY: ON.schema(), **own},
        }
        return {
            "type": "object",
            "propertyNames": STEP_NAME.schema(),
            "minProperties": 1,
            "additionalProperties": step,
        }


def _needs(step: Node) -> tuple[str, ...]:
    """Return the names of the steps that the step at this node needs; raise Wrong if `needs` is no list of names."""
    if isinstance(step, Unusable):
        raise Wrong
    if not isinstance(step, Mapping):
        raise wrong(step, f"expected a mapping of options, got {got(step)}", "write `run:` below it")
    entry = step.entries.get(NEEDS_KEY)
    if entry is None:
        return ()
    gather = Gather()
    needs: tuple[str, ...] | None = gather.take(NEEDS_KEY, NEEDS.parse, entry.value)
    gather.close()
    return needs or ()
