"""A login node that lies in every field that it can set, in turn, under every verb.

What it says becomes no path, no program and no decision here; nothing hangs, and memory stays small.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hostile import no_canary
from lies import fields
from login_node import BOUND_S, ROOT, Laptop, programs, script
from saved_checkpoints import save

from launcher.errors import Exit
from tests.sizes import one_in

PROGRAMS = Path(__file__).parent / "scripts"
MOST_KB = 600_000
LIMIT_S = 60.0
pytestmark = pytest.mark.timeout(500)
CODES = {int(code) for code in Exit}


class Hostile:
    """A laptop, a real login node that was asked once, and the one that is in its place now."""

    def __init__(self, root):
        self.root = root
        self.way = root / "way"
        self.way.mkdir()
        node = SimpleNamespace(name="hpc", port=1, key="none", host_key="none none")
        self.laptop = Laptop(root / "near", node)
        self.far = root / "far"
        (self.far / "bin").mkdir(parents=True)
        env = {"HOME": str(self.far), "PATH": programs(), "PYTHONPATH": str(ROOT), "USER": "far"}
        argv = [sys.executable, "-P", "-m", "launcher.cli.main", "_far"]
        (self.way / "real").write_text(json.dumps({"argv": argv, "env": env}))
        program = PROGRAMS / "hostile_login_node.py"
        script(self.laptop.bin / "ssh", f'exec {sys.executable} -I -S {program} {self.way} "$@"')
        self.laptop.script("train.py", "print('up')\nopen('written.txt', 'w').write('what a rank wrote')\n")
        self.laptop.spec(
            "name: job\nrun: {script: train.py, preload: []}\nresources: {ranks_per_node: 1}\nrecovery: {grace: 1s}\n"
        )
        self._honest()
        self._asked = 0
        self._verbs = subprocess.Popen(
            [sys.executable, "-P", PROGRAMS / "verbs_in_turn.py"],
            env=self.laptop.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self):
        self._verbs.communicate(timeout=BOUND_S)

    def _honest(self):
        """Every verb once, with what the real one answers."""
        laptop = self.laptop
        self.run = laptop.submit()
        self._keep("new")
        laptop.launch("wait", self.run)
        # Once more as whoever only knows that it was submitted: what is answered then holds for that beginning,
        # however often the run was looked at before it ended.
        self.restore("new")
        seen = len(self._answers())
        laptop.launch("status", self.run)
        self.ended = next(answer for kind, answer in self._answers()[seen:] if kind == "look")
        there = self.far / "launch" / "runs" / self.run
        saved = save(there / "checkpoints", 7)
        laptop.launch("logs", self.run)
        self._keep("ended")
        laptop.launch("checkpoints", self.run)
        laptop.launch("fetch", self.run, "--outputs")
        laptop.launch("submit", "job.yaml", "--on", "hpc", "--dry-run")
        laptop.launch("resume", self.run, "--set", "env.AGAIN=1")
        laptop.launch("wait", self.run)
        told = {}
        for kind, answer in self._answers():
            if kind not in told or not told[kind].get("value"):
                told[kind] = answer
        told["have"] = {"value": True}
        told["void"] = {"value": {}}
        told["cancel"] = {"value": {"ended": ["all of it"], "already": False}}
        exclusion = {"host": "n1", "evidence": "gone", "attempt": 1, "at": 1.0, "until": 1e10}
        told["forgive"] = {"value": [exclusion]}
        news = self.ended["value"][self.run]
        assert news["state"] == "succeeded" and news["attempts"][0]["end"], news
        self.running = json.loads(json.dumps(self.ended))
        news = self.running["value"][self.run]
        news |= {"state": "running", "avoided": [exclusion]}
        news["attempts"][0]["end"] = None
        news["last"] |= {"state": "running", "exit_code": None, "ended_at": None}
        told["files"] = str(saved)
        self.told = told
        (self.way / "real").unlink()

    def _answers(self):
        return [json.loads(line) for line in (self.way / "answers").read_text().splitlines()]

    def _keep(self, name):
        for part in ("state", "project"):
            shutil.copytree(self.laptop.root / part, self.root / name / part, symlinks=True)

    def restore(self, name):
        for part in ("state", "project"):
            shutil.rmtree(self.laptop.root / part)
            shutil.copytree(self.root / name / part, self.laptop.root / part, symlinks=True)

    def everything(self):
        """Return all paths on this side except in the run's folder, with their properties."""
        own = self.laptop.folder(self.run)
        found = {}
        for folder, _, names in os.walk(self.root):
            if Path(folder) in (self.way, own) or Path(folder).is_relative_to(own):
                continue
            for name in names:
                look = os.lstat(path := f"{folder}/{name}")
                found[path] = (look.st_size, look.st_mtime_ns)
        return found

    def ask(self, *argv, lie, look=None, limit_s=LIMIT_S):
        (self.way / "told").write_text(json.dumps({**self.told, "look": look or self.ended}))
        (self.way / "lie").write_text(json.dumps(lie))
        self._asked += 1
        words = {"number": self._asked, "argv": argv, "cwd": str(self.laptop.project), "limit_s": limit_s}
        self._verbs.stdin.write(json.dumps(words) + "\n")
        self._verbs.stdin.flush()
        number = 0
        while number != self._asked:  # those before it are of a test that was given up
            number, *answer = json.loads(self._verbs.stdout.readline())
        return Answer(*answer)


