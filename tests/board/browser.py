"""A real browser, Debian's chromium, driven by its chromedriver in the words of W3C WebDriver."""

import base64
import json
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PROGRAMS = ("chromium", "chromedriver")
BOUND_S = 60.0
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


class Browser:
    """One window. `errors` are what its console has complained of since it was asked last."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._complaints: list[str] = []
        options = {"args": ARGUMENTS}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def open(self, address):
        bound = time.monotonic() + BOUND_S
        while not self._opened(address):
            assert time.monotonic() < bound, f"cannot be opened: {address}"

    def run(self, script, *args):
        """What the body of a function gives that is run in the page."""
        return self._post(f"{self._session}/execute/sync", {"script": script, "args": args})

    def run_later(self, script):
        """What a script hands to its `done`."""
        asked = {"script": f"const done = arguments[0]; {script}", "args": []}
        return self._post(f"{self._session}/execute/async", asked)

    def until(self, script, *args):
        """The first that this gives which is something."""
        bound = time.monotonic() + BOUND_S
        while not (answer := self.run(script, *args)):
            assert time.monotonic() < bound, f"never came: {script}\n{self.text()}\n{self.errors()}"
            if self._listen():
                self.run("location.reload()")
            time.sleep(0.05)
        return answer

    def text(self):
        """All that one can read."""
        return self.run("return document.body.innerText")

    def until_text(self, text):
        self.until("return document.body.innerText.includes(arguments[0])", text)

    def click(self, text, selector="a, button"):
        """The first of these with this text."""
        find = "[...document.querySelectorAll(arguments[1])].find(one => one.textContent.trim() === arguments[0])"
        self.until(f"const found = {find}; if (found) found.click(); return Boolean(found)", text, selector)

    def errors(self):
        self._listen()
        told, self._complaints = self._complaints, []
        return told

    def hosts(self):
        """Of whom it has asked anything."""
        return set(self.run("return performance.getEntriesByType('resource').map(one => new URL(one.name).host)"))

    def picture(self, path: Path):
        with urlopen(f"{self._driver}{self._session}/screenshot", timeout=BOUND_S) as answer:
            path.write_bytes(base64.b64decode(json.load(answer)["value"]))

    def close(self):
        with urlopen(Request(f"{self._driver}{self._session}", method="DELETE"), timeout=BOUND_S) as answer:
            answer.read()

    def _opened(self, address):
        try:
            self._post(f"{self._session}/url", {"url": address})
        except HTTPError as error:
            assert CUT_OFF in error.read().decode()
            return False
        return True

    def _listen(self):
        """To its console; whether it was cut off from what it was loading."""
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
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        line = next(line for line in driver.stdout if "started successfully on port" in line)
        port = line.rpartition(" ")[2].strip(".\n")
        browser = Browser(f"http://127.0.0.1:{port}")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(BOUND_S)
        driver.stdout.close()
