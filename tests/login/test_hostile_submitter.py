"""Somebody at another machine who lies to `launch _far` in every field of every request, in turn."""

import json
import os
import subprocess
import sys
import time

import msgspec
import pytest
from hostile import no_canary
from lies import fields
from login_node import BOUND_S, ROOT, programs
from saved_checkpoints import save

from launcher.places.login import messages as say
from launcher.remote.rpc.wire import Garbled, Have, Outcome, Reply, Tree, decoded, encoded
from launcher.remote.shipping.tree import FileEntry, digest_of
from launcher.run.code.listing import list_frozen
from launcher.run.processes import end_all
from launcher.spec.read import read_spec
from tests.conftest import tagged_processes
from tests.sizes import one_in

SCRIPT = b"print('up')\n"
SPEC = b"name: job\nrun: {script: train.py, preload: []}\nresources: {ranks_per_node: 1}\n"
FOLDER = "launch"
NAMED = ("not of this wire", "CheckpointDamaged: ", "FileNotFoundError: ")
REQUESTS = msgspec.json.Decoder(say.Request | Have | Tree)


class Far:
    """`launch _far`, spoken to without any manners."""

    def __init__(self, root):
        self.root, self.home = root, root / "home"
        self.home.mkdir(parents=True)
        self._tokens = iter(range(1, 1 << 20))
        self._far = None
        project = root / "project"
        project.mkdir()
        (project / "train.py").write_bytes(SCRIPT)
        self.digest = digest_of(list_frozen(project))
        (root / "job.yaml").write_bytes(SPEC)
        self.spec = say.RemoteSpec("job.yaml", SPEC, (), (), ("job.yaml", "project"))

    def answer(self, request, contents=b""):
        """The reply to a message, or to whatever was made of one."""
        if self._far is None or self._far.poll() is not None:
            env = {"HOME": str(self.home), "PATH": programs(), "PYTHONPATH": str(ROOT), "USER": "far"}
            self._far = subprocess.Popen(
                [sys.executable, "-P", "-m", "launcher.cli.main", "_far"],
                env=env, cwd=self.home, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert self._far.stdout.readline().startswith(b"launch-far ")
        data = json.dumps(request).encode() + b"\n" if isinstance(request, dict) else encoded(request)
        self._far.stdin.write(data + contents)
        self._far.stdin.flush()
        return decoded(self._far.stdout.readline(), Reply)

    def good(self, request, kind, contents=b""):
        reply = self.answer(request, contents)
        assert not reply.error, reply
        return decoded(bytes(reply.value), kind)

    def token(self):
        return f"{next(self._tokens):064x}"

    def opening(self):
        run = say.RunWanted("job-2222", 0)
        return say.OpenRuns(FOLDER, "local", self.token(), self.digest, (self.spec,), (run,), {})

    def close(self):
        end_all(lambda: [pid for pid, tag in tagged_processes().items() if str(self.root) in tag])
        self._far.communicate(timeout=BOUND_S)

    def outside(self):
        """Return everything here except what the user may write."""
        own = (self.home / FOLDER, self.home / ".local", self.home / ".cache")
        paths = (f"{folder}/{name}" for folder, _, names in os.walk(self.root) for name in names)
        return sorted(path for path in paths if not path.startswith(tuple(map(str, own))))


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    far = Far(tmp_path_factory.mktemp("submitter"))
    files = (FileEntry("train.py", len(SCRIPT), False),)
    assert far.good(Have(FOLDER, far.digest), bool) is False
    assert far.good(Tree(FOLDER, far.digest, files), bool, SCRIPT)
    [made] = far.good(far.opening(), Outcome).runs
    far.run = made.run
    deadline = time.monotonic() + BOUND_S
    look = say.LookAtRuns((say.KnownRun(far.run, 1, 0, ""),))
    while far.good(look, dict[str, say.RunNews])[far.run].state != "succeeded":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    far.saved = save(far.home / FOLDER / "runs" / far.run / "checkpoints", 7)
    yield far
    far.close()


def requests(far):
    manifest = (far.saved / "MANIFEST.json").read_bytes()
    data = (far.saved / "rank-00000.data").read_bytes()
    return {
        "machine": say.AskMachine("local", read_spec(far.root / "job.yaml", ())),
        "hosts": say.AskHosts("local", read_spec(far.root / "job.yaml", ())),
        "preview": say.AskPreview(FOLDER, "local", far.digest, far.spec),
        "open": far.opening(),
        "resume": say.OpenAttempt(FOLDER, far.token(), far.run, 1, ("run.args=[x]",)),
        "void": say.VoidTokens(FOLDER, (far.token(),)),
        "look": say.LookAtRuns((say.KnownRun(far.run, 1, 0, ""),)),
        "logs": say.AskLogs(far.run, {"logs/a0001.g0001/rank-00000.log": 1}),
        "outputs": say.AskOutputs(far.run, {"code/written.txt": 1}),
        "cancel": say.EndRun(far.run),
        "forgive": say.IncludeNodes(far.run, ("n1",)),
        "checkpoints": say.AskCheckpoints(far.run, False),
        "stock": say.AskStock(far.run, "newest"),
        "give": say.GivePiece(far.run, 7, "step", "rank-00000.data", 0),
        "keep": say.KeepPiece(FOLDER, far.token(), manifest, "step", "rank-00000.data", 0, data, len(data)),
        "have": Have(FOLDER, far.digest),
    }


def with_lie(request, at, value):
    made = holder = json.loads(encoded(request))
    for step in at[:-1]:
        holder = holder[step]
    if isinstance(value, dict) and value.keys() == {"times", "of"}:
        value = value["of"] * (value["times"] >> 4)
    holder[at[-1]] = [[[]]] if isinstance(value, dict) and "deep" in value else value
    return made


@pytest.mark.parametrize("kind", ["machine", "hosts", "preview", "open", "resume", "void", "look", "logs", "outputs",
                                  "cancel", "forgive", "checkpoints", "stock", "give", "keep", "have"])  # fmt: skip
def test_every_field_of_a_request_is_lied_about(far, kind):
    lies = [lie for lie in fields(json.loads(encoded(requests(far)[kind]))) if lie[0] and lie[0][0] != "type"]
    before, wrong = far.outside(), []
    for at, value in one_in(5 if kind in ("machine", "hosts", "open", "preview") else 2, lies, nightly=3):
        if at == ("folder",) and "\0" not in str(value) and ".." not in str(value):
            continue  # he may have it wherever he can write
        if at == ("runs",) and isinstance(value, dict):
            continue  # and may have as many as he likes
        lie = with_lie(requests(far)[kind], at, value)
        try:
            decoded(json.dumps(lie).encode(), REQUESTS)
        except Garbled:
            continue  # it is no request, and nobody carries it out
        reply = far.answer(lie)
        told = " ".join(reply.error)
        if reply.exit_code == 1 and not any(word in told for word in NAMED):
            wrong.append((at, str(value)[:60], told[:300]))
        if far.outside() != before:
            wrong.append((at, str(value)[:60], set(far.outside()) - set(before)))
            before = far.outside()
    assert not os.path.lexists("/tmp/pwned")
    no_canary(far.root)
    assert not wrong, "\n".join(map(str, wrong))
