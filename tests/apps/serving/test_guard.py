"""Test which requests are refused before any worker gets them."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from launcher.apps.serving.server import ServingRules
from launcher.apps.web.guard import RequestGuard
from launcher.apps.web.limits import Limits
from launcher.apps.web.listening import is_loopback

JSON = {"content-type": "application/json"}


async def echo(request):
    return PlainTextResponse(f"{len(await request.body())} bytes")


def guarded_answer(method, path, *, host="127.0.0.1:8000", token=None, most_bytes=1000, **more):
    """Return the HTTP response of an echo application behind `RequestGuard` with these rules."""

    async def ask():
        app = Starlette(routes=[Route("/{path}", echo, methods=["GET", "POST"])])
        guard = RequestGuard(app, ServingRules.of(token, 8000, most_bytes), Limits(body_bytes=most_bytes))
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, path, **{**more, "headers": {"host": host, **more.get("headers", {})}})

    return asyncio.run(ask())


NAMES = dict.fromkeys(("127.0.0.1:8000", "localhost", "[::1]:8000"), 200)
OTHERS = dict.fromkeys(("evil.example", "evil.example:8000", "", "127.0.0.1.evil.example"), 421)


@pytest.mark.parametrize(("host", "status"), (NAMES | OTHERS).items())
def test_this_machine_is_asked_by_its_own_names_alone(host, status):
    assert guarded_answer("GET", "/health", host=host).status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_page_of_another_site_may_send_is_refused(kind):
    assert guarded_answer("POST", "/predict", content=b"{}", headers={"content-type": kind}).status_code == 415


def test_with_a_token_whoever_has_it_by_any_name():
    def status(path, **headers):
        return guarded_answer("GET", path, host="gpu17:8000", token="s" * 20, headers=headers).status_code

    assert status("/metrics", authorization=f"Bearer {'s' * 20}") == 200
    assert status("/metrics") == 401
    assert status("/metrics", authorization=f"Bearer {'s' * 19}") == 401
    assert status("/metrics", authorization=f"Basic {'s' * 20}") == 401
    assert status("/health") == 200, "load balancers have none"


def test_a_body_is_bounded_whether_its_length_is_told_or_not():
    assert guarded_answer("POST", "/predict", content=b"x" * 1000, headers=JSON).text == "1000 bytes"
    assert guarded_answer("POST", "/predict", content=b"x" * 1001, headers=JSON).status_code == 413

    async def parts():
        for _ in range(11):
            yield b"x" * 100

    assert guarded_answer("POST", "/predict", content=parts(), headers=JSON).status_code == 413
    assert guarded_answer("POST", "/predict", content=b"", headers={**JSON, "content-length": "-1"}).status_code == 413


def test_which_addresses_are_this_machine_alone():
    assert [is_loopback(one) for one in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(one) for one in ("0.0.0.0", "::", "10.0.0.1", "gpu17")] == [False] * 4
