"""Write a tree as the text of a file that is read as the same tree."""

import json
import re
from collections.abc import Iterator

from launcher.spec.tree import Mapping, Node, Scalar, Sequence

_KEY = re.compile(r"(?i)(?!(?:null|true|false|yes|no|on|off|y|n)$)[a-z_][a-z0-9_-]*")
_INDENT = "  "


def block_text(tree: Mapping) -> str:
    """Return the tree as YAML."""
    return "".join(f"{line}\n" for line in _lines(tree))


def _lines(node: Node) -> Iterator[str]:
    """Yield the lines of a node."""
    if isinstance(node, Mapping):
        for entry in node:
            yield from _under(f"{_key(entry.key.text)}:", entry.value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _under("-", item)


def _under(head: str, node: Node) -> Iterator[str]:
    """Yield the lines of a node below its key."""
    if isinstance(node, Scalar):
        yield f"{head} {_scalar(node)}".rstrip()
    elif isinstance(node, Sequence) and not node.items:
        yield f"{head} []"
    elif isinstance(node, Mapping) and not node.entries:
        yield f"{head} {{}}"
    else:
        yield head
        yield from (f"{_INDENT}{line}" for line in _lines(node))


def _scalar(node: Scalar) -> str:
    """Return a value as YAML, quoted unless it was plain before, because quotes tell text from numbers."""
    return node.text if node.plain and "\n" not in node.text else json.dumps(node.text, ensure_ascii=False)


def _key(text: str) -> str:
    """Return a key as YAML."""
    return text if _KEY.fullmatch(text) else json.dumps(text, ensure_ascii=False)
