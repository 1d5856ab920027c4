"""Markdown as text for a terminal: what our own pages are written in, and no more of it. Pure."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

Paint = Callable[[str, str], str]  # a text and a colour of terminal.py
NameOf = Callable[[str], str]  # what a reader types to see where a link leads; "" where nothing shows it

_INLINE = re.compile(r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|\[(?P<text>(?:`[^`]*`|[^\]])*)\]\((?P<to>[^)]+)\)")
_ITEM = re.compile(r"( *)(- |\d+\. )(.*)")
_CELLS = re.compile(r"(?<!\\)\|")
_CODES = re.compile(r"\x1b\[\d*m")
_LEAST = 24  # columns that are enough to read text in
_GAP = "  "


def for_terminal(text: str, width: int, paint: Paint, name_of: NameOf) -> list[str]:
    """The lines of a page, none wider than this but for code."""
    return _Page(width, paint, name_of).lines(text.splitlines())


class _Page:
    def __init__(self, width: int, paint: Paint, name_of: NameOf) -> None:
        self._width = width
        self._paint = paint
        self._name_of = name_of

    def lines(self, source: Sequence[str]) -> list[str]:
        shown = list[str]()
        for block in _blocks(source):
            if lines := [*self._block(block)]:
                shown += [*([""] if shown else []), *lines]
        return shown

    def _block(self, block: Sequence[str]) -> Iterator[str]:
        first = block[0]
        if first.startswith("<!--"):
            return
        if first.lstrip().startswith("```"):
            yield from (f"    {line}" for line in block[1:-1])
        elif first.startswith("#"):
            title = first.lstrip("#").strip()
            yield self._paint(self._bare(title), "bold")
            if not first.startswith("###"):
                yield ("═" if first.startswith("# ") else "─") * min(len(self._bare(title)), self._width)
        elif first.startswith("|"):
            yield from self._table([_cells(line) for line in block if not set(line) <= set("|-: ")])
        else:
            for lead, text in _items(block):
                yield from self._wrapped(text, self._width, lead)

    def _table(self, rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """Columns, the last one wrapped; where that leaves it too narrow, the cells of a row below each other."""
        cells = [[self._inline(cell) for cell in row] for row in rows]
        widths = [max(map(_shown, column)) for column in zip_longest(*cells, fillvalue="")][:-1]
        left = self._width - sum(widths) - len(_GAP) * len(widths)
        if left < _LEAST:
            for row in cells[1:]:
                yield from self._wrapped(row[0], self._width, "")
                for cell in filter(None, row[1:]):
                    yield from self._wrapped(cell, self._width, "    ")
            return
        for number, row in enumerate(cells):
            start = [f"{cell}{' ' * (wide - _shown(cell))}" for cell, wide in zip(row, widths, strict=False)]
            last = list(self._wrapped(row[-1] if len(row) > len(widths) else "", left, ""))
            for line, text in enumerate(last or [""]):
                before = start if line == 0 else [" " * wide for wide in widths]
                whole = _GAP.join([*before, text]).rstrip()
                yield self._paint(whole, "bold") if number == 0 else whole

    def _wrapped(self, text: str, width: int, lead: str) -> Iterator[str]:
        """With this before the first line, and as much room before the others."""
        line, words = lead, self._inline(text).split()
        room = " " * len(lead)
        for number, word in enumerate(words):
            if number and _shown(line) + 1 + _shown(word) > width:
                yield line
                line = f"{room}{word}"
            else:
                line += f" {word}" if number and line.strip() and line != lead else word
        if words:
            yield line

    def _inline(self, text: str) -> str:
        return _INLINE.sub(self._said, text)

    def _bare(self, text: str) -> str:
        return _CODES.sub("", self._inline(text))

    def _said(self, found: re.Match[str]) -> str:
        if (code := found["code"]) is not None:
            return self._each(code, "cyan")
        if (bold := found["bold"]) is not None:
            return self._each(self._inline(bold), "bold")
        name, text = self._name_of(found["to"]), self._inline(found["text"])
        return f"{text} ({name})" if name and name != text else text

    def _each(self, text: str, colour: str) -> str:
        """Word by word: lines may be broken between them."""
        return " ".join(self._paint(word, colour) for word in text.split(" "))


def _blocks(source: Sequence[str]) -> Iterator[list[str]]:
    """Paragraphs with lists, tables, headings, and code with its fences."""
    block, fence = list[str](), ""
    for line in source:
        if fence:
            block.append(line)
            if line.strip() == fence:
                yield block
                block, fence = [], ""
            continue
        starts = line.lstrip().startswith("```")
        apart = starts or line.startswith("#") or (bool(block) and line.startswith("|") != block[0].startswith("|"))
        if block and (apart or not line.strip()):
            yield block
            block = []
        if starts:
            block, fence = [line], "```"
        elif line.startswith("#"):
            yield [line]
        elif line.strip():
            block.append(line)
    if block:
        yield [*block, *([fence] if fence else [])]


def _items(block: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each paragraph or item of a list in a block, with what stands before it."""
    lead, text = "", list[str]()
    for line in block:
        found = _ITEM.fullmatch(line)
        if found is not None:
            if text:
                yield lead, " ".join(text)
            lead, text = f"{found[1]}{found[2]}", [found[3]]
        else:
            text.append(line.strip())
    yield lead, " ".join(text)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in _CELLS.split(inner)]


def _shown(text: str) -> int:
    return len(_CODES.sub("", text))
