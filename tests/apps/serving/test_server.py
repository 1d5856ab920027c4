"""A server with real workers, asked over loopback."""

import json
import threading
import time

import pytest
from answering import APP, at_once, checkpoint, kill, open_server
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from launcher.errors import LaunchError
from tests.waits import until

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a server with one worker, so that one held request delays all that come after it."""
    with open_server(tmp_path_factory.mktemp("served"), batch=8, wait_s=0.02, queue=12) as opened:
        yield opened


@pytest.fixture(autouse=True)
def fresh(request):
    """Remove the files `go` and `batches` of earlier tests, so that a held request stays held."""
    if "server" in request.fixturenames:
        folder = request.getfixturevalue("server").folder
        (folder / "go").unlink(missing_ok=True)
        (folder / "batches").unlink(missing_ok=True)


@pytest.fixture
def held(server):
    """The only worker is busy until `let_go`; a thread waits for its answer."""
    text = f"held {time.monotonic()}"  # no kept answer
    thread = threading.Thread(target=server.ask, args=(text, "hold"))
    thread.start()
    until("the batch that is held", lambda: [text] in server.batches)
    yield server
    server.let_go()
    thread.join()


@pytest.mark.daily
def test_an_answer_and_then_the_kept_one(server):
    first = server.ask("hello")
    assert (first.status, first.json()["said"], first.headers["x-launch-cache"]) == (200, "HELLO", "miss")
    assert first.headers["x-launch-step"] == "1"
    again = server.post("/predict", b'{ "do":"answer",  "text":"hello" }')
    assert (again.body, again.headers["x-launch-cache"]) == (first.body, "hit"), "however it is written"
    assert server.batches == [["hello"]]


def test_many_clients_are_one_batch_and_equal_inputs_one_computation(held):
    calls = [(held.ask, f"m{number % 6}") for number in range(9)]
    found = {}
    thread = threading.Thread(target=lambda: found.update(enumerate(at_once(calls))))
    thread.start()
    until("all nine behind the one that is held", lambda: held.engine._batcher.waiting == 10)
    held.let_go()
    thread.join()
    assert [one.status for one in found.values()] == [200] * 9
    assert [one.json()["said"] for one in found.values()] == [f"M{number % 6}" for number in range(9)]
    assert sorted(held.batches[1]) == [f"m{number}" for number in range(6)]
    assert len(held.batches) == 2


def test_too_many_are_sent_away_and_nobody_else_is_lost(held):
    calls = [(held.ask, f"q{number}") for number in range(11)]
    found = []
    thread = threading.Thread(target=lambda: found.extend(at_once(calls)))
    thread.start()
    until("as many as may wait", lambda: held.engine._batcher.waiting == 12)
    refused = held.ask("one too many")
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert held.get("/health").status == 200
    held.let_go()
    thread.join()
    assert [one.status for one in found] == [200] * 11


@pytest.mark.daily
@pytest.mark.parametrize(
    ("body", "where"),
    [(b'{"text": 3}', ["body", "text"]), (b'{"do": "answer"}', ["body", "text"]), (b"nothing", ["body"]),
     (b'{"text": "x", "do": "reject"}', ["body", "text"])],
)  # fmt: skip
def test_bad_data_is_told_by_its_field(server, body, where):
    answer = server.post("/predict", body)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == where


def test_a_list_of_inputs(server):
    answer = server.post("/batch-predict", [{"text": "a"}, {"text": "b"}, {"text": "a"}])
    assert [one["said"] for one in answer.json()] == ["A", "B", "A"]
    assert server.post("/batch-predict", []).json() == []
    wrong = server.post("/batch-predict", [{"text": "a"}, {"text": ""}])
    assert wrong.json()["detail"][0]["loc"] == ["body", 1, "text"]
    assert server.post("/batch-predict", [{"text": str(n)} for n in range(13)]).status == 422


def test_an_input_that_cannot_be_answered_is_the_only_one_to_suffer(held):
    calls = [(held.ask, f"s{number}", "raise" if number == 1 else "answer") for number in range(4)]
    found = []
    thread = threading.Thread(target=lambda: found.extend(at_once(calls)))
    thread.start()
    until("all four", lambda: held.engine._batcher.waiting == 5)
    held.let_go()
    thread.join()
    assert [one.status for one in found] == [200, 500, 200, 200]
    assert found[1].json()["detail"] == "predict failed: RuntimeError: no answer to this"


def test_a_worker_that_is_killed_takes_only_those_with_it_that_were_in_it(held):
    (pid,) = held.pids()
    found = []
    calls = [(held.ask, f"k{number}") for number in range(5)]
    thread = threading.Thread(target=lambda: found.extend(at_once(calls)))
    thread.start()
    until("all five behind it", lambda: held.engine._batcher.waiting == 6)
    kill(pid)
    thread.join()
    assert [one.status for one in found] == [200] * 5
    (other,) = held.pids()
    assert {one.json()["by"] for one in found} == {other} != {pid}


def test_one_that_dies_of_an_input_answers_503_and_is_replaced(server):
    (pid,) = server.pids()
    answer = server.ask("poison", "die")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert server.ask("next").json()["by"] != pid


def test_what_an_idle_worker_that_was_killed_had_not_read_is_not_lost(server):
    for number in range(10):
        kill(server.pids()[0])
        assert server.ask(f"just then {number}").status == 200
        until("another one", server.pids)


def test_what_machines_ask(server):
    assert server.ask("hello").status == 200
    assert server.post("/predict", b"nothing").status == 422
    assert server.ask("poison", "die").status == 503
    until("another one", server.pids)
    assert server.get("/health").json() == {"status": "ok", "run": "mine-abcd", "step": 1, "workers": 1}
    metrics = {family.name: family for family in text_string_to_metric_families(server.get("/metrics").body.decode())}
    assert {("/predict", "200"), ("/predict", "422"), ("/predict", "503")} <= {
        (one.labels["path"], one.labels["status"]) for one in metrics["launch_serve_requests"].samples
    }
    assert metrics["launch_serve_step"].samples[0].value == 1
    assert metrics["launch_serve_batch_inputs"].samples[-2].value >= 1
    page = server.get("/openapi.json").json()
    schema = page["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["text"] == {"type": "string", "minLength": 1}
    assert server.get("/docs").status == 200


def test_a_newer_checkpoint_is_taken_over_and_nobody_notices(tmp_path):
    with open_server(tmp_path, watch=True, cache=100) as server:
        said, enough = [], threading.Event()

        def hammer(name):
            number = 0
            while not enough.is_set():
                number += 1
                said.append(server.ask(f"{name} {number}"))

        assert server.ask("old").json()["model"] == "step-00000001"
        threads = [threading.Thread(target=hammer, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        (checkpoint(tmp_path, 2) / "damaged").touch()
        checkpoint(tmp_path, 3)
        until("the new one", lambda: server.get("/health").json()["step"] == 3)
        answer = server.ask("old")
        assert (answer.json()["model"], answer.headers["x-launch-cache"]) == ("step-00000003", "miss")
        enough.set()
        for thread in threads:
            thread.join()
        assert {one.status for one in said} == {200}
        assert {one.json()["model"] for one in said} >= {"step-00000001"}
        (pid,) = server.pids()
        kill(pid)
        assert until("another", lambda: server.pids() not in ([pid], []) and server.ask("on")).json()["model"] == (
            "step-00000003"
        ), "and the one that is replaced has it too"


UNFIT = (
    APP
    + """
