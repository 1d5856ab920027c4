"""The table of all options for launcher/docs/spec.md, from the table that the reader walks."""

import json
from collections.abc import Iterator

from msgspec import NODEFAULT

from launcher.spec.fields import JOB
from launcher.spec.kinds.sections import Field, Section, Shorthand


def reference() -> str:
    """A Markdown table, one row per option."""
    head = ["| option | for example | default | what it is |", "|---|---|---|---|"]
    return "\n".join([*head, *_rows(JOB, "")]) + "\n"


def _rows(section: Section, prefix: str) -> Iterator[str]:
    for field in section.options:
        key = f"{prefix}{field.key}"
        inner = _inner(field)
        if inner is field.kind:
            yield from _rows(inner, f"{key}.")
            continue
        example = f"`{_cell(field.example)}`" if field.example else ""
        yield f"| `{key}` | {example} | {_cell(_default(section, field))} | {_cell(field.doc)} |"
        if inner is not None:
            yield from _rows(inner, f"{key}[].")


def _inner(field: Field) -> Section | None:
    """The section that stands there, or the one that each item of a list may be."""
    if isinstance(field.kind, Section):
        return field.kind
    item = getattr(field.kind, "item", None)
    return item.section if isinstance(item, Shorthand) else None


def _default(section: Section, field: Field) -> str:
    if section.default(field) is NODEFAULT:
        return "required"
    shown = section.shown_default(field)
    return f"`{_text(shown['default'])}`" if shown else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
