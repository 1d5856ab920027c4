"""One secret: a name whose value is in the submitting environment, or a name and a file."""

from dataclasses import dataclass

from launcher.spec.kinds.groups import ByShape, single
from launcher.spec.kinds.leaf import Json, Leaf
from launcher.spec.kinds.names import VariableName
from launcher.spec.kinds.paths import any_path
from launcher.spec.model import Secret
from launcher.spec.problems import Gather, Wrong, wrong
from launcher.spec.tree import Mapping, Node, Scalar

_NAME = VariableName()
_FILE = any_path("the path of a file")


@dataclass(frozen=True, slots=True)
class _FromEnvironment(Leaf):
    def words(self) -> str:
        return "a variable name"

    def convert(self, scalar: Scalar) -> Secret:
        return Secret(_NAME.convert(scalar))

    def schema(self) -> Json:
        return _NAME.schema()


@dataclass(frozen=True, slots=True)
class _FromFile:
    def words(self) -> str:
        return "`NAME: path/to/file`"

    def parse(self, node: Node) -> Secret:
        entry = single(node) if isinstance(node, Mapping) else None
        if entry is None:
            raise wrong(node, f"expected {self.words()}", "put a dash before each name")
        gather = Gather()
        # Without the name in the key path: it may be a value that was pasted to the wrong place.
        name = _unnamed(gather, entry.key)
        file = gather.take("file", _FILE.parse, entry.value)
        gather.close()
        return Secret(str(name), file)

    def schema(self) -> Json:
        return {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "propertyNames": _NAME.schema(),
            "additionalProperties": _FILE.schema(),
        }

    def show(self, value: Secret) -> dict[str, str | None]:
        return {value.name: value.file}


def _unnamed(gather: Gather, key: Scalar) -> str | None:
    try:
        return str(_NAME.parse(key))
    except Wrong as error:
        gather.blame(error)
        return None


def secret() -> ByShape:
    return ByShape(scalar=_FromEnvironment(), mapping=_FromFile())
