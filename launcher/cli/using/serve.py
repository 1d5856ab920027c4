"""`launch serve`: answer requests over HTTP with the model of a run."""

import argparse
import json
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import api
from launcher.cli.arguments import Arguments, tls_of
from launcher.cli.terminal import tell
from launcher.errors import BadInput, Exit
from launcher.run import registry
from launcher.spec.kinds.leaf import Unfit
from launcher.spec.kinds.numbers import Size
from launcher.spec.kinds.times import Duration
from launcher.spec.tree import FROM_COMMAND_LINE, Scalar

if TYPE_CHECKING:
    from launcher.apps.serving.engine import Engine

EXAMPLES = """
  launch serve last                                 the newest checkpoint, at http://127.0.0.1:8000
  launch serve resnet --best --watch                the best one, and each better one as it comes
  launch serve resnet --workers 4 --batch 64 --wait 10ms
  launch serve resnet --on hpc                      as a job; `launch status` shows its address
  launch serve resnet --on pool --tunnel            as a job, with a port of this machine forwarded to it by SSH
  launch serve mine --app serving.py                a model of your own: load(checkpoint), predict(model, inputs)

What it prints ends with a line to paste that asks it: requests need the token, which that line takes from a file. Other
users of a machine cannot read it; --public does without. /predict takes one input, /batch-predict a list; /docs shows
what an input is, /health, which needs no token, and /metrics are for machines.
Inputs of all clients are computed in batches. Equal ones are computed once, and their answers kept. Where too many
wait, the answer is 429 with Retry-After. It needs FastAPI and uvicorn, which the extra `serve` brings (`launch help
install`); torch is needed in the run's own Python alone.
"""
_MOST_PORT = 65535
_PORT = 8000
_HERE = "127.0.0.1"
_NAME = "serve"  # of the file with the token, in the folder of a run
_TIMES = ("wait", "timeout", "cache_for")


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch serve`."""
    arguments.takes_run()
    which = arguments.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the best checkpoint")
    which.add_argument(
        "--checkpoint", metavar="FOLDER", type=Path, help="this checkpoint (default: the run's newest complete one)"
    )
    arguments.add_argument(
        "--app", metavar="MODULE[:NAME]",
        help="the service: a file on this machine, or a module of the run's code (default: the run's module)",
    )  # fmt: skip
    arguments.add_argument(
        "--workers", metavar="N", type=_count, default=2, help="number of worker processes (default: 2)"
    )
    arguments.add_argument("--batch", metavar="N", type=_count, default=32, help="most inputs in a batch (default: 32)")
    arguments.add_argument(
        "--wait", metavar="TIME", type=_seconds, default=0.005,
        help="how long an input waits for others of its batch, while a worker is free (default: 5ms)",
    )  # fmt: skip
    arguments.add_argument(
        "--cache", metavar="N", type=_whole, default=10_000, help="number of cached answers; 0: none (default: 10000)"
    )
    arguments.add_argument(
        "--cache-for", metavar="TIME", type=_seconds, default=3600.0, help="how long answers are cached (default: 1h)"
    )
    arguments.add_argument(
        "--queue", metavar="N", type=_count, default=1024, help="most inputs that may wait (default: 1024)"
    )
    arguments.add_argument(
        "--timeout", metavar="TIME", type=_seconds, default=30.0,
        help="time limit of a request, and of a batch, whose worker is then ended (default: 30s)",
    )  # fmt: skip
    arguments.add_argument(
        "--max-body", metavar="SIZE", type=_size, default=16 << 20, help="largest body of a request (default: 16MiB)"
    )
    arguments.add_argument("--watch", action="store_true", help="load each newer checkpoint")
    arguments.add_argument(
        "--port", metavar="N", type=_port, help="the port; 0: any free one (default: 8000, with --on 0)"
    )
    arguments.add_argument(
        "--host", metavar="ADDR",
        help="the address to listen on (default: 127.0.0.1; in a job that of its node)",
    )  # fmt: skip
    arguments.takes_tls()
    token = arguments.add_mutually_exclusive_group()
    token.add_argument(
        "--token-file", metavar="FILE", type=Path,
        help="a file whose first line is the token (default: a new token, which is shown)",
    )  # fmt: skip
    token.add_argument(
        "--public", action="store_true",
        help="answer all clients without a token, at least all users of this machine",
    )  # fmt: skip
    arguments.add_argument(
        "--tunnel", action="store_true",
        help="with --on POOL: the job listens only on its host, and a port of this machine is forwarded to it; without "
        "--on, RUN is such a job",
    )  # fmt: skip
    arguments.takes_place(default=None, shown="this process serves, here")
    arguments.add_argument(
        "--in-job", metavar="ARGS",
        help="of a run that --on has started: its own checkpoint, of a training with these arguments, a list as JSON",
    )  # fmt: skip
    arguments.add_argument(
        "--watched", metavar="FOLDER", type=Path, help="of such a run: where --watch looks for newer checkpoints"
    )


def run(options: argparse.Namespace) -> int:
    """Run `launch serve` and return its exit code."""
    if options.on is not None:
        return _as_job(options)
    if options.overrides:
        raise BadInput("--set: expected with --on, which starts a run, got it without")
    if options.tunnel:
        return _tunnel(api.run(options.run), options)
    try:
        from launcher.apps.serving import server  # late: optional packages, and slow to import
    except ImportError as error:
        from trainer.extras import install_hint  # late: after a failure alone

        raise BadInput(f"serve needs packages: {error}", install_hint("serve")) from error
    from launcher.apps.serving import how_to_ask  # late: with it
    from launcher.apps.serving.engine import ServingOptions  # late: with it
    from launcher.apps.serving.what_is_served import served  # late: with it
    from launcher.apps.web.keys import Keys, origin, page_address  # late: with it
    from launcher.apps.web.listening import listen  # late: sockets, for this command alone

    host = options.host or _own_address()
    port = _PORT if options.port is None else options.port
    tls = tls_of(options)
    if options.in_job is not None:
        from launcher.apps.serving.as_job import served_in_job  # late: of such a job alone

        found = served_in_job(
            options.run, app=options.app, args=options.in_job, best=options.best, watched=options.watched
        )
    else:
        found = served(api.run(options.run), app=options.app, best=options.best, checkpoint=options.checkpoint)
    wanted = ServingOptions(
        options.workers, options.batch, options.wait, options.cache, options.cache_for, options.queue, options.timeout,
        options.watch,
    )  # fmt: skip
    with listen(host, port) as listening:
        port = listening.getsockname()[1]
        address = origin(host, port, tls=tls is not None)
        folder, name = _header_folder(), _NAME if _run_folder() is not None else str(port)
        token = found.token or _token(options, folder / f"{name}.header")
        header = None if token is None else how_to_ask.write_header(folder, name, token)

        def ready(engine: "Engine") -> None:
            """Print the address once the model is loaded, and how to call it."""
            step = "" if engine.step is None else f" of step {engine.step}"
            print(address, flush=True)
            _report(address)
            docs = address + "/docs" if token is None or _run_folder() else page_address(address, Keys(token), "/docs")
            print(f"{found.run}: {engine.ready} workers have the checkpoint{step}; {docs} shows how to ask; "
                  "Ctrl-C ends it", file=sys.stderr)  # fmt: skip
            _say_risks(host, public=token is None, tls=tls is not None)
            print(
                how_to_ask.curl_line(address, header, engine.loaded.example, folder, options.tls_cert), file=sys.stderr
            )

        print(f"{found.run}: loading the model ...", file=sys.stderr, flush=True)
        try:
            with suppress(KeyboardInterrupt):
                server.run_server(
                    listening, found, wanted, token=token, most_bytes=options.max_body, ready=ready, say=tell, tls=tls
                )  # fmt: skip
        finally:
            if header is not None and _run_folder() is None:
                header.unlink(missing_ok=True)
    return Exit.OK


def _as_job(options: argparse.Namespace) -> int:
    """Start a run that serves the model on a cluster; print its id and how to reach it, and return the exit code."""
    from launcher.apps.serving import how_to_ask  # late: only for --on
    from launcher.apps.serving.as_job import open_server  # late: with it
    from launcher.apps.serving.what_is_served import served  # late: with it

    tls_of(options)
    one = api.run(options.run)
    found = served(one, app=options.app, best=options.best, checkpoint=options.checkpoint)
    token = _token(options, None)
    host = _HERE if options.tunnel else options.host
    words = [
        f"--workers={options.workers}", f"--batch={options.batch}", f"--cache={options.cache}",
        f"--queue={options.queue}", f"--max-body={Size().show(options.max_body)}",
        *(f"--{name.replace('_', '-')}={round(getattr(options, name) * 1000)}ms" for name in _TIMES),
        f"--port={0 if options.tunnel else options.port or 0}",
        *([f"--host={host}"] if host else []),
        *(["--best"] if options.best else []),
        *(["--public"] if options.public else []),
    ]  # fmt: skip
    files = () if options.tls_cert is None else (options.tls_cert.absolute(), options.tls_key.absolute())
    job = open_server(
        one, found, words, token, on=options.on, overrides=options.overrides, watch=options.watch, tls=files,
        tunnel=options.tunnel,
    )  # fmt: skip
    print(job.id, flush=True)
    print(f"its address, as soon as it has one: launch status {job.id}", file=sys.stderr)
    if token is not None:
        header = how_to_ask.write_header(job.path, _NAME, token)
        print(f"requests need the header Authorization: Bearer {token}", file=sys.stderr)
        print(f"which curl reads by -H @{header}", file=sys.stderr)
    if options.tunnel:
        return _tunnel(job, options)
    if not files:
        _say_risks(options.host or "", public=token is None, tls=False)
    return Exit.OK


def _tunnel(job: api.Run, options: argparse.Namespace) -> int:
    """Forward requests from a local address to the run `job`, which serves a model, until Ctrl-C; return the exit code.

    Wait first until the run serves. The run continues after Ctrl-C; only the forwarding ends.
    """
    from launcher.apps.serving.as_job import WayToJob  # late: with it
    from launcher.apps.web.keys import origin  # late: with it
    from launcher.apps.web.listening import listen  # late: with it
    from launcher.remote.tunnel import Tunnel  # late: for --tunnel alone

    way, host = WayToJob(job), options.host or _HERE
    while way.port() is None:
        time.sleep(api.WATCH_S)
    with suppress(KeyboardInterrupt), listen(host, _PORT if options.port is None else options.port) as listening:
        print(origin(host, listening.getsockname()[1]), flush=True)
        print(f"leads to {job.id}; Ctrl-C ends that, and the job goes on; later: launch serve {job.id} --tunnel",
              file=sys.stderr)  # fmt: skip
        Tunnel(listening, way.channel).run()
    return Exit.OK


def _say_risks(host: str, *, public: bool, tls: bool) -> None:
    """Print a warning if anyone may call the model (`public`), or else if the token crosses the network unencrypted:
    `host` can be reached from other machines, and HTTPS (`tls`) is not used.
    """
    from launcher.apps.web.listening import is_loopback  # late: sockets, for this command alone

    if public:
        who = "every user of this machine" if is_loopback(host) else "whoever gets to that address"
        print(f"note: --public: {who} may ask", file=sys.stderr)
    elif not tls and not is_loopback(host):
        print("note: the token crosses the network as it is: --tls-cert and --tls-key encrypt it, and with --on a pool "
              "--tunnel does", file=sys.stderr)  # fmt: skip


def _run_folder() -> Path | None:
    """Return the folder of the run of which this process is a rank, or None if it is not a rank."""
    named = os.environ.get("LAUNCH_RUN_DIR")
    return Path(named) if named and "LAUNCH_PROGRESS" in os.environ else None


def _header_folder() -> Path:
    """Return the folder for the header file, from which clients of the model read the token to send, and which other
    users cannot read: the run's folder, or one of the user's state if this process is not a rank. It need not exist.
    """
    return _run_folder() or registry.state_folder() / "serving"


def _own_address() -> str:
    """Return the address at which callers reach this process: that of its node if it is a rank of a run, else
    127.0.0.1.
    """
    if _run_folder() is None:
        return _HERE
    first = os.environ.get("LAUNCH_NODE") == "0"
    return os.environ["MASTER_ADDR"] if first and "MASTER_ADDR" in os.environ else socket.gethostname()


def _report(address: str) -> None:
    """Report the address to this rank's agent, so that `launch status` shows it; do nothing if this process is not a
    rank.
    """
    wire = os.environ.get("LAUNCH_PROGRESS")
    if wire is not None:
        with open(wire, "w") as file:  # one write: lines of several writers do not mix
            file.write(json.dumps({"address": address}) + "\n")


def _token(options: argparse.Namespace, kept: Path | None) -> str | None:
    """Return the token that callers need, or None if anyone may call (--public). It is read from the file of
    --token-file, else, in a rank, from the file `kept`, which exists if an earlier start of the rank wrote a token
    there (None: none writes one). Otherwise it is a new random token.
    """
    from launcher.apps.serving.how_to_ask import read_token  # late: for this command alone

    if options.public:
        return None
    if options.token_file is not None:
        return read_token(options.token_file)
    if kept is not None and _run_folder() is not None and kept.is_file():
        return read_token(kept)
    return secrets.token_urlsafe(32)


def _whole(text: str) -> int:
    """Return the whole number in a text; raise ArgumentTypeError for any other text."""
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")


def _count(text: str) -> int:
    """Return the number in a text; raise ArgumentTypeError if it is not a whole number of at least 1."""
    if (number := _whole(text)) < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return number


def _port(text: str) -> int:
    """Return the port in a text; raise ArgumentTypeError for any other text."""
    if (number := _whole(text)) > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to {_MOST_PORT}, got {text!r}")
    return number


def _seconds(text: str) -> float:
    """Return the seconds that a duration such as `5ms`, `30s` or `1h` stands for; raise ArgumentTypeError for any other
    text.
    """
    number = text.removesuffix("ms")
    if number != text and number.isascii() and number.isdigit() and len(number) <= 9:
        return int(number) / 1000
    return _as_in_a_spec(Duration(), text)


def _size(text: str) -> int:
    """Return the bytes that a size such as `1MB` stands for; raise ArgumentTypeError for any other text."""
    return int(_as_in_a_spec(Size(), text))


def _as_in_a_spec(kind: Duration | Size, text: str) -> float:
    """Return the seconds of a Duration or the bytes of a Size, from a text as in a spec; raise ArgumentTypeError if the
    text is not of this kind.
    """
    try:
        return kind.convert(Scalar(text, plain=True, mark=FROM_COMMAND_LINE))
    except Unfit as error:
        raise argparse.ArgumentTypeError(f"expected {kind.WORDS}, got {text!r}") from error
