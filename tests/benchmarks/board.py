"""Measure how soon `launch board` (the web page of runs) starts, shows a page and shows a change, and compare it with
TensorBoard.

uv run python tests/benchmarks/board.py [--write]
"""

import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.request import Request, urlopen

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "apps" / "board")]
from browser import browsing
from cli import LAUNCH, finished_runs
from race import free_port
from results import benchmark_parser, publish
from run_folder import RunFolder

from launcher.run import registry

BOUND_S = 60.0
BIN = Path(sys.executable).parent
LIVE, PAGES = 20, 5
CURVE_IS_THERE = "return Boolean(document.querySelector('.charts .plot canvas'))"
TENSORBOARD_CURVE_IS_THERE = """
const inside = (root) => [...root.querySelectorAll("line-chart canvas, line-chart svg path")].length > 0 ||
  [...root.querySelectorAll("*")].some((one) => one.shadowRoot && inside(one.shadowRoot));
return inside(document)
"""
# Milliseconds of each of so many frames, while something is moved a little before every one.
FRAMES = """
const [each, most] = [new Function("at", arguments[0]), arguments[1]];
window.framesTaken = null;
const taken = []; let last = null;
const frame = (now) => {
  if (last !== null) taken.push(now - last);
  last = now;
  if (taken.length === most) return void (window.framesTaken = taken);
  each(taken.length);
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
"""
SCROLL = "document.querySelector('.scroller').scrollTop += at % 2 ? 173 : 127"
PAN = """
for (const plot of document.querySelectorAll(".charts .plot"))
  plot.dispatchEvent(new KeyboardEvent("keydown", {key: at === 0 ? "+" : at % 8 < 4 ? "ArrowRight" : "ArrowLeft"}))
"""


@contextlib.contextmanager
def serving(command, env):
    """A program that serves a page, and when it was started."""
    began = time.monotonic()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process, began
        finally:
            process.terminate()


@contextlib.contextmanager
def board(env, *runs):
    with serving([LAUNCH, "board", "--no-open", "--port", "0", *runs], env) as (process, began):
        address = process.stdout.readline().strip()
        yield Served(process, address, began)


class Served:
    """A board that listens, and what it has printed."""

    def __init__(self, process, page, began):
        self.process, self.page, self.began = process, page, began
        self.address, _, words = page.partition("/?token=")
        self.token = words.partition("#")[0]

    def first_byte_s(self):
        with urlopen(self.page, timeout=BOUND_S) as answer:
            answer.read(1)
        return time.monotonic() - self.began

    def get(self, path):
        """Return a response's bytes as they are sent."""
        told = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "gzip"}
        return urlopen(Request(f"{self.address}{path}", headers=told), timeout=BOUND_S)


def until(window, script):
    """Evaluate the script again and again without a pause until it is true."""
    bound = time.monotonic() + BOUND_S
    while not window.run(script):
        if time.monotonic() > bound:
            raise SystemExit(f"never came: {script}\n{window.text()}")


def measure(path, run_id, names, points):
    """A run that has reported so many values of each of these."""
    folder = RunFolder(path / "runs" / run_id).succeeded(step=points)
    folder.run.metrics.mkdir()
    with folder.run.reported(1, 0).open("w") as file:
        file.write('{"generation":1,"at":1}\n')
        for step in range(1, points + 1):
            values = {name: 1 / step + number + step % 7 / 50 for number, name in enumerate(names)}
            file.write(json.dumps({"step": step, "at": 1000.0 + step, "rank": 0, "values": values}) + "\n")
    registry.register(run_id, folder.path, fsync=False)
    return folder


def live(path, number):
    folder = RunFolder(path / "runs" / f"live-{number:04x}").running()
    folder.run.metrics.mkdir()
    folder.run.reported(1, 0).write_text('{"generation":1,"at":1}\n')
    registry.register(folder.path.name, folder.path, fsync=False)
    return folder


def go_on(folders, step):
    for folder in folders:
        with folder.run.reported(1, 0).open("a") as file:
            row = {"step": step, "at": time.time(), "rank": 0, "values": {"loss": 1 / step}}
            file.write(json.dumps(row) + "\n")
        folder.running(step=step, total_steps=10**6)


# -- what is measured


