"""Test on a real server that the board refuses clients without the token, and other sites."""

import re

import pytest

from tests.apps.board.conftest import opened

PATHS = ["/", "/api/runs", "/api/board", "/api/live", "/metrics", "/page/index.html", "/no-such-thing", "/?token=wrong"]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_there_is_nothing(board, path):
    answer = board.ask(path)
    assert answer.status == 401
    assert answer.body == b"launch board: open the address that `launch board` printed\n"
    assert "set-cookie" not in answer.headers


def test_the_address_gives_a_cookie_that_no_script_and_no_other_site_can_use(board):
    welcome = board.ask(f"/?token={board.board.keys.token}")
    cookie = welcome.headers["set-cookie"]
    assert welcome.status == 200
    assert {part.strip().lower() for part in cookie.split(";")[1:]} == {"httponly", "samesite=strict", "path=/"}
    assert board.board.keys.token not in cookie
    assert board.board.keys.token.encode() not in welcome.body
    assert board.ask("/api/runs", Cookie=cookie.split(";")[0]).status == 200
    assert board.ask("/api/runs", Cookie=cookie.split(";")[0][:-1]).status == 401


def test_the_cookie_of_another_board_opens_nothing(board):
    """A browser sends a cookie to each port of this machine, whoever listens there."""
    with opened() as other:
        name, _, theirs = cookie_of(other).partition("=")
        own, _, ours = cookie_of(board).partition("=")
        assert (name, own) == (f"launch_board_{other.port}", f"launch_board_{board.port}")
        for cookie in (f"{name}={theirs}", f"{own}={theirs}", f"{name}={ours}", f"{name}={ours}; {own}={theirs}"):
            assert board.ask("/api/runs", Cookie=cookie).status == 401, cookie
        assert board.ask("/api/runs", Cookie=f"{name}={theirs}; {own}={ours}").status == 200


def cookie_of(board):
    return board.ask(f"/?token={board.board.keys.token}").headers["set-cookie"].split(";")[0]


def test_the_token_opens_nothing_but_the_front_door(board):
    assert board.ask(f"/api/runs?token={board.board.keys.token}").status == 401


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil.example"]
)
def test_a_name_that_was_made_to_lead_here_is_refused(board, name):
    assert board.get("/api/runs", Host=name).status == 421
    assert board.ask(f"/?token={board.board.keys.token}", Host=name).status == 421


@pytest.mark.parametrize("name", ["localhost", "localhost:8123", "127.0.0.1:1", "[::1]:80"])
def test_a_tunnel_may_come_out_at_any_port(board, name):
    assert board.get("/api/runs", Host=name).status == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/runs/nobody", "/metrics"])
@pytest.mark.parametrize("key", ["ask", "get"])
def test_every_answer_forbids_what_a_page_of_ours_does_not_do(board, path, key):
    headers = getattr(board, key)(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not re.search(r"unsafe|\*|https?:", headers["content-security-policy"])
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.lower().startswith("access-control-")]


NO_FILES = ["../server.py", "%2e%2e/server.py", "..%2f..%2fapi.py", "/etc/passwd", "%00", "board.js%00", ".", "vendor"]


@pytest.mark.parametrize("name", [*NO_FILES, "", f"{'a' * 300}.js", "x" * 5000])
def test_only_the_files_of_the_page_are_given(board, name):
    assert board.get("/page/board.js").headers["content-type"].startswith("text/javascript")
    answer = board.get(f"/page/{name}")
    assert answer.status == 404
    assert b"import" not in answer.body


def test_an_action_is_not_there_unless_it_was_asked_for(board, house):
    house.run().succeeded()
    assert board.post("/api/runs/job-abcd/note", {"text": "hello"}).status in (404, 405)
    assert board.get("/api/board").json()["post_token"] == ""
    assert not (house.root / "runs" / "job-abcd" / "labels.json").exists()


@pytest.mark.parametrize("header", [{}, {"X_Launch_Token": "wrong"}])
def test_an_action_needs_its_own_token(house, header):
    """A form of another site could post, and could not set a header."""
    house.run().succeeded()
    with opened(actions=True) as board:
        by_cookie = {"Cookie": board.ask(f"/?token={board.board.keys.token}").headers["set-cookie"].split(";")[0]}
        refused = board.ask("/api/runs/job-abcd/note", "POST", '{"text": "hello"}', **by_cookie, **header)
        assert refused.status == 403
        assert not (house.root / "runs" / "job-abcd" / "labels.json").exists()
        key = board.get("/api/board").json()["post_token"]
        done = board.ask("/api/runs/job-abcd/note", "POST", '{"text": "hello"}', **by_cookie, X_Launch_Token=key)
        assert done.json() == {"said": "the note is written", "done": True}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(board, method):
    assert board.ask("/api/runs", method, Authorization=f"Bearer {board.board.keys.token}").status == 405