import threading
import time

threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
)


def test_a_service_that_cannot_be_forked_is_served_by_processes_of_their_own(tmp_path):
    with open_server(tmp_path, app=UNFIT) as server:
        (pid,) = server.pids()
        assert server.ask("alone").json()["by"] == pid
        kill(pid)
        assert server.ask("again").json()["by"] != pid


@pytest.mark.parametrize(
    ("app", "why"),
    [
        ("def load(checkpoint): pass", "it has no predict"),
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        (APP.replace('"type": "object",', '"anyOf": [],', 1), "`anyOf` is not known here"),
        (APP.replace("return [{", "return 3 * [{"), "the example cannot be answered"),
    ],
)
def test_a_service_that_is_none_is_told_at_the_start(tmp_path, app, why):
    with pytest.raises(LaunchError) as told, open_server(tmp_path, app=app):
        pass
    assert why in str(told.value)


def test_without_the_token_nobody_is_answered(server):
    assert server.post("/predict", {"text": "x"}, authorization="").status == 401
    assert server.ask("x").status == 200
    assert json.loads(server.get("/health", authorization="").body)["workers"] == 1


def test_the_address_with_the_token_opens_the_page_that_shows_how_to_ask(server):
    page = server.get(f"/docs?token={server.token}", authorization="")
    cookie = page.headers["set-cookie"].split(";")[0]
    assert server.get("/openapi.json", authorization="", cookie=cookie).status == 200
    assert server.get("/openapi.json", authorization="", cookie=cookie[:-1]).status == 401
    assert server.get(f"/openapi.json?token={server.token}", authorization="").status == 401


def test_what_is_public_does_not_tell_what_others_have_asked(tmp_path):
    with open_server(tmp_path, token=None) as server:
        for _ in range(2):
            answer = server.ask("secret")
            assert (answer.status, answer.headers["x-launch-step"]) == (200, "1")
            assert "x-launch-cache" not in answer.headers
