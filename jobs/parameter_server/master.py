"""A parameter server: workers push gradients to it, each at its own pace, and pull newer weights.

    launch submit jobs/parameter_server.yaml --follow

No worker waits for another, so a gradient may be of weights that have changed since: `staleness` is by how many
updates. Which gradient comes first is chance, so no two runs are the same, and a restart resumes from the newest
checkpoint.
"""

import argparse
import contextlib
import http.server
import io
import json
import os
import queue
import sys
import threading
import time
from typing import Any

import torch
from torch import Tensor, nn

import launcher
from jobs.parameter_server.mlp import accuracy, line, new_mlp
from trainer import EXIT_RESUME_ME, Checkpointer

_LINES = 20


def main() -> int:
    """Serve weights and apply gradients until the last step; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="updates: one for each gradient")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    net = new_mlp(args.seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    checkpoints = Checkpointer(model=net, optimizer=optimizer, total_steps=args.steps)
    step = checkpoints.load()
    print(f"parameter server, step {step} of {args.steps}", flush=True)
    report = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)  # what `launch metrics` shows
    pushed = serve(launcher.peers("master")[0])
    every = max(1, args.steps // _LINES)
    seen, stale, since = 0, 0, time.monotonic()
    while step < args.steps:
        push, answer = pushed.get()
        if push is not None:
            update(net, optimizer, push["gradient"])
            seen, stale = seen + push["samples"], stale + step - push["step"]
            step += 1
            if step % every == 0:
                rate, behind = seen / (time.monotonic() - since), stale / every
                print(f"{line(step, args.steps, push['loss'], args.lr, rate)}  staleness {behind:.2f}", flush=True)
                metrics = {"step": step, "loss": push["loss"], "samples_per_s": rate, "staleness": behind}
                report.write(json.dumps(metrics) + "\n")
                seen, stale, since = 0, 0, time.monotonic()
        answer.put({"step": step, "weights": nn.utils.parameters_to_vector(net.parameters()).detach()})
        if push is not None and checkpoints.after_step(step):
            return EXIT_RESUME_ME  # somebody asked this run to stop; all is saved, and launch starts it again
    fingerprint = checkpoints.finish(step)
    print(f"accuracy {accuracy(net, args.seed):.3f}  fingerprint sha256={fingerprint}", flush=True)
    return 0


def update(net: nn.Module, optimizer: torch.optim.Optimizer, gradient: Tensor) -> None:
    """Do one optimizer step with `gradient`, a flat tensor of the gradients of all parameters, one after the other as
    `net.parameters()` yields them.
    """
    place = 0
    for parameter in net.parameters():
        part = gradient[place : place + parameter.numel()]
        parameter.grad = part.view_as(parameter)
        place += parameter.numel()
    optimizer.step()


def serve(address: str) -> "queue.SimpleQueue[tuple[Any, queue.SimpleQueue[Any]]]":
    """Start a server for workers at `address`, written HOST:PORT, and return the queue of its requests.

    Each is a pair: a worker's message, a dict with `gradient` and its `samples`, `loss` and `step`, or None from a new
    worker; and a queue, into which the caller puts the dict that the worker waits for.
    """
    pushed: queue.SimpleQueue[tuple[Any, queue.SimpleQueue[Any]]] = queue.SimpleQueue()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # one connection for each worker
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
            pushed.put((unpack(body) if body else None, answer))
            said = pack(answer.get())
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the worker has gone: that is no news
                super().handle()

        def log_message(self, *_: object) -> None:
            """Log nothing about requests."""

    host, _, port = address.rpartition(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return pushed


def pack(message: dict[str, Any]) -> bytes:
    """Return a message of numbers and tensors as bytes."""
    file = io.BytesIO()
    torch.save(message, file)
    return file.getvalue()


def unpack(data: bytes) -> Any:
    """Return the message that `pack` packed, a dict of numbers and tensors."""
    return torch.load(io.BytesIO(data), weights_only=True)  # tensors and numbers: nothing in it is executed


if __name__ == "__main__":
    sys.exit(main())
