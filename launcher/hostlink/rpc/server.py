"""The far side: answers requests on stdin, one after the other, until nobody asks any more."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from launcher.errors import Exit, LaunchError
from launcher.hostlink.rpc.wire import Garbled, Have, Incoming, Reply, Tree, decoded, encoded, greeting, reading
from launcher.hostlink.shipping import kept_trees
from launcher.rundir.durable import write_all

R = TypeVar("R")


def serve(requests: Any, answer: Callable[[Any], Any]) -> int:
    """Until the other side hangs up; gives the exit code. `requests`: the union of what `answer` can answer.

    A request is carried out once it has come whole, whatever becomes of the connection. Trees of code are kept too.
    """
    incoming, out = _take_stdio()
    decoder = msgspec.json.Decoder(requests | Have | Tree)
    try:
        write_all(out, greeting())
        while True:
            request = decoded(incoming.line(), decoder)
            reply = _answered(request, answer, incoming)
            write_all(out, encoded(reply))
            if reply.error and isinstance(request, Tree):
                return Exit.OK  # what comes next is not a request but the rest of the contents
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return Exit.OK  # nobody is there any more
    except Garbled as error:
        write_all(out, encoded(Reply(error=error.lines, exit_code=error.exit_code)))
        return Exit.INTERNAL


def folder_of(named: str) -> Path:
    """From the home folder, where it is not absolute."""
    return Path.home() / os.path.expanduser(named)


def projects_in(folder: str) -> Path:
    """Where trees of code are kept."""
    return folder_of(folder) / "projects"


def _take_stdio() -> tuple[Incoming, int]:
    """The connection for us alone: nothing that is started or printed here can get between."""
    asked, told = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return Incoming(reading(asked)), told


def _answered(request: Any, answer: Callable[[Any], Any], incoming: Incoming) -> Reply:
    try:
        value = _about_trees(request, incoming) if isinstance(request, Have | Tree) else answer(request)
        return Reply(msgspec.Raw(msgspec.json.encode(value)))
    except LaunchError as error:
        return Reply(error=error.lines, exit_code=error.exit_code)
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: one line for people, who are on another machine
        first = (str(error) or "no text").splitlines()[0]
        return Reply(error=(f"on the login node: {type(error).__name__}: {first}",), exit_code=Exit.INTERNAL)


def _about_trees(request: Have | Tree, incoming: Incoming) -> bool:
    projects = projects_in(request.folder)
    if isinstance(request, Have):
        return kept_trees.have(projects, request.digest)
    kept_trees.keep(projects, request.digest, request.files, incoming.some)
    kept_trees.tidy(projects, time.time())
    return True
