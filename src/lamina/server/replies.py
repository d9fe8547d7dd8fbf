"""Pages of records as JSON: made in a thread, sent piece by piece, counted until they were taken.

The event loop only passes pieces on. A piece is sent when the peer has taken most of the one
before, so that a reader that stops holds one piece in the socket's buffer and its page here, which
counts as bytes at work; `server.hasty` ends its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from lamina.inspect.render import render_batch
from lamina.server.held_answers import Answer

PIECE_BYTES = 256 << 10
RECORDS_MAX = 10_000
"""The most records of one page: small ones take far more room as objects than as bytes."""


def age(lag_ms: int | None) -> dict[str, int]:
    """Returns what the body of a standby's answer says of how old it may be."""
    return {} if lag_ms is None else {"replica_lag_ms": lag_ms}


def aged(request: Request, answer: Response, lag_ms: int | None) -> Response:
    """Has the header of a standby's answer say it, too."""
    if lag_ms is not None and request.scope["path"].startswith("/v1/"):
        answer.headers["lamina-replica-lag-ms"] = str(lag_ms)
    return answer


def page_of(batch: pa.RecordBatch, lag_ms: int | None = None) -> bytes:
    """Renders records as the body of an answer, and how old they may be if a standby sends them."""
    rows = list(render_batch(batch))
    page = {"records": rows} | age(lag_ms)
    return json.dumps(page, ensure_ascii=False, separators=(",", ":")).encode()


_TURNS = 3
"""Of the event loop: one in which it hears of a lost connection, one for the task that watches."""


class Reply(Response):
    """A body of JSON; closes its answer when it was sent, or its caller is gone."""

    media_type = "application/json"

    def __init__(self, body: bytes, answer: Answer) -> None:
        super().__init__(body)
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends it; says that it was sent if the peer was there to the end."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        watching = asyncio.create_task(_until_gone(receive))
        body: bytes = self.body  # type: ignore[assignment]
        try:
            await send(start)
            for at in range(0, len(body), PIECE_BYTES):
                for _ in range(_TURNS):  # to a closed connection `send` sends nothing, at once
                    await asyncio.sleep(0)
                if watching.done():
                    return
                piece = body[at : at + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not watching.done():
                self._answer.sent()
            await send({"type": "http.response.body"})
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            if self._answer.is_owed:
                await asyncio.shield(asyncio.to_thread(self._answer.close))
            else:
                self._answer.close()


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a body that nobody asked for
