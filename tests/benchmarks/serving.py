"""Measure requests a second and response times of `launch serve`, a plain FastAPI handler, BentoML and LitServe.

uv run python tests/benchmarks/serving.py [--peers plain BentoML LitServe] [--write]

All have the model of one checkpoint and get the same inputs over loopback, taking turns. `plain` is what courses
show: an `async def` that checks the body by a pydantic model, asks torch for this one input, and gives the answer.
Torch has one thread for it, or as many as there are cores: the better one counts. BentoML batches as many inputs as
`launch serve` does, and has one worker or two: the better one counts too. So does LitServe, with the same wait for a
batch. Both are installed into folders of their own.
"""

import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from results import benchmark_parser, publish

WAIT_S = 0.005
PEERS = {
    "plain": ("a plain FastAPI handler", ">= 3"),
    "BentoML": ("BentoML", ">= 1"),
    "LitServe": ("LitServe", ">= 1"),
}  # and what is asked of launch
BODIES_EACH = 4
STARTS_S = 300.0
HEAD = "POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
PLAIN = """
import sys, torch, uvicorn
from fastapi import FastAPI
from pathlib import Path
from pydantic import BaseModel
from trainer.tasks import resnet

torch.set_num_threads(int(sys.argv[3]))
service = resnet.service(sys.argv[4:])
model = service.load(Path(sys.argv[2]))
app = FastAPI()


class Asked(BaseModel):
    pixels: list[list[list[float]]]


@app.get("/health")
async def health():
    return {}


@app.post("/predict")
async def predict(asked: Asked):
    with torch.inference_mode():
        return service.predict(model, [{"pixels": asked.pixels}])[0]


uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, timeout_keep_alive=75)
"""
OURS = """
import os, sys
from pathlib import Path
from launcher.apps.serving.engine import ServingOptions
from launcher.apps.web.listening import listen
from launcher.apps.serving.server import run_server
from launcher.apps.serving.what_is_served import Served

port, checkpoint, cache, *args = sys.argv[1:]
app, python, folder = "trainer.tasks.resnet", sys.executable, Path(checkpoint)
served = Served("bench", app, tuple(args), python, os.getcwd(), os.environ, folder, False)
options = ServingOptions(cache=int(cache))
with listen("127.0.0.1", int(port), waiting=1024) as listening:
    run_server(listening, served, options, token=None, most_bytes=1 << 24, ready=lambda engine: None, say=print)
"""

BENTOML = """
import os
from pathlib import Path

import bentoml, numpy, torch
from trainer.tasks import resnet


@bentoml.service(workers=int(os.environ["BENCH_WORKERS"]), traffic={"timeout": 300, "max_concurrency": 4096})
class Served:
    def __init__(self):
        self.service = resnet.service(os.environ["BENCH_ARGS"].split())
        self.model = self.service.load(Path(os.environ["BENCH_CHECKPOINT"]))

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000)
    def predict(self, pixels: numpy.ndarray) -> list:
        with torch.inference_mode():
            return self.service.predict(self.model, [{"pixels": one} for one in pixels.tolist()])
"""


LITSERVE = """
import os, sys
from pathlib import Path

import litserve, torch
from trainer.tasks import resnet


class Served(litserve.LitAPI):
    def setup(self, device):
        self.service = resnet.service(os.environ["BENCH_ARGS"].split())
        self.model = self.service.load(Path(os.environ["BENCH_CHECKPOINT"]))

    def decode_request(self, request):
        return request

    def batch(self, inputs):
        return inputs

    def predict(self, inputs):
        with torch.inference_mode():
            return self.service.predict(self.model, inputs)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    api = Served(max_batch_size=32, batch_timeout=WAIT_S)
    workers = int(os.environ["BENCH_WORKERS"])
    served = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers, timeout=300)
    how = {"generate_client_file": False, "log_level": "warning", "timeout_keep_alive": 75}
    served.run(host="127.0.0.1", port=int(sys.argv[1]), **how)
""".replace("WAIT_S", str(WAIT_S))