def with_many_runs(window, path, count, seconds):
    """Start, first paint, first table, its bytes; the memory and the load of the server; a frame of scrolling."""
    env = finished_runs(path, count)
    folders = [live(path, number) for number in range(min(LIVE, count))]
    with board(env) as served:
        first_byte_s = served.first_byte_s()
        window.open(served.page)
        until(window, "return document.querySelectorAll('tr[data-key]').length > 1")
        painted, table = window.run(
            "return [performance.getEntriesByName('first-contentful-paint')[0].startTime,"
            " performance.getEntriesByName(`${location.origin}/api/runs`)[0].responseEnd]"
        )
        with served.get("/api/runs") as answer:
            size = len(answer.read())
        with following(served, folders[: PAGES - 1]):
            memory, cpu = cost(served, folders, seconds)
        scrolled = frames(window, SCROLL, 200)
        go(window, f"run/{folders[0].path.name}")
        until(window, CURVE_IS_THERE)
        began = time.monotonic()
        go_on(folders[:1], 2000)
        until(window, "return document.querySelector('.charts .readout').textContent.includes('0.0005')")
        seen = time.monotonic() - began
        window.open("about:blank")
    return {
        "start to first byte, s": first_byte_s,
        "page to first paint, s": painted / 1000,
        "page to first table, s": table / 1000,
        "first table, kB over the wire": size / 1000,
        "memory, MB": memory,
        "CPU, % of a core": cpu,
        "a line of metrics on disk to the page, s": seen,
        "a frame while scrolling, ms": scrolled,
    }


def go(window, view):
    window.run("location.hash = arguments[0]", f"#/{view}")


@contextlib.contextmanager
def following(served, folders):
    """Pages that are open, each at a run, beside that of the browser."""
    answers = [served.get(f"/api/live?run={folder.path.name}") for folder in folders]
    threads = [threading.Thread(target=lambda one=one: drain(one), daemon=True) for one in answers]
    for thread in threads:
        thread.start()
    yield
    for answer in answers:
        answer.fp.raw._sock.shutdown(2)


def drain(answer):
    with contextlib.suppress(http.client.IncompleteRead):  # it is cut off when all is measured
        while answer.read1(65536):
            continue


def cost(served, folders, seconds):
    """MB that are its own, and the share of a core that it takes while all of these go on once a second."""
    process = Path(f"/proc/{served.process.pid}")
    before, began = used_s(process), time.monotonic()
    for step in range(50, 50 + seconds):
        go_on(folders, step)
        time.sleep(max(0.0, began + step - 49 - time.monotonic()))
    share = 100 * (used_s(process) - before) / (time.monotonic() - began)
    told = dict(line.split()[:2] for line in (process / "smaps_rollup").read_text().splitlines()[1:])
    return int(told["Pss:"]) / 1000, share


def used_s(process):
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def with_a_long_run(window, path, points):
    """Five metrics of so many points: the first curves of a board that has not read it yet."""
    env = finished_runs(path, 0)
    measure(path, "long-0001", ("loss", "val_loss", "lr", "accuracy", "norm"), points)
    with board(env) as served:
        window.open(served.page)
        began = time.monotonic()
        go(window, "run/long-0001")
        until(window, CURVE_IS_THERE)
        took = time.monotonic() - began
        with served.get("/api/runs/long-0001/curves") as answer:
            size = len(answer.read())
        window.open("about:blank")
    return {"first curve, s": took, "curves, kB over the wire": size / 1000}


def with_many_curves(window, path, runs, points):
    env = finished_runs(path, 0)
    ids = [measure(path, f"run-{number:04x}", ("loss",), points).path.name for number in range(runs)]
    with board(env) as served:
        window.open(served.page)
        go(window, f"compare/{','.join(ids)}")
        until(window, CURVE_IS_THERE)
        until(window, f"return document.querySelector('.plot').getAttribute('aria-label').includes('{runs} runs')")
        taken = frames(window, PAN, 100)
        window.open("about:blank")
    return {"a frame while panning, ms": taken}


def frames(window, each, count):
    window.run(FRAMES, each, count)
    until(window, "return window.framesTaken")
    return statistics.median(window.run("return window.framesTaken"))


