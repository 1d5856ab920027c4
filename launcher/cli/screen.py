"""A block of lines at the end of a terminal that is drawn over and over."""

from typing import TextIO

from launcher.cli.terminal import cut_painted, size


class Screen:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = 0

    def show(self, lines: list[str], *, last: bool = False) -> None:
        """These lines in place of those before; all of them the last time, else as many as fit."""
        width, height = size(self._stream)
        shown = lines if last else [cut_painted(line, width) for line in lines[: height - 1]]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._stream.write(f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in shown))
        self._stream.flush()
        self._drawn = len(shown)
