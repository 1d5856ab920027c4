"""Whatever another machine, or a file about one, says: a value or an error of ours, in bounded time and memory."""

import contextlib
import json
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.decoding import OutOfBounds, within_bounds
from launcher.errors import BadInput, LaunchError
from launcher.places.login.messages import LogNews, RemotePreview, Request, RunNews
from launcher.places.place import CancelReport
from launcher.plan.facts import Machine
from launcher.remote import known_hosts, target
from launcher.remote.failures import Broken, Silent
from launcher.remote.known_hosts import BadKey, HostKey
from launcher.remote.rpc.wire import Garbled, Incoming, Outcome, decoded
from launcher.remote.running import Running
from launcher.remote.shipping import kept_trees
from launcher.remote.shipping.tree import FileEntry
from launcher.remote.target import Target, parse_options, target_of
from launcher.spec.model import SshHost
from launcher.status.checkpoints import Checkpoint
from tests.sizes import SCALE
from trainer.checkpoint_files.partial import Held

MANY = settings(max_examples=150 * SCALE)
SOME = settings(max_examples=40 * SCALE)
ANSWERS = (
    Machine,
    RemotePreview,
    Outcome,
    dict[str, RunNews],
    LogNews,
    CancelReport,
    list[Held],
    list[Checkpoint],
    bytes,
)
MOST_MEMORY = 64 << 20

words = st.sampled_from(
    ["", "..", "../x", "/etc/passwd", "a\0b", "\x1b[2J", "job-2222", "running", "logs/a", "x" * 70_000]
)
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | words
)
names = st.sampled_from(
    ["runs", "error", "state", "message", "attempts", "events", "events_at", "last", "tails", "more", "cpus", "gpus"]
)
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(names | st.text(), inner), max_leaves=20)
lines = st.binary(max_size=2000) | values.map(lambda value: json.dumps(value).encode())


@MANY
@given(lines, st.sampled_from([*ANSWERS, Request]))
@example(b'{"a":' * 5000, dict[str, RunNews])
@example(json.dumps(["x"] * 20_000).encode(), list[str])
@example(b"1" * 100_000, Machine)
def test_answers_and_requests(line, kind):
    tracemalloc.start()
    try:
        within_bounds(decoded(line, kind), 64 << 10, 10_000)
    except (Garbled, OutOfBounds):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_MEMORY


@pytest.mark.parametrize("answer", [["x"] * 10_001, "x" * 65_537, {"a": 1 << 63}, [[-(1 << 70)]], {"x" * 65_537: 1}])
def test_what_is_too_large(answer):
    with pytest.raises(OutOfBounds):
        within_bounds(answer, 64 << 10, 10_000)


@MANY
@given(
    st.lists(
        st.binary(max_size=300) | st.sampled_from([b"launch-far ", b'{"wire":3,"launch":"x"}', b"\n", b"\n" * 999])
    )
)
def test_greetings(said):
    pieces = iter([piece for piece in said if piece])
    try:
        Incoming(lambda _deadline, _most: next(pieces, b"")).greeting()
    except (EOFError, Garbled):
        return


paths = (
    st.sampled_from(["a", "b", "a/b", "a/b/c", "../a", "/a", "a/../../b", "a\0", "", ".", "x" * 300, ".git/config"])
    | st.text()
)
entries = st.builds(
    FileEntry,
    path=paths,
    size=st.integers(-1, 40) | st.just(1 << 70),
    executable=st.booleans(),
    link=st.none() | paths | st.sampled_from(["..", "/tmp", "../../x"]),
)


@SOME
@given(st.lists(entries, max_size=6), st.binary(max_size=100))
def test_trees_are_kept_inside_or_not_at_all(files, data):
    left = bytearray(data)

    def read(most):
        if not left:
            raise EOFError
        piece = bytes(left[:most])
        del left[:most]
        return piece

    with TemporaryDirectory() as folder:
        root = Path(folder)
        with contextlib.suppress(BadInput, EOFError):
            kept_trees.keep(root / "in" / "projects", "0" * 64, files, read)
        assert [path.name for path in root.rglob("*") if not path.is_relative_to(root / "in" / "projects")] in (
            [],
            ["in"],
        )
        assert not [path for path in root.glob("in/projects/*") if path.name != "0" * 64]


keywords = st.sampled_from(
    ["hostname", "port", "user", "proxyjump", "identityfile", "userknownhostsfile", "connecttimeout", "hostkeyalias",
     "identityagent", "proxycommand", "identitiesonly"]
)  # fmt: skip
plain = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=30)
options = plain | st.sampled_from(
    ["%h", "%", "%Q", "${HOME}", "${NOT_SET}", "~/x", "none", "a,b,c", "u@h:22", "[::1]:5"]
)


@MANY
@given(st.lists(st.tuples(keywords, options).map(" ".join) | plain))
@example(["userknownhostsfile "])
@example(["proxyjump a,b"])
def test_what_ssh_says_of_its_configuration(said):
    parsed = parse_options("\n".join(said))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "_options", lambda *_: parsed)
        try:
            assert isinstance(target_of(SshHost("gpu")), Target)
        except BadInput as error:
            assert error.lines[0].startswith("gpu") or "ProxyJump" in str(error)


KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIA=="
hosts = st.sampled_from(["gpu", "*", "!gpu", "g?u", "|1|a|b", "|1|AAAA|AAAA", "[gpu]:22", "*a" * 40, "[", "@x"]) | plain
known = st.tuples(
    st.sampled_from(["", "@revoked ", "@cert-authority ", "# "]), st.lists(hosts).map(",".join), plain | st.just(KEY)
).map(lambda parts: f"{parts[0]}{parts[1]} ssh-ed25519 {parts[2]}".encode())


@MANY
@given(st.lists(known | st.binary(max_size=200)))
@example([b"*a" * 60 + b"*b ssh-ed25519 " + KEY.encode()])
def test_known_hosts(said):
    with TemporaryDirectory() as folder:
        file = Path(folder) / "known_hosts"
        file.write_bytes(b"\n".join(said))
        here = Target("gpu", "a" * 200, 22, "me", (), False, (), "a" * 200, (file,), 1.0)
        known_hosts.expected_kinds(here)
        try:
            known_hosts.check(here, HostKey("gpu", "ssh-ed25519", b"\0\0"))
        except BadKey as error:
            assert error.lines


class Said:
    """A command that has said this, and no more."""

    def __init__(self, out, err):
        self._said = [(out, err), (b"", b"")]

    def take(self, _wait_s):
        return self._said.pop(0) if self._said else None


@MANY
@given(st.binary(max_size=6000), st.lists(st.binary(max_size=600)).map(b"\r\n".join))
def test_last_words(out, err):
    running = Running("gpu", Said(out, err))
    with contextlib.suppress(Broken, Silent, LaunchError):
        running.readline(0.0)
    said = running.last_error_lines(8)
    assert len(said) <= 8
    assert all(len(line) <= 502 and "\n" not in line for line in said)
