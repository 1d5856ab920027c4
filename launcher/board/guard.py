"""The board's admission around its whole application: what is refused never gets to a route."""

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from launcher.board.admission import ALWAYS, Admission, Asked


class BoardGuard:
    """`welcomed` is called when somebody comes in by the address."""

    def __init__(self, app: ASGIApp, admission: Admission, welcomed: Callable[[], None] = lambda: None) -> None:
        self._app, self._admission, self._welcomed = app, admission, welcomed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = Asked(scope["method"], scope["path"], scope["query_string"].decode("latin-1"), headers)
        refusal, comes_in = self._admission.refusal(asked), False
        if refusal is None and (comes_in := self._admission.comes_in(asked)):
            self._welcomed()

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                told.update(ALWAYS)
                if comes_in:
                    told.append("set-cookie", self._admission.cookie)
            await send(message)

        await (self._app if refusal is None else PlainTextResponse(*refusal))(scope, receive, send_guarded)
