"""A real browser, Debian's chromium, driven by its chromedriver in the words of W3C WebDriver."""

import base64
import json
import subprocess
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

needs_browser = pytest.mark.needs("chromium", "chromedriver")
MOST_STARTS = 10
BOUND_S = 60.0
KEYS = {
    "Enter": "\ue007",
    "Escape": "\ue00c",
    "ArrowDown": "\ue015",
    "ArrowRight": "\ue014",
    "ArrowLeft": "\ue012",
    "End": "\ue010",
}
CUT_OFF = "ERR_NETWORK_CHANGED"  # another test made an interface, or took one away: it drops what it was loading
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",  # of its own, which root may not have
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--window-size=1280,900",
]


class CutOff(Exception):
    """The browser has dropped what it was loading."""


def again_if_cut_off(test):
    """A test of several steps, which begins with opening a page: from its beginning, as what was typed is gone."""

    @wraps(test)
    def whole(**given):
        window = next(one for one in given.values() if isinstance(one, Browser))
        for _ in range(20):
            try:
                with window.in_steps():
                    return test(**given)
            except CutOff:
                window.reload()
        return test(**given)

    return whole


class Browser:
    """One window. `errors` are what its console has complained of since it was asked last."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._complaints: list[str] = []
        self._in_steps = False
        options = {"args": ARGUMENTS}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def open(self, address):
        self._load("url", {"url": address})

    def reload(self):
        self._load("refresh", {})

    @contextmanager
    def in_steps(self):
        """Mark an error that loading the page again does not mend."""
        self._in_steps = True
        try:
            yield
        finally:
            self._in_steps = False

    def run(self, script, *args):
        """Return the result of a function body that is run in the page."""
        return self._post(f"{self._session}/execute/sync", {"script": script, "args": args})

    def run_later(self, script):
        """Return what a script in the page passes to its `done`."""
        asked = {"script": f"const done = arguments[0]; {script}", "args": []}
        return self._post(f"{self._session}/execute/async", asked)

    def until(self, script, *args):
        """The first that this gives which is something."""
        bound = time.monotonic() + BOUND_S
        while not (answer := self.run(script, *args)):
            assert time.monotonic() < bound, f"never came: {script}\n{self.text()}\n{self.errors()}"
            if self._listen():
                if self._in_steps:
                    raise CutOff
                self.reload()
            time.sleep(0.05)
        return answer

    def text(self):
        """Return all text that the page shows."""
        return self.run("return document.body?.innerText")

    def until_text(self, text):
        self.until("return document.body?.innerText.includes(arguments[0])", text)

    def click(self, text, selector="a, button"):
        """The first of these with this text."""
        find = "[...document.querySelectorAll(arguments[1])].find(one => one.textContent.trim() === arguments[0])"
        self.until(f"const found = {find}; if (found) found.click(); return Boolean(found)", text, selector)

    def press(self, *keys):
        """Press these keys one after the other, wherever the focus is."""
        self._do({"type": "key", "id": "keys", "actions": [
            {"type": way, "value": KEYS.get(key, key)} for key in keys for way in ("keyDown", "keyUp")
        ]})  # fmt: skip

    def drag(self, selector, start, end):
        """Drag the pointer across the first of these elements, from one part of its width to another."""
        box = self.until("const found = document.querySelector(arguments[0]); found?.scrollIntoView({block: 'center'});"
                         "return found && found.getBoundingClientRect().toJSON()", selector)  # fmt: skip
        across = [round(box["x"] + box["width"] * part) for part in (start, (start + end) / 2, end)]
        places = [{"type": "pointerMove", "x": x, "y": round(box["y"] + box["height"] / 2)} for x in across]
        first, *others = places
        actions = [first, {"type": "pointerDown", "button": 0}, *others, {"type": "pointerUp", "button": 0}]
        self._do({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions})

    def look(self, width, height, theme="light"):
        """Give the page a screen of this kind."""
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self._command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def as_usual(self):
        self._command("Emulation.clearDeviceMetricsOverride")
        self._command("Emulation.setEmulatedMedia", features=[])

    def drawn(self):
        """Waits until what was asked for is on the screen."""
        self.run_later("requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def errors(self):
        self._listen()
        told, self._complaints = self._complaints, []
        return told

    def hosts(self):
        """Return the hosts to which the page has sent requests."""
        return set(self.run("return performance.getEntriesByType('resource').map(one => new URL(one.name).host)"))

    def picture(self, path: Path):
        with urlopen(f"{self._driver}{self._session}/screenshot", timeout=BOUND_S) as answer:
            path.write_bytes(base64.b64decode(json.load(answer)["value"]))

    def close(self):
        with urlopen(Request(f"{self._driver}{self._session}", method="DELETE"), timeout=BOUND_S) as answer:
            answer.read()

    def _load(self, verb, wish):
        bound = time.monotonic() + BOUND_S
        while not self._loaded(verb, wish):
            assert time.monotonic() < bound, f"cannot be loaded: {wish}"

    def _loaded(self, verb, wish):
        try:
            self._post(f"{self._session}/{verb}", wish)
        except HTTPError as error:
            assert CUT_OFF in error.read().decode()
            return False
        return True

    def _do(self, actions):
        self._post(f"{self._session}/actions", {"actions": [actions]})

    def _command(self, name, **words):
        self._post(f"{self._session}/goog/cdp/execute", {"cmd": name, "params": words})

    def _listen(self):
        """Add new messages of the browser's console to the complaints; return whether a page's load was cut off."""
        entries = self._post(f"{self._session}/se/log", {"type": "browser"})
        told = [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
        self._complaints += [message for message in told if CUT_OFF not in message]
        return any(CUT_OFF in message for message in told)

    def _post(self, path, wish):
        asked = Request(f"{self._driver}{path}", json.dumps(wish).encode(), {"Content-Type": "application/json"})
        with urlopen(asked, timeout=BOUND_S) as answer:
            return json.load(answer)["value"]


@contextmanager
def browsing():
    """A browser, until one has done with it."""
    for _ in range(MOST_STARTS):
        with _driving() as port:
            if port is None:
                continue
            browser = Browser(f"http://127.0.0.1:{port}")
            try:
                yield browser
            finally:
                browser.close()
            return
    raise AssertionError("chromedriver found no port")


@contextmanager
def _driving():
    """A driver's port. None: the port that it chose over IPv6 was somebody's over IPv4, and it has ended."""
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        line = next((line for line in driver.stdout if "started successfully on port" in line), None)
        yield line and line.rpartition(" ")[2].strip(".\n")
    finally:
        driver.terminate()
        driver.wait(BOUND_S)
        driver.stdout.close()
