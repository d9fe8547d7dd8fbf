"""The console's door: a page, its files, its feeds, its actions, all below `/console`.

    /console                 the page: one small document, no script and no style in it
    /console/static/…        the files that it needs, and no others
    /console/session         who looks: log in, log out
    /console/feed/…          what is shown, as JSON        /console/tail   the live tail
    /console/export          what was searched, as a file
    /console/do/…            what is done

Rules.
1. Every answer carries `HEADERS`: nothing from elsewhere is loaded, no inline script runs, and no
   text can become markup (Trusted Types), whatever a record holds.
2. Feeds and actions go through the broker's own checks and counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import resources
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from lamina.errors import InvalidRequest, LaminaError, NotAllowed
from lamina.server import telling
from lamina.server.auth import ANYBODY, Caller
from lamina.server.broker import Broker
from lamina.server.console import asked
from lamina.server.console.actions import ACTIONS, Doing, check_confirmed
from lamina.server.console.depth import DEPTHS
from lamina.server.console.feeds import FEEDS
from lamina.server.console.found_records import KINDS, RECORDS_MAX, ROOM_BYTES, Export
from lamina.server.console.history import History
from lamina.server.console.logins import (
    COOKIE,
    IDLE_S,
    LoggedOut,
    Sessions,
    refuse_foreign_change,
)
from lamina.server.console.long_work import Jobs
from lamina.server.console.looks import View
from lamina.server.console.premises import PREMISES
from lamina.server.console.tail import Choice, Tail
from lamina.server.console.typed_look import TYPED
from lamina.server.sites import refuse_foreign_name
from lamina.store.store import Store
from lamina.wire import failures

_log = logging.getLogger("lamina.server")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every answer of the console."""

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_EXPORTED = {"jsonl": "application/jsonl; charset=utf-8", "csv": "text/csv; charset=utf-8"}
MARK_MAX = 4096
TAIL_PAUSE_S = 0.25
BODY_BYTES = 64 << 10
_ALL = {**FEEDS, **DEPTHS, **PREMISES, **TYPED}
_Handler = Callable[[Request], Awaitable[Response]]


def _static() -> dict[str, tuple[bytes, str, str]]:
    """Reads every file of the page: its bytes, type and tag, by its path below `static`."""
    found = {}
    pending = [("", resources.files("lamina.server.console").joinpath("static"))]
    while pending:
        prefix, folder = pending.pop()
        for each in folder.iterdir():
            if each.is_dir():
                pending.append((f"{prefix}{each.name}/", each))
            elif (kind := _TYPES.get(each.name.rpartition(".")[2])) is not None:
                data = each.read_bytes()
                tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
                found[prefix + each.name] = data, kind, tag
    return found


def _choice(given: Mapping[str, Any]) -> Choice:
    """Reads which records a tail or an export is asked for."""
    return Choice(
        asked.text(given, "key", ""),
        asked.text(given, "tag", ""),
        asked.text(given, "text", ""),
        asked.optional_number(given, "since_ms"),
        asked.optional_number(given, "until_ms"),
    )


def _partitions(store: Store, topic: str, given: Mapping[str, Any]) -> list[int]:
    wanted = asked.optional_number(given, "partition")
    return list(range(store.format_of(topic)[1])) if wanted is None else [wanted]


def _begun(store: Store, topic: str, kind: str, given: Mapping[str, Any]) -> Export:
    """Makes an export of what is asked for: without a start, from the earliest record on."""
    tail = Tail(topic, _choice(given))
    start = asked.optional_number(given, "start")
    if start is None and tail.choice.since_ms is None:
        start = 0
    numbers = _partitions(store, topic, given)
    tail.begin(store, numbers, start)
    if mark := asked.text(given, "next", ""):
        tail.go_on(mark)
    end = asked.number(given, "end", 1 << 62)
    ends = {number: min(end, store.latest_offset(topic, number)) for number in numbers}
    limit = min(asked.number(given, "limit", RECORDS_MAX), RECORDS_MAX)
    return Export(topic, tail.choice, kind, tail.next_offsets, ends, limit)


