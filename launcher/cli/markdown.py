"""Format Markdown as text for a terminal, with the library rich."""

import io
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import ClassVar

from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

NameOf = Callable[[str], str]  # what a reader types to see where a link leads; "" where nothing shows it

_LEAST = 24  # columns that are enough to read text in
_THEME = Theme({"markdown.code": "cyan", "markdown.link": "none", "markdown.link_url": "none"})


def for_terminal(text: str, width: int, name_of: NameOf, *, colour: bool) -> list[str]:
    """Return the lines of a page, in colours with `colour`; only lines of code may be wider than `width`.

    `name_of` returns what a reader types to follow a link, "" if it leads nowhere.
    """
    page = _Page(text, hyperlinks=False)
    page.parsed = [token for token in page.parsed if token.type != "html_block"]  # comments
    for token in page.parsed:
        token.children = _named(token.children or [], name_of)
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, color_system="standard" if colour else None, theme=_THEME
    )
    console.print(page, crop=False)
    return [line.rstrip() for line in out.getvalue().lstrip("\n").splitlines()]


def _named(tokens: Sequence[Token], name_of: NameOf) -> list[Token]:
    """Return the tokens with each link's target replaced by the command or address that `name_of` returns for it, which
    a reader types to follow the link. A link for which that is "" becomes plain text.
    """
    kept, shown = [], True
    for token, text in zip_longest(tokens, tokens[1:]):
        if token.type == "link_open":
            token.attrs["href"] = name = name_of(str(token.attrs.get("href", "")))
            shown = bool(name) and (text is None or text.content != name)
        if shown or not token.type.startswith("link_"):
            kept.append(token)
    return kept


class _Code(CodeBlock):
    """A block of code whose lines are never broken or cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = str(self.text).rstrip().split("\n")
        yield Text("\n".join(f"    {line}" for line in lines), no_wrap=True, overflow="ignore")


class _Title(Heading):
    """A heading that is aligned left and underlined."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text
        if self.tag in ("h1", "h2"):
            yield Text(("═" if self.tag == "h1" else "─") * min(self.text.cell_len, options.max_width))


class _Table(TableElement):
    """A table whose last column is wrapped. If that leaves the column too narrow, the cells of each row are shown below
    each other.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = [self.header.row] if self.header is not None and self.header.row is not None else []
        found += self.body.rows if self.body is not None else []
        head, *rows = [[cell.content for cell in row.cells] for row in found]
        widths = [max(cell.cell_len for cell in column) for column in zip(head, *rows, strict=False)]
        if options.max_width - sum(2 + wide for wide in widths[:-1]) < _LEAST:
            for row in rows:
                yield row[0]
                yield from (Padding(cell, (0, 0, 0, 4)) for cell in row[1:] if cell.plain)
            return
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for number, cell in enumerate(head):
            table.add_column(cell, no_wrap=number < len(head) - 1)
        for row in rows:
            table.add_row(*row)
        yield table


class _Page(Markdown):
    """Markdown with the blocks of this module instead of rich's."""

    elements: ClassVar = {**Markdown.elements, "fence": _Code, "heading_open": _Title, "table_open": _Table}
