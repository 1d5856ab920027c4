import re
from pathlib import Path

import msgspec
import pytest

from launcher.errors import BadInput
from launcher.ids import RunId, is_run_id, new_run_id, new_token, parse_run_id
from launcher.places.login.messages import Request as FarRequest
from launcher.places.ssh.messages import Request as HostRequest
from launcher.plan.model import Plan
from launcher.remote.rpc.wire import Outcome
from launcher.run.records import Handle
from launcher.spec.model import Predecessor
from launcher.supervisor.waiting import awaited_by

NO_IDS = ["", "last", ".", "..", "../x", "/etc", "a/b", "a\0b", "a\n", "x\u0660", "-rf", "_x", "Big", "é", "x" * 129]
LAUNCHER = Path(__file__).parents[1] / "launcher"


def test_an_id_is_the_name_and_four_letters_that_nobody_mixes_up():
    ids = {new_run_id("resnet-ddp", lambda run_id: False) for _ in range(500)}
    assert len(ids) > 490
    assert all(re.fullmatch(r"resnet-ddp-[2-9a-hjkmnp-z]{4}", run_id) for run_id in ids)


def test_an_id_grows_where_the_short_ones_are_taken():
    assert len(new_run_id("x", lambda run_id: len(run_id) < len("x-") + 7)) == len("x-") + 7


def test_a_taken_id_is_never_given():
    taken: set[str] = set()
    for _ in range(200):
        run_id = new_run_id("x", taken.__contains__)
        assert run_id not in taken
        taken.add(run_id)


@pytest.mark.parametrize("text", ["x", "resnet-ddp-7k3f", "0-a_b", "laster", "x" * 128])
def test_ids_are_parsed(text):
    assert parse_run_id(text) == text and msgspec.json.decode(msgspec.json.encode(text), type=RunId) == text


@pytest.mark.parametrize("text", NO_IDS, ids=ascii)
def test_what_could_lead_elsewhere_is_no_id_by_either_parser(text):
    assert not is_run_id(text)
    with pytest.raises(BadInput, match="expected the id of a run"):
        parse_run_id(text)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(text), type=RunId)


def test_every_message_and_record_that_names_a_run_says_so_by_the_type():
    """Of a folder that a run is looked for in; what a run is called for people (RunState.run) is not among them."""
    kinds = [*FarRequest.__args__, *HostRequest.__args__, Outcome, Handle, Plan]
    told = {f"{kind.__name__}.{name}": type_ for kind in kinds for name, type_ in _texts(kind)}
    names = {field for field in told if field.endswith((".run", ".run_id"))}
    assert len(names) >= 14
    # Handles of older versions say "" where they mean nobody: `run_there` makes an id of it, or refuses. Whom a run is
    # to follow is told in a person's words, as in a spec: the registry looks it up among the runs that there are.
    assert {field for field in names if told[field] not in (RunId, RunId | None)} == {"Handle.run", "AskQueue.run"}


@pytest.mark.parametrize("word", ["../x", "/etc", "a/b", "", "x" * 300])
def test_whom_a_run_is_to_follow_is_never_a_path(word, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found, unknown = awaited_by([Predecessor(word)])
    assert not found and [one.key for one in unknown] == ["queue.after.0"]


def test_what_a_handle_calls_the_run_is_an_id_or_nothing():
    assert [Handle("login", run=text).run_there() for text in (None, "", "x-1a2b")] == [None, None, "x-1a2b"]
    with pytest.raises(BadInput):
        Handle("login", run="../x").run_there()


def _texts(kind, above=()):
    for field in msgspec.structs.fields(kind):
        yield field.name, field.type
        for inner in getattr(field.type, "__args__", ()):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and inner not in above:
                yield from _texts(inner, (*above, kind))


def test_nothing_but_the_parser_makes_an_id():
    makes = {
        str(file.relative_to(LAUNCHER))
        for file in LAUNCHER.rglob("*.py")
        if re.search(r"\bRunId\(|cast\(.?RunId", file.read_text())
    }
    assert makes == {"ids.py"}


def test_tokens_are_long_and_differ():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"[0-9a-f]{64}", token) for token in tokens)
