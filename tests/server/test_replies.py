"""A page that did not leave is not taken for sent, however quickly nothing was sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lamina.server.held_answers import Answer
from lamina.server.limits import Allowance
from lamina.server.replies import PIECE_BYTES, Reply


@pytest.mark.parametrize("pieces", [2, 5])
def test_a_connection_that_is_lost_while_nothing_waits_is_noticed(pieces: int) -> None:
    undone: list[int] = []
    sent: list[int] = []

    async def reply() -> None:
        lost = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await lost.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(len(message.get("body", b"")))
            asyncio.get_running_loop().call_soon(lost.set)  # the transport hears of it a turn later

        answer = Answer(Allowance("bytes", 1 << 30))
        answer.undo_unless_sent(lambda: undone.append(1))
        await Reply(b"x" * PIECE_BYTES * pieces, answer)({}, receive, send)

    asyncio.run(reply())
    assert undone == [1]
    assert sum(sent) < PIECE_BYTES * pieces
