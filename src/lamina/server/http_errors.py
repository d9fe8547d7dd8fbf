"""Errors as HTTP: a status by the kind, in headers what a client needs to go on, and JSON.

307 and `location` send a client to the holder of a cluster; `lamina-holder` has all its addresses.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lamina.errors import (
    Busy,
    InvalidRequest,
    LaminaError,
    NotAllowed,
    NotPrimary,
    RecordsMissing,
    SchemaIncompatible,
    StorageFull,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownRouter,
    UnknownSchema,
    UnknownTopic,
)
from lamina.wire import failures

STATUS: dict[type[LaminaError], int] = {
    NotAllowed: 403,
    UnknownRouter: 404,
    UnknownSchema: 404,
    SchemaIncompatible: 409,
    UnknownTopic: 404,
    UnknownGroup: 404,
    TopicExists: 409,
    InvalidRequest: 400,
    StorageFull: 507,
    Unavailable: 503,
    RecordsMissing: 410,
    LaminaError: 500,
}
"""HTTP status of each kind of error; the first that fits."""


class Unknown(NotAllowed):
    """No key, or not a known one: the caller has to say who it is."""


def failed(error: LaminaError) -> Response:
    """Makes the answer of a call that failed."""
    status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
    headers = {}
    if isinstance(error, Unknown):
        status, headers["www-authenticate"] = 401, "Bearer"
    if isinstance(error, Busy):
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return JSONResponse(failures.to_object(error), status, headers)


def elsewhere(request: Request, error: NotPrimary) -> Response:
    """Sends a client to the holder of the cluster: 307, or 503 where nobody is known to be it."""
    answer = failed(error)
    answer.headers["lamina-holder"] = error.holder
    address = error.address(request.scope["scheme"])
    if address is None or error.was_begun:
        answer.headers["retry-after"] = "1"
        return answer
    query = request.scope["query_string"].decode("ascii", "replace")
    path = quote(request.scope["path"], safe="/:")
    answer.headers["location"] = f"{address}{path}{'?' if query else ''}{query}"
    answer.status_code = 307
    return answer
