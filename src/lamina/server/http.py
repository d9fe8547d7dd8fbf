"""HTTP in front of the broker: JSON for small clients, and the pages that machines watch.

    /v1/…       the table of operations, produce, fetch and watch (`openapi.py` describes them all)
    /health     what is wrong, if anything          /ready     whether calls are answered
    /live       whether anything answers            /v1/reload keys, certificates, settings
    /v1/cluster/promote, /v1/cluster/handover       who holds the cluster
    /metrics    for Prometheus                      /docs, /openapi.json
    /console    the log as a page (`console/`)
    /subjects, /schemas, /config, …   a schema registry (`subject_routes.py`)

Rules.
1. What a request brings is read by `server.arriving`, and in no other way.
2. A watcher holds one small batch; it is asked for more only when it has taken that.
3. Every call takes its room before it takes a thread; a long poll takes that of a waiting call.
4. A caller that hung up while it waited gets nothing: what a poll had handed out is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import anyio
import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lamina.errors import Busy, InvalidRequest, LaminaError, NotAllowed, NotPrimary
from lamina.inspect.render import render_batch
from lamina.server import arriving, certificates, jsonrows, limits, openapi, replies
from lamina.server.auth import Caller, bearer
from lamina.server.broker import Broker
from lamina.server.console.pages import Console
from lamina.server.hasty import protocol_of
from lamina.server.held_answers import Answer
from lamina.server.http_errors import Unknown, elsewhere, failed
from lamina.server.listening import refused
from lamina.server.setting_table import ServerSettings
from lamina.server.sites import refuse_foreign_name, refuse_foreign_site
from lamina.server.subject_routes import SubjectRoutes
from lamina.storage import local_sockets
from lamina.storage.descriptors import share_of_door
from lamina.wire import failures, values
from lamina.wire.messages import Order, Poll, Question
from lamina.wire.operations import OPERATIONS, Operation

_log = logging.getLogger("lamina.server")

_WATCH_MS = 1000
HAND_OVER_S = 60.0
"""How long a hand-over is waited for: calls at work end, and everything is shipped."""
_PAGE_RECORDS, _PAGE_BYTES = 1000, 256 << 10
_Handler = Callable[[Request], Awaitable[Response]]
_Made = TypeVar("_Made")


async def _not_there(request: Request, error: Exception) -> Response:
    """Answers a path that is none, or not for this verb."""
    assert isinstance(error, HTTPException), "nothing else has a status"
    problem = InvalidRequest(f"{request.method[:20]} is not answered there; /docs lists what is")
    return JSONResponse(failures.to_object(problem), error.status_code, error.headers)


class Routes:
    """The handlers, around one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lag_ms = broker.place.lag_ms
        self._threads = anyio.CapacityLimiter(64)
        self._waiters = anyio.CapacityLimiter(broker.settings.waiting + 1)
        self.console = Console(broker, failed)

    def renew(self, settings: ServerSettings) -> None:
        """Takes on what was reloaded; in the event loop."""
        self._waiters.total_tokens = settings.waiting + 1

    def application(self) -> Starlette:
        """Makes the application."""
        routes = [
            Route("/health", self._typed(self._health)),
            Route("/ready", self._typed(self._ready)),
            Route("/live", self._live),
            Route("/v1/reload", self._typed(self._reload), methods=["POST"]),
            Route("/v1/cluster/promote", self._typed(self._promote), methods=["POST"]),
            Route("/v1/cluster/handover", self._typed(self._hand_over), methods=["POST"]),
            Route("/metrics", self._typed(self._metrics)),
            Route("/openapi.json", self._description),
            Route("/docs", self._docs),
            Route("/v1/topics/{topic}/records", self._typed(self._produce), methods=["POST"]),
            Route(_RECORDS, self._typed(self._fetch), methods=["GET"]),
            Route(_WATCH, self._typed(self._watch), methods=["GET"]),
            Route(_POLL, self._typed(self._poll_group), methods=["POST"]),
            *self.console.routes(),
            *SubjectRoutes(self._broker, self._caller_of, self._threads).routes(),
        ]
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in OPERATIONS.values():
            by_path.setdefault(operation.path, {})[operation.verb] = operation
        for path, verbs in by_path.items():
            handler = self._typed(self._operation(verbs))
            routes.append(Route(path, handler, methods=list(verbs)))
        return Starlette(routes=routes, exception_handlers={404: _not_there, 405: _not_there})

    def _typed(self, handler: _Handler) -> _Handler:
        """Answers errors as JSON; what nobody foresaw is logged and answered in one sentence."""

        async def guarded(request: Request) -> Response:
            try:
                with self._broker.tracing.within(request.headers):
                    return replies.aged(request, await handler(request), self._lag_ms())
            except NotPrimary as error:
                return elsewhere(request, error)
            except LaminaError as error:
                return failed(error)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception:
                _log.exception("%s %s failed", request.method, request.scope["path"])
                return failed(LaminaError("the server failed; its log says how"))

        return guarded

    def _caller(self, request: Request) -> Caller:
        return self._caller_of(request, bearer(request.headers.get("authorization")))

    def _caller_of(self, request: Request, key: str | None) -> Caller:
        try:
            if not self._broker.asks_for_keys:
                refuse_foreign_name(request)
                refuse_foreign_site(request)
            return self._broker.caller(key)
        except NotAllowed as error:
            peer = request.client.host if request.client else "nowhere"
            self._broker.refusals.note_stranger("http", peer, error)
            if not self._broker.asks_for_keys:
                raise
            raise Unknown(str(error)) from error

    # ------------------------------------------------------------------ the table of operations

    def _operation(self, verbs: dict[str, Operation]) -> _Handler:
        async def handle(request: Request) -> Response:
            operation = verbs["GET" if request.method == "HEAD" else request.method]
            caller = self._caller(request)
            given = arriving.from_path_and_query(operation, request)
            if operation.verb == "GET":
                return await self._call(caller, operation, given)
            caller.require_scope(operation.scope, operation.name)
            async with arriving.body_of(request, self._broker) as body:
                for name in body.given:
                    arriving.refuse_doubled(name, request)
                return await self._call(caller, operation, given | body.given)

        return handle

    async def _call(self, caller: Caller, operation: Operation, given: dict[str, Any]) -> Response:
        limiter = self._waiters if given.get("wait_ms") else self._threads
        with self._broker.calls.taking():
            result = await anyio.to_thread.run_sync(
                self._broker.call, caller, operation.name, given, limiter=limiter
            )
        return JSONResponse({"result": values.to_plain(result)} | replies.age(self._lag_ms()))

    # ------------------------------------------------------------------ records

    async def _produce(self, request: Request) -> Response:
        caller = self._caller(request)
        caller.require("write", request.path_params["topic"], "append")
        arriving.query_of(request)
        async with arriving.body_of(request, self._broker) as body:
            return await self._append(caller, request, body)

    async def _append(self, caller: Caller, request: Request, body: arriving.Body) -> Response:
        given = dict(body.given)
        acks = given.pop("acks", "all")
        order: Order = values.from_plain(
            Order,
            {
                "topic": request.path_params["topic"],
                "partition": given.pop("partition", None),
                "acks": str(acks) if isinstance(acks, int) else acks,
            },
            "the body",
        )
        rows = given.pop("records", None)
        if given:
            raise InvalidRequest(f"an append has records, partition and acks, not {min(given)!r}")
        if body.is_large:  # work that would keep the loop from everybody else
            appended = await anyio.to_thread.run_sync(
                lambda: self._broker.append(caller, order, jsonrows.parse(rows), body.size_bytes),
                limiter=self._threads,
            )
        else:
            parsed = jsonrows.parse(rows)
            appended = await self._broker.append_async(caller, order, parsed, body.size_bytes)
        described = values.to_plain(appended) | {"durability": appended.durability}
        return JSONResponse(described)

    def _question(self, request: Request, **more: int) -> Question:
        asked = {"kind": "fetch", "topic": request.path_params["topic"], "start": 0}
        asked |= {"max_records": _PAGE_RECORDS, "max_bytes": _PAGE_BYTES, **more}
        given = request.path_params | arriving.query_of(request)
        for name, text in given.items():
            if name == "topic":
                continue
            if name not in ("partition", "start", "max_records", "max_bytes", "wait_ms"):
                raise InvalidRequest(f"unknown parameter {name[:80]!r}")
            asked[name] = arriving.from_text(int, text, name)
        question: Question = values.from_plain(Question, asked, "the query")
        return replace(question, max_records=min(question.max_records, replies.RECORDS_MAX))

    async def _rows(self, caller: Caller, asked: Question) -> list[dict[str, Any]]:
        """Fetches in a thread what a watcher is shown next; it counts until it is rendered."""

        def fetch() -> list[dict[str, Any]]:
            answer = self._broker.answer(weight=limits.JSON_FACTOR)
            with contextlib.closing(answer):
                return list(render_batch(self._broker.fetch(caller, asked, answer)))

        return await self._in_thread(fetch, asked.wait_ms)

    async def _in_thread(self, work: Callable[[], _Made], wait_ms: int) -> _Made:
        """Works in a thread; a long poll in one of those kept for waiting."""
        limiter = self._waiters if wait_ms > 0 else self._threads
        return await anyio.to_thread.run_sync(work, limiter=limiter)

    async def _replied(
        self, request: Request, wait_ms: int, make: Callable[[Answer], pa.RecordBatch]
    ) -> Response:
        """Answers with a page of records. A caller that hung up gets nothing, and holds nothing."""
        answer = self._broker.answer(weight=limits.JSON_FACTOR)
        try:
            async with arriving.hanging_up(request) as gone:
                answer.is_gone = gone.is_set
                with self._broker.room_for(wait_ms):
                    page = await self._in_thread(
                        lambda: replies.page_of(make(answer), self._lag_ms()), wait_ms
                    )
                if gone.is_set():
                    raise ClientDisconnect
        except BaseException:
            await anyio.to_thread.run_sync(answer.close, limiter=self._threads)
            raise
        self._broker.metrics.sent["http"].inc(len(page))
        return replies.Reply(page, answer)

    async def _fetch(self, request: Request) -> Response:
        caller = self._caller(request)
        asked = self._question(request)
        return await self._replied(
            request, asked.wait_ms, lambda answer: self._broker.fetch(caller, asked, answer)
        )

    async def _poll_group(self, request: Request) -> Response:
        caller = self._caller(request)
        caller.require("write", request.path_params["topic"], "group.poll")
        arriving.query_of(request)
        async with arriving.body_of(request, self._broker) as body:
            for name in body.given:
                arriving.refuse_doubled(name, request)
            given = {"max_records": _PAGE_RECORDS, "max_bytes": _PAGE_BYTES, **body.given}
        strange = set(given) - {item.name for item in fields(Poll)} | set(given) & {"kind"}
        if strange:
            raise InvalidRequest(f"unknown field {min(strange)[:80]!r}")
        asked: Poll = values.from_plain(Poll, given | request.path_params, "the body")
        asked = replace(asked, max_records=min(asked.max_records, replies.RECORDS_MAX))

        def poll(answer: Answer) -> pa.RecordBatch:
            batch = self._broker.poll(caller, asked, answer)
            at = batch.schema.get_field_index("deadline")
            return batch.set_column(at, "deadline_ms", batch.column(at).cast("int64"))

        return await self._replied(request, asked.wait_ms, poll)

    async def _watch(self, request: Request) -> Response:
        caller = self._caller(request)
        asked = self._question(request, wait_ms=_WATCH_MS)
        last = request.headers.get("last-event-id")
        start = asked.start or 0
        if last is not None:
            start = arriving.from_text(int, last, "last-event-id") + 1
        first = Question(asked.kind, asked.topic, asked.partition, start, max_records=1)
        await self._rows(caller, first)  # a wrong question is answered as such, not as a stream
        media = "text/event-stream"
        return StreamingResponse(self._events(caller, asked, start), media_type=media)

    async def _events(self, caller: Caller, asked: Question, start: int) -> AsyncIterator[str]:
        try:
            with self._broker.waiting.taking():
                while not self._broker.stopping.is_set():
                    question = Question(
                        asked.kind,
                        asked.topic,
                        asked.partition,
                        start,
                        max_records=asked.max_records,
                        max_bytes=asked.max_bytes,
                        wait_ms=asked.wait_ms,
                    )
                    rows = await self._rows(caller, question)
                    text = "".join(
                        f"id: {row['offset']}\ndata: {json.dumps(row)}\n\n" for row in rows
                    )
                    self._broker.metrics.sent["http"].inc(len(text))
                    yield text or ": still here\n\n"
                    start = rows[-1]["offset"] + 1 if rows else start
        except LaminaError as error:
            yield f"event: error\ndata: {json.dumps(failures.to_object(error))}\n\n"

    # ------------------------------------------------------------------ for machines and people

    def _looker(self, request: Request) -> Caller | None:
        """Answers health checks; one without a key gets less detail."""
        try:
            return self._broker.caller(bearer(request.headers.get("authorization")))
        except NotAllowed:
            return None

    async def _health(self, request: Request) -> Response:
        health = self._broker.health(self._looker(request))
        return JSONResponse(health, 200 if health["status"] == "ok" else 503)

    async def _ready(self, request: Request) -> Response:
        ready = self._broker.readiness(self._looker(request))
        return JSONResponse(ready, 200 if ready["ready"] else 503)

    async def _live(self, request: Request) -> Response:
        """Answers as long as anything does: what a supervisor restarts a server by."""
        del request
        return JSONResponse({"live": True})

    async def _reload(self, request: Request) -> Response:
        caller = self._caller(request)
        caller.require("admin", None, "reload")
        async with arriving.body_of(request, self._broker) as body:
            if body.given:
                raise InvalidRequest("a reload takes nothing: what is read again is on the server")
        report = await anyio.to_thread.run_sync(self._broker.reload, limiter=self._threads)
        return JSONResponse({"result": values.to_plain(report)})

    async def _promote(self, request: Request) -> Response:
        """Has this server take its cluster; whether it did, /health says."""
        given = await self._asked_of_cluster(request, "promote", {"force"})
        by_force = given.get("force", False)
        if not isinstance(by_force, bool):
            raise InvalidRequest("force must be true or false")
        self._broker.place.standing.promote(by_force=by_force)
        return JSONResponse({"result": None})

    async def _hand_over(self, request: Request) -> Response:
        """Has this server let go of its cluster; answered when it has."""
        await self._asked_of_cluster(request, "handover", set())
        standing = self._broker.place.standing
        await anyio.to_thread.run_sync(standing.hand_over, HAND_OVER_S, limiter=self._threads)
        return JSONResponse({"result": None})

    async def _asked_of_cluster(
        self, request: Request, doing: str, known: set[str]
    ) -> dict[str, Any]:
        self._caller(request).require("admin", None, doing)
        async with arriving.body_of(request, self._broker) as body:
            strange = sorted(set(body.given) - known)
            if strange:
                raise InvalidRequest(f"{doing} takes no {strange[0][:80]!r}")
            return dict(body.given)

    async def _metrics(self, request: Request) -> Response:
        caller = self._caller(request)
        caller.require("read", None, "metrics")
        page = await run_in_threadpool(self._broker.metrics_page, caller)
        return Response(page, media_type="text/plain; version=0.0.4")

    async def _description(self, request: Request) -> Response:
        del request
        return JSONResponse(openapi.document())

    async def _docs(self, request: Request) -> Response:
        del request
        return HTMLResponse(openapi.page())


