"""A browser that looks at a board of made runs."""

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from browser import browsing
from run_folder import plan_of

EVIL = "<script>document.title = 'evil'</script><img src=x onerror=\"document.title = 'evil'\">"
PICTURES = os.environ.get("LAUNCH_TEST_PICTURES")  # a folder for people to look at


@pytest.fixture(scope="module")
def window():
    with browsing() as one:
        yield one


@pytest.fixture
def page(window, board, request):
    """The board in the browser; nothing is complained of, and nobody else is asked."""
    window.errors()
    window.open(board.address)
    yield window
    if PICTURES:
        picture(window, request.node.name)
    asked = window.hosts()
    window.open("about:blank")  # a board that ends while a page listens would wait for it
    window.as_usual()
    assert window.errors() == []
    assert asked <= {f"127.0.0.1:{board.port}"}


def picture(window, name):
    """Take pictures of the page: as it is, dark, on a phone and on a large screen."""
    folder = Path(PICTURES)
    folder.mkdir(parents=True, exist_ok=True)
    for kind, (width, height, theme) in {
        "light": (1280, 900, "light"),
        "dark": (1280, 900, "dark"),
        "400px": (400, 800, "light"),
        "4k": (3840, 2160, "light"),
    }.items():
        window.look(width, height, theme)
        window.drawn()
        window.picture(folder / f"{name.replace('/', '-')}-{kind}.png")


@pytest.fixture
def training(house):
    """A run with a curve and a log, whose name, metric and log are hostile."""
    folder = house.run().trained(for_s=30_000, starting_s=10_000).running(message=EVIL, metrics={"loss": 0.5})
    measure(folder, {step: {"loss": 1 / step, EVIL: 1.0} for step in range(1, 200)})
    return folder.log(0, f"{EVIL}\n\033]0;evil\007\033[31mred\033[0m\n{'x' * 1_000_000}\n")


def measure(folder, values):
    folder.run.metrics.mkdir(exist_ok=True)
    path = folder.run.reported(1, 0)
    with path.open("a") as file:
        if path.stat().st_size == 0:
            file.write('{"generation":1,"at":1}\n')
        for step, row in values.items():
            file.write(json.dumps({"step": step, "at": time.time(), "rank": 0, "values": row}) + "\n")


def started_with(folder, *words):
    """Write a run whose script had these arguments."""
    plan = plan_of(folder.path)
    entry = msgspec.structs.replace(plan.entry, args=words)
    return folder.write(folder.run.plan, msgspec.structs.replace(plan, entry=entry))


def look_at(page, view, until):
    page.run("location.hash = arguments[0]", f"#/{view}")
    page.until_text(until)