def trained(folder, args):
    """A checkpoint of two steps: how fast it is does not depend on what it has learned."""
    words = ["--max-steps", "2", "--batch-size", "4", "--train-images", "16", "--validation-images", "4"]
    where = ["--strategy", "none", "--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder / "metrics")]
    subprocess.run([sys.executable, "-m", "trainer.tasks.resnet", *args, *words, *where], check=True, cwd=folder)
    return folder / "checkpoints"


def installed(folder, package):
    """The folder of programs of an environment that has a package beside this project's trainer."""
    made, root = folder / f"with-{package}", Path(__file__).parents[2]
    uv = ["uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, str(made)], check=True)
    python = str(made / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "--python", python, package, f"{root}[train]"], check=True)
    return made / "bin"


def with_bentoml(folder):
    """Return BentoML's command, installed beside this project's trainer."""
    (folder / "by_bentoml.py").write_text(BENTOML)
    return [
        str(installed(folder, "bentoml") / "bentoml"),
        "serve",
        "by_bentoml:Served",
        "--host",
        "127.0.0.1",
        "--port",
    ]


def with_litserve(folder):
    """Its command."""
    (folder / "by_litserve.py").write_text(LITSERVE)
    return [str(installed(folder, "litserve") / "python"), "by_litserve.py"]


@contextmanager
def server(command, *words, health="/health", **how):
    """Yield a server's port once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, str(port), *words], start_new_session=True, **how)
    try:
        bound = time.monotonic() + STARTS_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=10):
                    break
            except OSError:
                assert process.poll() is None, "the server has ended"
                assert time.monotonic() < bound, "the server does not answer"
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # LitServe's own processes outlive it


class Client:
    """A connection that stays, and bodies of its own."""

    def __init__(self, port, bodies):
        self.port, self.bodies = port, [HEAD.format(len(body)).encode() + body for body in bodies]
        self.taken = []

    async def connect(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, number, since=None):
        since = time.perf_counter() if since is None else since
        self.writer.write(self.bodies[number % len(self.bodies)])
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await self.reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        self.taken.append(time.perf_counter() - since)

    async def closed_loop(self, until):
        number = 0
        while time.perf_counter() < until:
            await self.ask(number)
            number += 1


async def full_load(clients, seconds):
    """Requests a second of clients that ask again as soon as they have their answer."""
    await asyncio.gather(*(client.connect() for client in clients))
    await asyncio.gather(*(client.ask(0) for client in clients))
    for client in clients:
        client.taken.clear()
    began = time.perf_counter()
    await asyncio.gather(*(client.closed_loop(began + seconds) for client in clients))
    count, took = sum(len(client.taken) for client in clients), time.perf_counter() - began
    for client in clients:
        client.writer.close()
    return count / took


async def open_load(clients, rate, seconds, chance):
    """The times of requests that come by chance at this rate, whoever is free asking; waiting for one counts."""
    await asyncio.gather(*(client.connect() for client in clients))
    free = asyncio.Queue()
    for client in clients:
        client.taken.clear()
        free.put_nowait(client)

    async def one(since, number):
        client = await free.get()
        await client.ask(number, since)
        free.put_nowait(client)

    tasks, due, end, number = [], time.perf_counter(), time.perf_counter() + seconds, 0
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due, number)))
        due, number = due + chance.expovariate(rate), number + 1
    await asyncio.gather(*tasks)
    for client in clients:
        client.writer.close()
    return sorted(seconds for client in clients for seconds in client.taken)


def batch_s(port):
    """The mean time of a batch, by the server's own figures."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    total, count = (float(re.search(rf"launch_serve_batch_seconds_{what} (\S+)", text)[1]) for what in ("sum", "count"))
    return total / count


def images(count, pixels, chance):
    def image():
        return [[[round(chance.gauss(0, 1), 4) for _ in range(pixels)] for _ in range(pixels)] for _ in range(3)]

    return [image() for _ in range(count)]


def clients_of(port, asked, count):
    each = max(1, len(asked) // count)
    return [Client(port, asked[number * each : (number + 1) * each]) for number in range(count)]


NOTES = (
    "The first rows have the requests a second of each program at full load, and `throughput, of that of` "
    "another program the number of `launch serve` divided by that of the other, as a median over the pairs. "
    "The plain handler computes one request at a time. `launch serve` collects requests for up to 5 ms and "
    "computes them as one batch.\n\n"
    "The next rows have response times of `launch serve`. With `one client`, an answer is either computed, "
    "or kept, which means that it comes from the cache of earlier answers. `p99 at half of that load` is "
    "the 99th percentile of the response time with half as many requests a second as in the first row. It "
    "is compared with `5 ms and three batches`, which is 5 ms and three times the mean time of a batch: "
    "`p99, of that` is the ratio. `target` is the value that a row is to have."
)


def main():
    parser = benchmark_parser(__doc__, pairs=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[*PEERS])
    args = parser.parse_args()
    chance = random.Random(1)
    shown = images(args.clients * BODIES_EACH, args.pixels, chance)
    asked = [json.dumps({"pixels": image}).encode() for image in shown]
    batches = [json.dumps({"pixels": [image]}).encode() for image in shown]  # BentoML is asked for several
    model = ["--model", args.model, "--pixels", str(args.pixels)]
    rates = {"launch": [], **{peer: [] for peer in args.peers}}
    computed, kept, p99s, bounds = [], [], [], []
    python, cores = [sys.executable, "-c"], str(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        checkpoint = str(trained(folder, model))
        bentoml = with_bentoml(folder) if "BentoML" in args.peers else []
        litserve = with_litserve(folder) if "LitServe" in args.peers else []

        def full(port, bodies):
            return asyncio.run(full_load(clients_of(port, bodies, args.clients), args.seconds))

        def by_other(command, health, bodies, workers):
            told = {"BENCH_ARGS": " ".join(model), "BENCH_CHECKPOINT": checkpoint, "BENCH_WORKERS": workers}
            how = {"cwd": folder, "env": os.environ | told, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            with server(command, health=health, **how) as port:
                return full(port, bodies)

        def by_bentoml(workers):
            return by_other(bentoml, "/readyz", batches, workers)

        def by_litserve(workers):
            return by_other(litserve, "/health", asked, workers)

        def by_hand(threads):
            with server([*python, PLAIN], checkpoint, threads, *model) as port:
                return full(port, asked)

        def ours():
            with server([*python, OURS], checkpoint, "0", *model) as port:
                rate, each_s = full(port, asked), batch_s(port)
                times = asyncio.run(open_load(clients_of(port, asked, args.clients), rate / 2, args.seconds, chance))
                p99s.append(times[int(0.99 * (len(times) - 1))])
                bounds.append(WAIT_S + 3 * each_s)
                alone = clients_of(port, asked[:BODIES_EACH], 1)
                asyncio.run(full_load(alone, args.seconds / 2))
                computed.append(statistics.median(alone[0].taken))
            return rate

        sides = {
            "launch": ours,
            "plain": lambda: max(by_hand("1"), by_hand(cores)),
            "BentoML": lambda: max(by_bentoml("1"), by_bentoml("2")),
            "LitServe": lambda: max(by_litserve("1"), by_litserve("2")),
        }
        for pair in range(args.pairs):
            for side in reversed(rates) if pair % 2 else rates:
                rates[side].append(sides[side]())
            with server([*python, OURS], checkpoint, "10000", *model) as port:
                alone = clients_of(port, asked[:BODIES_EACH], 1)
                for _ in range(2):  # the first time they are computed
                    asyncio.run(full_load(alone, args.seconds / 4))
                kept.append(statistics.median(alone[0].taken))
    publish("serving", "\n".join(table(args, rates, computed, kept, p99s, bounds)), write=args.write)


def table(args, rates, computed, kept, p99s, bounds):
    def row(what, values, unit, digits=1):
        low, high = min(values), max(values)
        return f"| {what} | {statistics.median(values):.{digits}f} {unit} | {low:.{digits}f}-{high:.{digits}f} |  |"

    def ratio(what, over, under, asked):
        each = [one / other for one, other in zip(over, under, strict=True)]
        return f"| {what} | {statistics.median(each):.2f} | {min(each):.2f}-{max(each):.2f} | {asked} |"

    peers = {peer: values for peer, values in rates.items() if peer != "launch"}

    def ms(values):
        return [1000 * one for one in values]

    return [
        f"{args.clients} clients sent images of {args.pixels} x {args.pixels} pixels as JSON to {args.model}.",
        "",
        "| measured | median | range | target |",
        "|---|---|---|---|",
        row("`launch serve`, requests a second", rates["launch"], "/s"),
        *(row(PEERS[peer][0], values, "/s") for peer, values in peers.items()),
        *(
            ratio(f"throughput, of that of {PEERS[peer][0]}", rates["launch"], values, PEERS[peer][1])
            for peer, values in peers.items()
        ),
        row("one client, an answer that is computed", ms(computed), "ms", 2),
        row("one client, an answer that is kept", ms(kept), "ms", 2),
        ratio("time of a computed answer, of a kept one's", computed, kept, ">= 20"),
        row("p99 at half of that load", ms(p99s), "ms"),
        row("5 ms and three batches", ms(bounds), "ms"),
        ratio("p99, of that", p99s, bounds, "<= 1"),
        "",
        NOTES,
    ]


if __name__ == "__main__":
    main()
