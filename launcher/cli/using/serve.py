"""`launch serve`: the model of a run answers requests over HTTP."""

import argparse
import ipaddress
import json
import os
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import safe, tell
from launcher.errors import BadInput, Exit
from launcher.spec.kinds.leaf import Unfit
from launcher.spec.kinds.numbers import Size
from launcher.spec.kinds.times import Duration
from launcher.spec.tree import FROM_COMMAND_LINE, Scalar

if TYPE_CHECKING:
    from launcher.serving.engine import Engine

EXAMPLES = """
  launch serve last                                 the newest checkpoint, at http://127.0.0.1:8000
  launch serve resnet --best --watch                the best one, and each better one as it comes
  launch serve resnet --workers 4 --batch 64 --wait 10ms
  launch serve resnet --on hpc                      as a job, which has its address in `launch status`
  launch serve mine --app serving.py                a model of your own: load(checkpoint), predict(model, inputs)
  curl http://127.0.0.1:8000/predict -H 'Content-Type: application/json' -d '{"text": "def main("}'

/predict takes one input, /batch-predict a list; /docs shows what an input is, /health and /metrics are for machines.
Inputs of all clients are computed in batches. Equal ones are computed once, and their answers kept. Where too many
wait, the answer is 429 with Retry-After. It needs FastAPI and uvicorn, which the extra `serve` brings (`launch help
install`); torch is needed in the run's own Python alone.
"""
_MOST_PORT = 65535
_SHORTEST_TOKEN = 16
_PORT = 8000
_EVERYWHERE = str(ipaddress.IPv4Address(0))  # where a job is, others are to reach it, by a token
_TIMES = ("wait", "timeout", "cache_for")


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    which = arguments.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the checkpoint that was kept apart for its value")
    which.add_argument(
        "--checkpoint", metavar="FOLDER", type=Path, help="this one (default: the newest whole one of the run)"
    )
    arguments.add_argument(
        "--app", metavar="MODULE[:NAME]",
        help="how the model is loaded and asked: a file of here, or a module of the run's code (default: its module)",
    )  # fmt: skip
    arguments.add_argument("--workers", metavar="N", type=_count, default=2, help="processes that compute (default: 2)")
    arguments.add_argument(
        "--batch", metavar="N", type=_count, default=32, help="most inputs that are computed at once (default: 32)"
    )
    arguments.add_argument(
        "--wait", metavar="TIME", type=_seconds, default=0.005,
        help="how long an input waits for others at most, while a worker is free (default: 5ms)",
    )  # fmt: skip
    arguments.add_argument(
        "--cache", metavar="N", type=_whole, default=10_000, help="answers that are kept; 0: none (default: 10000)"
    )
    arguments.add_argument(
        "--cache-for", metavar="TIME", type=_seconds, default=3600.0, help="how long they are kept (default: 1h)"
    )
    arguments.add_argument(
        "--queue", metavar="N", type=_count, default=1024, help="most inputs that may wait (default: 1024)"
    )
    arguments.add_argument(
        "--timeout", metavar="TIME", type=_seconds, default=30.0,
        help="longest time of a request, and of a batch, whose worker is ended then (default: 30s)",
    )  # fmt: skip
    arguments.add_argument(
        "--max-body", metavar="SIZE", type=_size, default=16 << 20, help="largest body of a request (default: 16MiB)"
    )
    arguments.add_argument("--watch", action="store_true", help="take a newer checkpoint over as soon as there is one")
    arguments.add_argument("--port", metavar="N", type=_port, help="0: one that is free (default: 8000, with --on 0)")
    arguments.add_argument(
        "--host", metavar="ADDR",
        help="the address to listen on; with another than this machine's own, requests need a token "
        "(default: 127.0.0.1, with --on 0.0.0.0)",
    )  # fmt: skip
    arguments.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="its first line is the token (default: a new one, which is shown)",
    )
    arguments.takes_place(default=None, shown="this process serves, here")
    arguments.add_argument(
        "--in-job", metavar="ARGS",
        help="of a run that --on has started: its own checkpoint, of a training with these arguments, a list as JSON",
    )  # fmt: skip
    arguments.add_argument(
        "--watched", metavar="FOLDER", type=Path, help="of such a run: where --watch looks for newer checkpoints"
    )