class Console:
    """The handlers, around one broker. `failed` makes the answer to an error."""

    def __init__(self, broker: Broker, failed: Callable[[LaminaError], Response]) -> None:
        self._broker = broker
        self._failed = failed
        self._files = _static()
        self._sessions = Sessions()
        self._history = History()
        self._jobs = Jobs(broker.stopping)
        self._threads = anyio.CapacityLimiter(8)
        self._started_ms = time.time_ns() // 1_000_000

    def routes(self) -> list[Route]:
        """Returns the routes of the console."""
        return [
            Route("/", self._guarded(self._home)),
            Route("/console", self._guarded(self._page)),
            Route("/console/static/{path:path}", self._guarded(self._file)),
            Route("/console/session", self._guarded(self._who), methods=["GET"]),
            Route("/console/session", self._guarded(self._log_in), methods=["POST"]),
            Route("/console/session", self._guarded(self._log_out), methods=["DELETE"]),
            Route("/console/feed/jobs", self._guarded(self._job_rows)),
            Route("/console/feed/{name}", self._guarded(self._feed)),
            Route("/console/tail", self._guarded(self._tail)),
            Route("/console/export", self._guarded(self._export)),
            Route("/console/do/{name}", self._guarded(self._do), methods=["POST"]),
        ]

    def start(self) -> None:
        """Starts to sample."""
        self._history.start(lambda: self._broker.store)

    def stop(self) -> None:
        """Ends sampling."""
        self._history.stop()

    def _guarded(self, handler: _Handler) -> _Handler:
        async def guarded(request: Request) -> Response:
            try:
                if not self._broker.asks_for_keys:
                    refuse_foreign_name(request)
                if request.method not in ("GET", "HEAD"):
                    refuse_foreign_change(request)
                answer = await handler(request)
            except LoggedOut as error:
                answer = self._failed(error)
                answer.status_code = 401
            except LaminaError as error:
                answer = self._failed(error)
            except ClientDisconnect:
                answer = Response(status_code=400)
            except Exception:
                _log.exception("%s %s failed", request.method, request.url.path)
                answer = self._failed(LaminaError("the server failed; its log says how"))
            answer.headers.update(HEADERS)
            if "cache-control" not in answer.headers:
                answer.headers["cache-control"] = "no-store"
            return answer

        return guarded

    # ------------------------------------------------------------------ the page

    async def _home(self, request: Request) -> Response:
        del request
        return RedirectResponse("/console")

    async def _page(self, request: Request) -> Response:
        return self._sent("index.html", request)

    async def _file(self, request: Request) -> Response:
        return self._sent(request.path_params["path"], request)

    def _sent(self, path: str, request: Request) -> Response:
        if path not in self._files:
            return JSONResponse({"error": "NotFound"}, 404)
        data, kind, tag = self._files[path]
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=kind)

    # ------------------------------------------------------------------ who looks

    def _caller(self, request: Request) -> Caller:
        if not self._broker.asks_for_keys:
            return ANYBODY
        caller = self._sessions.caller(request.cookies.get(COOKIE))
        try:
            return self._broker.renewed(caller)
        except NotAllowed as error:  # its key was revoked: the page asks for another one
            raise LoggedOut(str(error)) from error

    def _told(self, caller: Caller | None) -> Response:
        told: dict[str, Any] = {"needs_key": self._broker.asks_for_keys, "caller": None}
        if caller is not None:
            told["caller"] = {
                "name": caller.name,
                "scope": caller.scope,
                "prefix": caller.prefix,
            }
            told["health"] = self._broker.health(caller)
        return JSONResponse(told)

    async def _who(self, request: Request) -> Response:
        try:
            return self._told(self._caller(request))
        except NotAllowed:
            return self._told(None)

    async def _log_in(self, request: Request) -> Response:
        given = await self._body(request)
        key = asked.text(given, "key")
        try:
            caller = self._broker.caller(key)
        except NotAllowed as error:
            peer = request.client.host if request.client else "nowhere"
            self._broker.refusals.note_stranger("console", peer, error)
            raise LoggedOut(str(error)) from error
        answer = self._told(caller)
        answer.set_cookie(
            COOKIE,
            self._sessions.open(caller),
            max_age=IDLE_S,
            path="/console",
            httponly=True,
            samesite="strict",
            secure=bool(self._broker.settings.tls_certificate),
        )
        return answer

    async def _log_out(self, request: Request) -> Response:
        self._sessions.close(request.cookies.get(COOKIE))
        answer = JSONResponse({})
        answer.delete_cookie(COOKIE, path="/console", httponly=True, samesite="strict")
        return answer

    async def _body(self, request: Request) -> dict[str, Any]:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise InvalidRequest("a body is JSON here")
        data = b""
        try:
            async with asyncio.timeout(self._broker.settings.idle_ms / 1000):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > BODY_BYTES:
                        raise InvalidRequest(f"a body has at most {BODY_BYTES} bytes here")
            given = json.loads(data)
        except TimeoutError:
            raise InvalidRequest("the body did not come in time") from None
        except (ValueError, RecursionError) as error:
            raise InvalidRequest("the body is not JSON") from error
        if not isinstance(given, dict):
            raise InvalidRequest("the body must be an object")
        return given

    # ------------------------------------------------------------------ looking

    async def _feed(self, request: Request) -> Response:
        caller, name = self._caller(request), request.path_params["name"]
        if name not in _ALL:
            raise InvalidRequest(f"there is no feed {name[:40]!r}")
        given = dict(request.query_params)

        def look() -> dict[str, Any]:
            topic = given.get("topic") or None
            with self._broker.guarded(caller, "console", scope="read", topic=topic) as store:
                clients = self._broker.kafka_clients
                view = View(
                    store, self._history, caller, given, clients, self._broker, self._started_ms
                )
                return _ALL[name](view)

        return JSONResponse(await anyio.to_thread.run_sync(look, limiter=self._threads))

    async def _job_rows(self, request: Request) -> Response:
        caller = self._caller(request)
        caller.require("read", None, "looking")
        rows = [
            job.as_row() for job in self._jobs.rows() if (job.topic or "").startswith(caller.prefix)
        ]
        return JSONResponse({"rows": rows})

    async def _tail(self, request: Request) -> Response:
        caller, given = self._caller(request), dict(request.query_params)
        topic = asked.text(given, "topic")
        tail = Tail(topic, _choice(given))

        def begin() -> None:
            with self._broker.guarded(caller, "console", scope="read", topic=topic) as store:
                numbers = _partitions(store, topic, given)
                tail.begin(store, numbers, asked.optional_number(given, "start"))
                mark = request.headers.get("last-event-id") or asked.text(given, "next", "")
                if mark:
                    tail.go_on(mark)

        await anyio.to_thread.run_sync(begin, limiter=self._threads)
        return StreamingResponse(self._events(caller, tail), media_type="text/event-stream")

    async def _events(self, caller: Caller, tail: Tail) -> AsyncIterator[str]:
        def step() -> dict[str, Any]:
            self._broker.renewed(caller).require("read", tail.topic, "tail")
            with telling.to(caller):
                return tail.step(self._broker.store)

        try:
            with self._broker.waiting.taking():
                while not self._broker.stopping.is_set():
                    told = await anyio.to_thread.run_sync(step, limiter=self._threads)
                    yield f"id: {told['next']}\ndata: {json.dumps(told)}\n\n"
                    await asyncio.sleep(0.02 if told["behind"] else TAIL_PAUSE_S)
        except LaminaError as error:
            yield f"event: refused\ndata: {json.dumps(failures.to_object(error))}\n\n"

    async def _export(self, request: Request) -> Response:
        caller, given = self._caller(request), dict(request.query_params)
        topic = asked.text(given, "topic")
        kind = asked.one_of(given, "format", KINDS)

        def make() -> tuple[bytes, Export]:
            with self._broker.guarded(caller, "console", scope="read", topic=topic) as store:
                export = _begun(store, topic, kind, given)
                with self._broker.inflight.taking(ROOM_BYTES):
                    return export.made(store), export

        body, export = await anyio.to_thread.run_sync(make, limiter=self._threads)
        about = {
            "records": export.records,
            "looked": export.looked,
            "whole": export.is_whole,
            "next": export.mark()[:MARK_MAX],
        }
        headers = {
            "content-disposition": f'attachment; filename="{topic}.{kind}"',
            "x-lamina-export": json.dumps(about),
        }
        return Response(body, headers=headers, media_type=_EXPORTED[kind])

    # ------------------------------------------------------------------ doing

    async def _do(self, request: Request) -> Response:
        caller, name = self._caller(request), request.path_params["name"]
        action = ACTIONS.get(name)
        if action is None:
            raise InvalidRequest(f"there is no action {name[:40]!r}")
        given = await self._body(request)
        topic = asked.text(given, action.topic) if action.topic is not None else None

        def act() -> Any:
            with self._broker.guarded(caller, name, scope=action.scope, topic=topic) as store:
                check_confirmed(action, given)
                return action.run(Doing(store, self._jobs, caller, given, self._broker.groups))

        result = await anyio.to_thread.run_sync(act, limiter=self._threads)
        _log.info("%s did %s %s in the console", caller.name, name, topic or "")
        return JSONResponse({"result": result})
