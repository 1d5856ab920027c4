"""Paths that stay inside a folder, and patterns of them."""

from collections.abc import Container
from dataclasses import dataclass

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.kinds.text import Text, refuse_characters
from launcher.spec.tree import Scalar

_LONGEST_PATH = 1024
_LONGEST_NAME = 255

# The run directory's own names: no option may point into them.
RUN_DIR_NAMES = frozenset(
    (
        "spec.yaml", "plan.json", "secrets.json", "code", "FENCE", "attempts", "events.jsonl", "state.json", "logs",
        "metrics", "avoided.json", "gone.json",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InnerPath(Leaf):
    """A relative path that cannot lead out of the folder it starts from."""

    what: str
    inside: str  # that folder, in words
    # First parts that are taken; then hidden ones and the folder itself are, too.
    refused: Container[str] | None = None

    def words(self) -> str:
        return self.what

    def convert(self, scalar: Scalar) -> str:
        text = scalar.text
        if scalar.is_null:
            raise Unfit(f"quote it if you mean text: '{text}'")
        refuse_characters(text, lines=False)
        self._stay_inside(text)
        self._be_a_name(text)
        return text

    def _stay_inside(self, text: str) -> None:
        if text.startswith(("/", "~")):
            raise Unfit(f"write it relative to {self.inside}")
        if ".." in text.split("/"):
            raise Unfit(reason=f"{self.what} cannot lead out of {self.inside} by ..")

    def _be_a_name(self, text: str) -> None:
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if not text or text.startswith("-"):
            raise Unfit
        if len(text.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
            raise Unfit(reason="longer than a file system takes")
        if self.refused is not None and (not parts or parts[0] in self.refused or parts[0].startswith(".")):
            raise Unfit(reason=f"expected {self.what} of its own, got the launcher's {parts[0] if parts else '.'}")

    def schema(self) -> Json:
        return {"type": ["string", "number", "boolean"], "pattern": r"^(?![-/~])(?!(?:.*/)?\.\.(?:/|$)).+$"}


def any_path(what: str) -> Text:
    """A path on some machine, absolute or not."""
    return Text(what, r"[^-].*")