def run(options: argparse.Namespace) -> int:
    if options.on is not None:
        return _as_job(options)
    if options.overrides:
        raise BadInput("--set: expected with --on, which starts a run, got it without")
    try:
        from launcher.serving import server  # late: optional packages, and slow to import
    except ImportError as error:
        from trainer.extras import install_hint  # late: after a failure alone

        raise BadInput(f"serve needs packages: {error}", install_hint("serve")) from error
    from launcher.listening import in_address, listen  # late: sockets, for this command alone
    from launcher.serving.engine import ServingOptions  # late: with it
    from launcher.serving.what_is_served import served  # late: with it

    options.host = "127.0.0.1" if options.host is None else options.host
    options.port = _PORT if options.port is None else options.port
    if options.in_job is not None:
        from launcher.serving.as_job import served_in_job  # late: of such a job alone

        found = served_in_job(
            options.run, app=options.app, args=options.in_job, best=options.best, watched=options.watched
        )
    else:
        found = served(api.run(options.run), app=options.app, best=options.best, checkpoint=options.checkpoint)
    wanted = ServingOptions(
        options.workers, options.batch, options.wait, options.cache, options.cache_for, options.queue, options.timeout,
        options.watch,
    )  # fmt: skip
    token = found.token or _token(options, loopback=server.is_loopback(options.host))
    with listen(options.host, options.port, waiting=1024) as listening:
        address = f"http://{in_address(options.host)}:{listening.getsockname()[1]}"

        def ready(engine: "Engine") -> None:
            step = "" if engine.step is None else f" of step {engine.step}"
            print(address, flush=True)
            _report(options.host, listening.getsockname()[1])
            print(f"{found.run}: {engine.ready} workers have the checkpoint{step}; {address}/docs shows how to ask; "
                  "Ctrl-C ends it", file=sys.stderr)  # fmt: skip
            if options.in_job is None:
                _say_token(options, token)

        print(f"{found.run}: loading the model ...", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            server.run_server(
                listening, found, wanted, token=token, most_bytes=options.max_body, ready=ready, say=tell
            )  # fmt: skip
    return Exit.OK


def _as_job(options: argparse.Namespace) -> int:
    """Start a run that serves it, and say where its address will be."""
    from launcher.serving.as_job import open_server  # late: only for --on
    from launcher.serving.what_is_served import served  # late: with it

    one = api.run(options.run)
    found = served(one, app=options.app, best=options.best, checkpoint=options.checkpoint)
    token = _token(options, loopback=False) or ""
    words = [
        f"--workers={options.workers}", f"--batch={options.batch}", f"--cache={options.cache}",
        f"--queue={options.queue}", f"--max-body={Size().show(options.max_body)}",
        *(f"--{name.replace('_', '-')}={round(getattr(options, name) * 1000)}ms" for name in _TIMES),
        f"--host={options.host or _EVERYWHERE}", f"--port={options.port or 0}",
        *(["--best"] if options.best else []),
    ]  # fmt: skip
    job = open_server(one, found, words, token, on=options.on, overrides=options.overrides, watch=options.watch)
    print(job.id, flush=True)
    print(f"its address, as soon as it has one: launch status {job.id}", file=sys.stderr)
    _say_token(options, token)
    return Exit.OK


def _say_token(options: argparse.Namespace, token: str | None) -> None:
    """Unless whoever asks has it in a file."""
    if token is not None and options.token_file is None:
        print(f"requests need the header Authorization: Bearer {token}", file=sys.stderr)


def _report(host: str, port: int) -> None:
    """As a rank of a job: the agent is told where others reach it, and `launch status` shows it."""
    wire = os.environ.get("LAUNCH_PROGRESS")
    if wire is None:
        return
    from launcher.listening import in_address  # late: sockets, for this command alone

    everywhere = False
    with suppress(ValueError):  # a name
        everywhere = ipaddress.ip_address(host).is_unspecified
    if everywhere:
        first = os.environ.get("LAUNCH_NODE") == "0"
        host = os.environ["MASTER_ADDR"] if first and "MASTER_ADDR" in os.environ else socket.gethostname()
    line = json.dumps({"address": f"http://{in_address(host)}:{port}"})
    with open(wire, "w") as file:  # one write: lines of several writers do not mix
        file.write(line + "\n")


def _token(options: argparse.Namespace, *, loopback: bool) -> str | None:
    if options.token_file is None:
        return None if loopback else secrets.token_urlsafe(32)
    try:
        token: str = options.token_file.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--token-file: {safe(str(error))}") from error
    if len(token) < _SHORTEST_TOKEN:
        raise BadInput(f"--token-file: expected at least {_SHORTEST_TOKEN} characters in its first line")
    return token


def _whole(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")


def _count(text: str) -> int:
    if (number := _whole(text)) < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return number


def _port(text: str) -> int:
    if (number := _whole(text)) > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to {_MOST_PORT}, got {text!r}")
    return number


def _seconds(text: str) -> float:
    """`5ms`, or as in a spec: `30s`, `1h`."""
    number = text.removesuffix("ms")
    if number != text and number.isascii() and number.isdigit() and len(number) <= 9:
        return int(number) / 1000
    return _as_in_a_spec(Duration(), text)


def _size(text: str) -> int:
    return int(_as_in_a_spec(Size(), text))


def _as_in_a_spec(kind: Duration | Size, text: str) -> float:
    try:
        return kind.convert(Scalar(text, plain=True, mark=FROM_COMMAND_LINE))
    except Unfit as error:
        raise argparse.ArgumentTypeError(f"expected {kind.WORDS}, got {text!r}") from error
