"""What an HTTP request brings: its host, its arguments, its body, and whether anybody still waits.

Rules.
1. An argument has one place. What is in the path is refused in the query and in the body, so that
   nobody is let in for one topic and served another.
2. A body is read up to `max.request.bytes` and for `idle.ms`. While it is read and worked on, it
   counts as bytes at work, several times: objects made of JSON take more room than their text.
3. A caller that hung up is noticed while it is waited for, not when it would be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import anyio
from starlette.requests import Request
from starlette.responses import Response

from lamina.errors import InvalidRequest
from lamina.server import limits
from lamina.server.broker import Broker
from lamina.wire.messages import decode_object
from lamina.wire.operations import Operation

LARGE_BYTES = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=%-]*")
_Scope = MutableMapping[str, Any]
_Application = Callable[[_Scope, Any, Any], Awaitable[None]]


# ---------------------------------------------------------------------- the host


def host_of(header: str) -> str:
    """Returns the name or address of a Host header; raises InvalidRequest for what is none."""
    text, _, port = header.rpartition(":") if _has_port(header) else (header, "", "")
    if port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise InvalidRequest(f"the Host header's port is not a port: {header[:80]!r}")
    if text.startswith("[") and text.endswith("]"):
        with contextlib.suppress(ValueError):
            return str(ipaddress.IPv6Address(text[1:-1]))
    elif _NAME.fullmatch(text):
        return text.lower()
    raise InvalidRequest(f"the Host header is not a host: {header[:80]!r}")


def _has_port(header: str) -> bool:
    return ":" in header.rpartition("]")[2]


def refusing_strange_heads(
    application: _Application, answer: Callable[[InvalidRequest], Response]
) -> _Application:
    """Has a request whose head is ambiguous or names no host answered as such, before all else."""

    async def checked(scope: _Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        try:
            scope = _in_origin_form(scope)
            hosts = _values_of(scope, b"host")
            if len(hosts) > 1:
                raise InvalidRequest("a request has one Host header")
            host_of(hosts[0].decode("latin-1") if hosts else "")
            if _values_of(scope, b"transfer-encoding") and _values_of(scope, b"content-length"):
                raise InvalidRequest("a request has a Transfer-Encoding or a Content-Length")
        except InvalidRequest as error:
            refusal = answer(error)
            refusal.headers["connection"] = "close"  # where its body ends is anybody's guess
            await refusal(scope, receive, send)
            return
        await application(scope, receive, send)

    return checked


def _values_of(scope: _Scope, wanted: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == wanted]


def _in_origin_form(scope: _Scope) -> _Scope:
    """Reads a target with a host, as proxies get it, as its path; the host there is the host."""
    whole = bytes(scope["raw_path"])
    scheme, found, rest = whole.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        return scope
    host, _, path = rest.partition(b"/")
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    raw_path = b"/" + path
    return {
        **scope,
        "raw_path": raw_path,
        "path": unquote(raw_path.decode("ascii")),
        "headers": [(b"host", host), *others],
    }


# ---------------------------------------------------------------------- arguments


def from_path_and_query(operation: Operation, request: Request) -> dict[str, Any]:
    """Reads the arguments of an operation; raises InvalidRequest for one that is given twice."""
    texts = dict(request.path_params) | query_of(request)
    return {
        name: from_text(operation.hints.get(name, str), text, name) for name, text in texts.items()
    }


def query_of(request: Request, lists: Collection[str] = ()) -> dict[str, str]:
    """Reads the query: each name once, but those of lists, and none that is in the path."""
    found: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        refuse_doubled(name, request)
        if name in found and name not in lists:
            raise InvalidRequest(f"{name[:80]!r} is given more than once")
        found[name] = text
    return found


def refuse_doubled(name: str, request: Request) -> None:
    """Refuses a second place for what the path says."""
    if name in request.path_params:
        raise InvalidRequest(f"{name!r} is in the path, and nowhere else")


def from_text(hint: Any, text: str, name: str) -> Any:
    """Reads a value of the path or the query."""
    if hint is not int:
        return text
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise InvalidRequest(f"{name} must be a whole number, not {text[:80]!r}")
    return int(text)


# ---------------------------------------------------------------------- bodies


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object that came with a request, and how long its text was."""

    given: dict[str, Any]
    size_bytes: int

    @property
    def is_large(self) -> bool:
        """Whether to work on it would keep other requests waiting: that is done in a thread."""
        return self.size_bytes > LARGE_BYTES


@contextlib.asynccontextmanager
async def body_of(request: Request, broker: Broker) -> AsyncIterator[Body]:
    """Reads a JSON object; it counts as bytes at work for as long as the context lasts."""
    taken = 0

    def take(amount: int) -> None:
        nonlocal taken
        broker.inflight.take(amount, held=taken)
        taken += amount

    def decode(data: bytes) -> dict[str, Any]:
        take(max(0, limits.check_json(data, broker.settings.request_bytes) - taken))
        return decode_object(data)

    try:
        data = await _read(
            request,
            broker.settings.request_bytes,
            lambda size: take(size * limits.JSON_FACTOR),
            broker.settings.idle_ms,
        )
        broker.metrics.received["http"].inc(len(data))
        is_large = len(data) > LARGE_BYTES
        given = await anyio.to_thread.run_sync(decode, data) if is_large else decode(data)
        yield Body(given, len(data))
    finally:
        broker.inflight.give_back(taken)


async def _read(
    request: Request, limit: int, take: Callable[[int], None], patience_ms: int
) -> bytes:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidRequest("a body is sent as it is: no content-encoding is understood")
    claimed = request.headers.get("content-length", "0")
    if claimed.isdigit() and int(claimed) > limit:
        raise InvalidRequest(f"a body of {claimed[:20]} bytes is over max.request.bytes {limit}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(patience_ms / 1000):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise InvalidRequest(f"the body is over max.request.bytes {limit}")
                if chunk:
                    take(len(chunk))
                    parts.append(chunk)
    except TimeoutError:
        raise InvalidRequest("the body did not come in time") from None
    return b"".join(parts)


# ---------------------------------------------------------------------- who waits


@contextlib.asynccontextmanager
async def hanging_up(request: Request) -> AsyncIterator[threading.Event]:
    """Watches the connection of a request whose body was read: the event says that it is gone."""
    gone = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the rest of a body that nobody asked for
        gone.set()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
