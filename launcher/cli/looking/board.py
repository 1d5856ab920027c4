"""`launch board`: serve a live web page of all runs on this machine, or write a page about some runs into a folder."""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher import api
from launcher.cli.arguments import RUN_HELP, Arguments, tls_of
from launcher.cli.terminal import safe
from launcher.errors import BadInput, Exit

EXAMPLES = """
  launch board                      opens the browser, or says how to get there from yours; Ctrl-C ends it
  launch board last                 begins with the curves of this run; with several, compares them
  launch board --port 8123          at this port, so that a tunnel can stay
  launch board --actions            cancel, resume, tag and note from the page, which asks before it does
  launch board --no-open            prints the address alone
  launch board --export page last   writes this run, or several, as a page that opens from disk or any web server

What one command has started lies folded under one line of the table: trials of a sweep, steps of a file, runs of
`launch prove` and `launch scale`. A click, Enter or the arrows to the side unfold it; what is searched for is unfolded.

The head of a run has the last loss with its step, as the curve has it. A failed run opens on its traceback and the log
around it. Goodput is the time in steps that counted, as a share of the time without the queue before a start that a
person asked for and the time after an end. Validations are steps at which `val_loss` or another quality whose name
begins with val, valid, validation or eval was new. Clusters shows this machine, what the clusters file names, and pools
that only a spec names while a run is on them. In Compare a column says best or last; what is equal in all is left out.

An exported page has the curves, the life of the run, tables and the last part of the logs as they are now. Values of
`secrets:`, addresses of `notify:` and what `env:` or an option of the script sets for names such as API_KEY or --token
are redacted wherever they occur, on the live page too; read it before you give it away: what else a script prints
stays. It needs neither server nor package.

The live page is reached from this machine alone, by who has the token in the address. With --host others on the network
get as far as the token, which --tls-cert and --tls-key keep from being read on its way. It needs Starlette and uvicorn,
which the extra `board` brings: `launch help install`.
"""
_OPENERS = ("xdg-open", "open", "wslview")
_MOST_PORT = 65535
_MOST_COMPARED = 20


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch board`."""
    arguments.add_argument("--port", metavar="N", type=_port, default=0, help="the port; 0 (default): any free one")
    arguments.add_argument(
        "--host", metavar="ADDR", default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1); with another address, other machines can connect, but "
        "need the token",
    )  # fmt: skip
    arguments.takes_tls()
    arguments.add_argument("--no-open", action="store_true", help="open no browser")
    what = arguments.add_mutually_exclusive_group()
    what.add_argument("--actions", action="store_true", help="let the page cancel, resume, tag and note runs")
    what.add_argument(
        "--export", metavar="DIR", type=Path, help="write these runs into a folder, as a page, instead of serving"
    )  # fmt: skip
    arguments.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help=f"{RUN_HELP}: what the page begins with, several compared; or what is exported",
    )


def run(options: argparse.Namespace) -> int:
    """Run `launch board` and return its exit code."""
    return _serve(options) if options.export is None else _export(options)


def _export(options: argparse.Namespace) -> int:
    """Write the chosen runs as a page in a folder; return the exit code. Raise BadInput if no run is chosen."""
    from launcher.apps.board.export import export_page  # late: a page that is served does without

    runs = [*dict.fromkeys(map(api.run, options.runs))]
    if not runs:
        raise BadInput("expected runs to export, got none", f"hint: launch board --export {options.export} last")
    print(export_page(runs, options.export))
    print("open it in a browser, or put the folder on any web server", file=sys.stderr)
    return Exit.OK


def _serve(options: argparse.Namespace) -> int:
    """Serve the board until Ctrl-C; return the exit code. Raise BadInput if a package that the board needs is not
    installed.
    """
    from launcher.apps.web.keys import Keys, origin, page_address  # late: secrets, likewise
    from launcher.apps.web.listening import in_address, is_loopback, listen  # late: sockets, for this command alone

    first = [*dict.fromkeys(map(api.run, options.runs))]
    view = _view(first)
    lacks = [name for name in ("starlette", "uvicorn", "httptools") if importlib.util.find_spec(name) is None]
    if lacks:
        from trainer.extras import install_hint  # late: after a failure alone

        raise BadInput(f"board needs {', '.join(lacks)}", install_hint("board"))
    keys, tls = Keys(), tls_of(options)
    with listen(options.host, options.port, hint="launch board --port 0") as listening:
        port = listening.getsockname()[1]
        address = page_address(origin(options.host, port, tls=tls is not None), keys, view=view)
        print(address, flush=True)
        page = None if options.no_open else _open(address)
        if page is None and os.environ.get("SSH_CONNECTION"):
            print(f"from your own machine: ssh -L {port}:{in_address(options.host)}:{port} {_this_machine()}, "
                  "then open this address there", file=sys.stderr)  # fmt: skip
        if tls is None and not is_loopback(options.host):
            print("note: the token crosses the network as it is: --tls-cert and --tls-key encrypt it", file=sys.stderr)
        print("Ctrl-C ends it; runs go on", file=sys.stderr)
        try:
            from launcher.apps.board import server  # late: an optional package; a browser starts meanwhile

            board = server.Board(actions=options.actions, first=tuple(first), keys=keys)
            server.serve(listening, options.host, board, welcomed=lambda: _delete_page(page), tls=tls)
        finally:
            _delete_page(page)
    return Exit.OK


def _view(runs: Sequence[api.Run]) -> str:
    """Return the part of the board's address that opens these runs: one, or several to compare; "" for all runs.

    Raise BadInput if there are more than 20.
    """
    if len(runs) > _MOST_COMPARED:
        raise BadInput(f"expected at most {_MOST_COMPARED} runs to compare, got {len(runs)}")
    ids = ",".join(one.id for one in runs)
    return f"{'compare' if len(runs) > 1 else 'run'}/{ids}" if runs else ""


def _this_machine() -> str:
    """Return the address at which the user's ssh client reached this machine, by $SSH_CONNECTION, which must be set;
    return `this-machine` if its value has another form than usual.
    """
    words = os.environ["SSH_CONNECTION"].split()
    return safe(words[2]) if len(words) == 4 else "this-machine"


def _open(address: str) -> Path | None:
    """Open the address in the desktop's browser, by a temporary page that redirects to it; return the page, to be
    deleted later, or None if there is no browser.

    The address has a token, and other users can read a command line. So it is in a file that only its user can read.
    """
    opener = next((found for name in _OPENERS if (found := shutil.which(name))), None)
    here = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if opener is None or not here or os.environ.get("SSH_CONNECTION"):
        return None
    fd, name = tempfile.mkstemp(prefix="launch-board-", suffix=".html")  # 0600
    with os.fdopen(fd, "w") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}"><title>launch board</title>')
    quiet = subprocess.DEVNULL
    subprocess.Popen([opener, name], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    return Path(name)


def _delete_page(page: Path | None) -> None:
    """Delete the file `page`, a page opened in the browser that only redirects to the board's address; do nothing for
    None.
    """
    if page is not None:
        page.unlink(missing_ok=True)


def _port(text: str) -> int:
    """Return the port, 0 to 65535, in an option's text; raise ArgumentTypeError for any other text. 0 stands for any
    free port.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= _MOST_PORT):
        raise argparse.ArgumentTypeError(f"expected a port, 0 to {_MOST_PORT}, got {text!r}")
    return int(text)
