"""A client as a program that is asked on its standard input: a line of JSON each way.

    {"do": "produce", "topic": "t", …}  ─▶  {"ok": [0, 1, 2]}  or  {"error": "Kind: what"}

Bytes are base64, and null where there are none. Drivers run with the client's own version on their
path, so nothing here imports anything of Lamina's.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import sys
from typing import Any


def packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def records_of(rows: list[Any]) -> list[Any]:
    """Key, value, timestamp and headers of each record to produce."""
    return [
        (unpacked(key), unpacked(value), time, [(name, unpacked(text)) for name, text in headers])
        for key, value, time, headers in rows
    ]


def row_of(key: bytes | None, value: bytes | None, time: int, headers: Any) -> list[Any]:
    """A record that was read."""
    named = [[name, packed(text)] for name, text in headers or ()]
    return [packed(key), packed(value), time, named]


def converse(client: Any) -> None:
    """Answers until the other side hangs up; `client` has a method for every question."""
    asyncio.run(_converse(client))


async def _converse(client: Any) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        try:
            found = getattr(client, asked.pop("do"))(**asked)
            answer = {"ok": await found if inspect.isawaitable(found) else found}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
