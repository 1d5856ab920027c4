"""`launch help PAGE`: show a documentation page as text in the terminal. Pages for users are in launcher/docs, those
for contributors beside the code.
"""

import difflib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.commands import ALSO, COMMANDS, GROUPS
from launcher.cli.shipped import pages
from launcher.cli.terminal import in_colour, is_terminal, size
from launcher.errors import BadInput, Exit

_PACKAGES = Path(__file__).resolve().parents[2]
_WIDEST = 100  # columns in which text is easy to read


def show(name: str, others: Sequence[str]) -> int:
    """Show the page called `name` and return the exit code.

    Raise BadInput for an unknown name; `others` are further names that the message may suggest.
    """
    known = _known()
    path = known.get(name.removesuffix("/README.md").removesuffix(".md").rstrip("/"))
    if path is None:
        near = difflib.get_close_matches(name[:100], [*others, *known], n=3)
        meant = f"did you mean {' or '.join(f'`launch help {one}`' for one in near)}?" if near else ""
        raise BadInput(f"no such command or page: {name[:100]!r}", f"hint: {meant or '`launch help` lists all'}")
    from launcher.cli.markdown import for_terminal  # late: only a page needs rich

    text = path.read_text(encoding="utf-8")
    width = min(size(sys.stdout)[0], _WIDEST)
    _page(for_terminal(text, width, lambda link: _how_to_follow(link, path), colour=in_colour(sys.stdout)))
    return Exit.OK


def _known() -> dict[str, Path]:
    """Return {name: file} of all pages.

    A page for users is named like its file. A page beside the code has two names: its path without README.md or .md,
    such as `launcher/node` or `launcher/node/zygote`, and the last part of that path, unless a command has this name.
    """
    found = [path for package in ("launcher", "trainer") for path in sorted((_PACKAGES / package).rglob("*.md"))]
    insides = {_page_name(path): path for path in found if path not in pages().values()}
    short = {place.rpartition("/")[2]: path for place, path in insides.items()}
    return {name: path for name, path in short.items() if name not in {*COMMANDS, *ALSO, *GROUPS}} | insides | pages()


def _page_name(path: Path) -> str:
    """Return the name under which a page beside the code is shown: a README's folder, or the page's path."""
    at = path.relative_to(_PACKAGES)
    return at.parent.as_posix() if at.name == "README.md" else at.with_suffix("").as_posix().lower()


def _how_to_follow(link: str, page: Path) -> str:
    """Return how to follow a link in a page: its address, a `launch help` command, or "" if it leads nowhere."""
    if re.match(r"https?:", link):
        return link
    at = Path(os.path.normpath(page.parent / link.partition("#")[0]))
    found = next((name for name, path in _known().items() if path == at), "")
    return f"launch help {found}" if found and at != page else ""


def _page(lines: Sequence[str]) -> None:
    """Print the lines, through the user's pager if they do not fit the terminal."""
    text = "\n".join(lines) + "\n"
    program = shlex.split(os.environ.get("PAGER") or "less")
    if not (is_terminal(sys.stdout) and len(lines) >= size(sys.stdout)[1] and program):
        print(text, end="")
        return
    # Ctrl-C is the pager's: we stay until it has given the terminal back.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        env = {"LESS": "FRX", **os.environ}
        subprocess.run(program, input=text.encode(), env=env, check=False)
    except OSError:
        print(text, end="")  # there is no such program
    finally:
        signal.signal(signal.SIGINT, before)