def beside_tensorboard(window, path, points, pairs):
    """Seconds from the start of either to its first curve, in turns: both begin with what they are given."""
    env = finished_runs(path, 0)
    measure(path, "long-0001", ("loss",), points)
    write_events(path / "events", points)
    taken = {"launch board": [], "TensorBoard": []}
    for _ in range(pairs):
        with board(env, "long-0001") as served:
            window.open(served.page)
            until(window, CURVE_IS_THERE)
            taken["launch board"].append(time.monotonic() - served.began)
            window.open("about:blank")
        taken["TensorBoard"].append(tensorboard(window, path / "events", env))
    return taken


def tensorboard(window, events, env):
    port = free_port()
    command = [BIN / "tensorboard", "--logdir", events, "--port", str(port), "--host", "127.0.0.1"]
    with serving(command, env) as (_, began):
        until_it_listens(port)
        window.open(f"http://127.0.0.1:{port}/")
        bound = time.monotonic() + BOUND_S
        while not window.run(TENSORBOARD_CURVE_IS_THERE):
            if time.monotonic() > bound:
                raise SystemExit(f"TensorBoard shows no curve\n{window.text()}")
        took = time.monotonic() - began
        window.open("about:blank")
    return took


def write_events(folder, points):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        for step in range(1, points + 1):
            writer.add_scalar("loss", 1 / step, step)


def until_it_listens(port):
    bound = time.monotonic() + BOUND_S
    while time.monotonic() < bound:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=BOUND_S).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return
    raise SystemExit("TensorBoard does not listen")


# -- the tables


def rows(what, turns, at_most):
    for name in turns[0]:
        values = [turn[name] for turn in turns]
        bound = f"{at_most[name]:g}" if name in at_most else ""
        yield f"| {what} | {name} | {statistics.median(values):.3g} | {min(values):.3g}-{max(values):.3g} | {bound} |"


ASKED = {
    "start to first byte, s": 0.5, "page to first paint, s": 1, "page to first table, s": 0.5,
    "first table, kB over the wire": 1000, "memory, MB": 150, "CPU, % of a core": 5,
    "a line of metrics on disk to the page, s": 1, "first curve, s": 1, "curves, kB over the wire": 300,
    "a frame while scrolling, ms": 16.7, "a frame while panning, ms": 16.7,
}  # fmt: skip

NOTES = (
    "The first column says what the board had to show: many finished runs and some that were running "
    "(`live`), one run with many points of metrics, or many curves. `target` is the value that is to be "
    "reached at most. `start to first byte` begins with the command `launch board`; the other times to a "
    "`page` begin when the browser, a headless Chromium, opens it. The second table has the time from the "
    "start of the program until the browser shows the first curve, for `launch board` and TensorBoard with "
    "the same points."
)


def main():
    parser = benchmark_parser(__doc__, pairs=5)
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--points", type=int, default=1_000_000, help="of the longest run")
    parser.add_argument("--curves", type=int, default=20)
    parser.add_argument("--curve-points", type=int, default=100_000, help="of each of the curves, and of TensorBoard's")
    parser.add_argument("--seconds", type=int, default=20, help="in which the server's load is taken")
    args = parser.parse_args()
    table = ["| shown | | median | range | target |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch, browsing() as window:
        new = (Path(scratch, str(number)) for number in range(10**6))
        for count in args.runs:
            turns = [with_many_runs(window, next(new), count, args.seconds) for _ in range(args.pairs)]
            table += rows(f"{count} runs, {min(LIVE, count)} live", turns, ASKED)
        turns = [with_a_long_run(window, next(new), args.points) for _ in range(args.pairs)]
        table += rows(f"{args.points} points, 5 metrics", turns, ASKED)
        turns = [with_many_curves(window, next(new), args.curves, args.curve_points)]
        table += rows(f"{args.curves} curves of {args.curve_points} points", turns, ASKED)
        taken = beside_tensorboard(window, next(new), args.curve_points, args.pairs)
    ours, theirs = (statistics.median(one) for one in taken.values())
    table += ["", "| start to first curve | s | range | share of TensorBoard's |", "|---|---|---|---|"]
    for name, values in taken.items():
        share = f"{ours / theirs:.2f}" if values is taken["launch board"] else ""
        table.append(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f}-{max(values):.2f} | {share} |")
    publish("board", "\n".join([*table, "", NOTES]), write=args.write)


if __name__ == "__main__":
    main()
