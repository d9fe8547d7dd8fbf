"""The schema registry on the HTTP door: Confluent's paths, content type, errors and numbers.

Rules.
1. A path is taken apart before it is decoded: a subject may have any character in its name.
2. A key comes as other doors take it, or as the password of Basic authentication, which is what
   Confluent's clients send (`basic.auth.user.info`); the user's name may be anything.
3. Every answer, errors included, has a form that these clients read: `error_code` and `message`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import anyio
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lamina.errors import InvalidRequest, LaminaError, NotAllowed, NotPrimary, Unavailable
from lamina.server import arriving, auth
from lamina.server.auth import Caller
from lamina.server.broker import Broker
from lamina.server.http_errors import STATUS, Unknown, elsewhere
from lamina.server.subject_answers import ROWS, Call, Row
from lamina.subjects.changes import checked_subject
from lamina.subjects.entries import topic_of
from lamina.subjects.refusal_codes import Refused

MEDIA = "application/vnd.schemaregistry.v1+json"
_HEADS = ("subjects", "schemas", "config", "mode", "compatibility", "contexts", "associations")
_VERBS = ["GET", "POST", "PUT", "DELETE"]
_NAME = "schema registry"
_log = logging.getLogger("lamina.server")


class SubjectRoutes:
    """The handlers of the registry's paths, around one broker."""

    def __init__(
        self,
        broker: Broker,
        caller: Callable[[Request, str | None], Caller],
        threads: anyio.CapacityLimiter,
    ) -> None:
        self._broker = broker
        self._caller = caller
        self._threads = threads

    def routes(self) -> list[Route]:
        """Returns the routes of all paths that belong to the registry."""
        paths = ["/v1/metadata/id", *(f"/{head}" for head in _HEADS)]
        paths += [f"/{head}/{{rest:path}}" for head in _HEADS]
        return [Route(path, self._handle, methods=_VERBS) for path in paths]

    async def _handle(self, request: Request) -> Response:
        try:
            with self._broker.tracing.within(request.headers):
                return await self._answered(request)
        except NotPrimary as error:
            return elsewhere(request, error)
        except LaminaError as error:
            return _failed(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:
            _log.exception("%s %s failed", request.method, request.scope["path"])
            return _failed(LaminaError("the server failed; its log says how"))

    async def _answered(self, request: Request) -> Response:
        header = request.headers.get("authorization")
        caller = self._caller(request, auth.bearer(header) or auth.basic_password(header))
        segments = _segments(request)
        rows = [row for row in ROWS if _named(row.path, segments) is not None]
        row = next((each for each in rows if each.verb == request.method), None)
        if row is None:
            return _refused(405 if rows else 404, "HTTP 405" if rows else "HTTP 404 Not Found")
        named = _named(row.path, segments) or {}
        arriving.query_of(request, row.lists)
        query = request.query_params
        if row.verb not in ("POST", "PUT"):
            return await self._run(caller, row, named, query, {})
        caller.require_scope(row.scope, _NAME)
        async with arriving.body_of(request, self._broker) as body:
            return await self._run(caller, row, named, query, body.given)

    async def _run(
        self,
        caller: Caller,
        row: Row,
        named: dict[str, str],
        query: QueryParams,
        body: dict[str, Any],
    ) -> Response:
        subject = named.get("subject")
        topic = None if subject is None else topic_of(checked_subject(subject))

        def work() -> str:
            guard = self._broker.guarded(caller, _NAME, scope=row.scope, topic=topic)
            with guard as store:
                call = Call(self._broker.renewed(caller), store, named, query, body)
                found = row.answer(call)
            return str(found) if row.is_text else json.dumps(found)

        with self._broker.calls.taking():
            found = await anyio.to_thread.run_sync(work, limiter=self._threads)
        return Response(found, 200, media_type=MEDIA)


def _segments(request: Request) -> list[str]:
    raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode())
    path = raw.partition(b"?")[0].decode("ascii", "replace").strip("/")
    return [unquote(each, errors="replace") for each in path.split("/")] if path else []


def _named(path: str, segments: list[str]) -> dict[str, str] | None:
    """Returns what a request's path says for the names in a row's; None for another path."""
    wanted = path.split("/")
    if len(wanted) != len(segments):
        return None
    found = {}
    for word, given in zip(wanted, segments, strict=True):
        if word.startswith("{"):
            found[word.strip("{}")] = given
        elif word != given:
            return None
    return found


def _failed(error: LaminaError) -> Response:
    status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
    code = 50001
    if isinstance(error, Refused):
        status, code = int(str(error.code)[:3]), error.code
    elif isinstance(error, Unknown):
        status, code = 401, 40101
    elif isinstance(error, NotAllowed):
        code = 40301
    elif isinstance(error, InvalidRequest):
        code = status
    elif isinstance(error, Unavailable):
        code = 50302
    made = _refused(status, str(error), code)
    if status == 401:
        made.headers["www-authenticate"] = 'Basic realm="lamina"'
    return made


def _refused(status: int, message: str, code: int | None = None) -> Response:
    told = {"error_code": code if code is not None else status, "message": message}
    return Response(json.dumps(told), status, media_type=MEDIA)