class Answer:
    def __init__(self, code, out, err, size, peak_kb, seconds):
        self.code, self.out, self.err, self.size = code, out, err, size
        self.peak_kb, self.seconds = peak_kb, seconds

    def problems(self):
        both = self.out + self.err
        problems = [
            "it hung" if self.code is None else "",
            f"exit code {self.code}" if self.code not in CODES else "",
            "internal error" if "internal error" in both or "Traceback" in both else "",
            f"{self.peak_kb} kB" if self.peak_kb > MOST_KB else "",
            f"{self.size} bytes of text" if self.size > 2 << 20 else "",
            "control characters" if any(sign in both for sign in "\x1b\u202e\0\x07") else "",
        ]
        return [one for one in problems if one]

    def __repr__(self):
        return f"{self.code} in {self.seconds:.1f} s, {self.peak_kb} kB: {self.out[-400:]!r} {self.err[-600:]!r}"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    hostile = Hostile(tmp_path_factory.mktemp("hostile"))
    yield hostile
    hostile.close()


# verb, what it starts from, the request that is lied about
TURNS = {
    "submit": (("submit", "job.yaml", "--on", "hpc"), "new", ("machine", "have", "open")),
    "dry run": (("submit", "job.yaml", "--on", "hpc", "--dry-run"), "new", ("preview",)),
    "status": (("status", "RUN"), "new", ("look",)),
    "runs": (("status", "--json"), "new", ("look",)),
    "wait": (("wait", "RUN", "--timeout", "0.5"), "new", ("look",)),
    "logs": (("logs", "RUN"), "new", ("logs",)),
    "logs -f": (("logs", "RUN", "-f"), "new", ("logs",)),
    "cancel": (("cancel", "RUN"), "new", ("cancel", "look")),
    "resume": (("resume", "RUN", "--set", "env.AGAIN=1"), "ended", ("resume",)),
    "checkpoints": (("checkpoints", "RUN"), "ended", ("checkpoints",)),
    "fetch": (("fetch", "RUN"), "ended", ("logs", "stock", "give")),
    "fetch outputs": (("fetch", "RUN", "--outputs", "--checkpoint", "none"), "ended", ("outputs",)),
    "pardon": (("pardon", "RUN"), "new", ("forgive", "look")),
}


@pytest.mark.parametrize("verb", one_in(6, list(TURNS)))
def test_every_field_is_lied_about(hostile, verb):
    words, start, kinds = TURNS[verb]
    argv = [hostile.run if word == "RUN" else word for word in words]
    wrong = []
    cases = []
    for kind in kinds:
        honest = hostile.running if kind == "look" else hostile.told[kind]
        cases += [(kind, at, value) for at, value in fields(honest)]
        cases += [(kind, ("error",), value) for value in (["x"], [{"times": 1 << 20, "of": "x"}], [])]
        cases += [(kind, (), {"error": ["it is so\x1b[2J"], "exit_code": code}) for code in (0, 13, 256, -1, 1 << 70)]
    cases = one_in(7, cases, nightly=4)
    for kind, at, value in cases:
        hostile.restore(start)
        before = hostile.everything()
        look = hostile.running if kind in ("look", "forgive", "cancel") else hostile.ended
        told = hostile.ask(*argv, lie={"type": kind, "at": at, "value": value}, look=look)
        problems = told.problems()
        if verb != "submit":
            problems += outside(before, hostile)
        if told.code == 0 and not verb.startswith("status") and kind != "look" and at == () and "error" in value:
            problems.append("an error that ends well")
        no_canary(hostile.laptop.project)
        if problems:
            wrong.append((kind, at, str(value)[:80], problems, told))
    assert not os.path.lexists("/tmp/pwned")
    print(f"{len(cases)} lies about {verb}")
    assert not wrong, "\n".join(map(str, wrong[:40])) + f"\n{len(wrong)} of {len(cases)}"


def outside(before, hostile):
    after = hostile.everything()
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    return [f"outside of the run's folder: {sorted(changed)[:5]}"] if changed else []


RAW = (
    "silence", "silence after the greeting", "a line without an end", "lines without an end",
    "an answer without an end", "answers nobody asked for", "words on stderr without an end", "a long version",
    "a wire that is none", "words that steer a terminal", "nothing that is JSON", "half an answer", "many errors",
    "a version without an end",
)  # fmt: skip


@pytest.mark.parametrize("how", one_in(7, RAW))
def test_nothing_of_the_wire(hostile, how):
    wrong = []
    for verb in ("submit", "status", "cancel", "fetch"):
        words, start, _ = TURNS[verb]
        hostile.restore(start)
        argv = [hostile.run if word == "RUN" else word for word in words]
        told = hostile.ask(*argv, lie={"raw": how})
        problems = told.problems()
        if verb != "status" and "login node hpc of hpc" not in told.err:
            problems.append("it does not say who")
        if problems:
            wrong.append((verb, problems, told))
    assert not wrong, "\n".join(map(str, wrong))