_PARTITION = "/v1/topics/{topic}/partitions/{partition}"
_POLL = "/v1/topics/{topic}/groups/{group}/poll"
_RECORDS, _WATCH = f"{_PARTITION}/records", f"{_PARTITION}/watch"


async def _busy(scope: Any, receive: Any, send: Any) -> None:
    answer = failed(Busy("the server is at its limit of max.connections"))
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)


def _note_failed(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
    """Logs what went wrong outside of any request, such as no descriptor for a connection."""
    del loop
    _log.error("HTTP: %s: %r", about.get("message"), about.get("exception"))


QUEUED = 1024
ACCEPT_MIN, ACCEPT_PART = 8, 4
"""Connections are accepted in turns of this part of their limit: they are refused one by one."""


class HttpDoor:
    """The HTTP server, in a thread with an event loop of its own; it listens when made."""

    def __init__(
        self, broker: Broker, context: ssl.SSLContext | None = None, local: str | None = None
    ) -> None:
        settings = broker.settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                (settings.host, settings.http_port), family=family, backlog=QUEUED
            )
        except OSError as error:
            raise refused("http.port", settings.host, settings.http_port, error) from error
        self.port = int(self._socket.getsockname()[1])
        self._sockets = [self._socket]
        if local is not None:
            self._sockets.append(local_sockets.listen(local, QUEUED))
        routes = Routes(broker)
        connections = share_of_door(settings.connections, settings.open_files)
        self._protocol = protocol_of(broker, connections, _busy)
        self._routes = routes
        self._contexts = [context] if context is not None else []
        self._console = routes.console
        self._console.start()
        self._server = uvicorn.Server(
            uvicorn.Config(
                arriving.refusing_strange_heads(routes.application(), failed),
                http=self._protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                backlog=max(ACCEPT_MIN, connections // ACCEPT_PART),
                timeout_keep_alive=max(1, settings.idle_ms // 1000),
                timeout_graceful_shutdown=max(1, settings.drain_ms // 1000),
            )
        )
        self._server.config.load()
        if context is not None:
            self._server.config.ssl = certificates.following(context, self._contexts)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="lamina-http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_note_failed)
        serving = asyncio.ensure_future(self._server.serve(sockets=self._sockets))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        if not serving.done():
            # The loop accepts few at a time, but a crowd waits in the system's queue: what finds
            # that full would try again only after a second. A server that is told to end while it
            # begins has closed its socket by now.
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.listen(QUEUED)
        await serving

    def renew(self, settings: ServerSettings, context: ssl.SSLContext | None) -> None:
        """Takes on what was reloaded: for new connections, and how long those there may be idle."""
        if context is not None:
            self._contexts[0] = context
        self._protocol.idle_s = settings.idle_ms / 1000
        self._server.config.timeout_keep_alive = max(1, settings.idle_ms // 1000)
        self._server.config.timeout_graceful_shutdown = max(1, settings.drain_ms // 1000)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._routes.renew, settings)

    def close(self) -> None:
        """Ends the server once its calls at work are answered."""
        self._console.stop()
        self._server.should_exit = True
        self._thread.join()
        for each in self._sockets:
            each.close()
