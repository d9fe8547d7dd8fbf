"""The OpenAPI page, made from the table of operations and the few routes beside it."""

from __future__ import annotations

import html
import inspect
from typing import Any

from lamina.server.reloading import Reloaded
from lamina.wire import values
from lamina.wire.messages import Poll
from lamina.wire.operations import OPERATIONS, Operation

_TEXT: dict[str, Any] = values.TEXT_OR_BYTES | {
    "anyOf": [*values.TEXT_OR_BYTES["anyOf"], {"type": "null"}]
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {"type": "string"},
        "family": {"type": "string"},
        "message": {"type": "string"},
        "fields": {"type": "object"},
    },
    "required": ["error", "message"],
}
_RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "value": _TEXT,
        "key": _TEXT,
        "tag": _TEXT,
        "node": _TEXT,
        "timestamp_ms": {"anyOf": [{"type": "integer", "format": "int64"}, {"type": "null"}]},
        "headers": {
            "anyOf": [{"type": "array", "items": {"type": "array"}}, {"type": "null"}],
            "description": "Pairs of a name and a value",
        },
    },
    "required": ["value"],
    "additionalProperties": False,
}
_APPENDED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "durability": {"type": "string"},
        "parts": {"type": "object"},
    },
    "required": ["count", "durability", "parts"],
}
_WHERE = [
    {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}},
    {
        "name": "partition",
        "in": "path",
        "required": True,
        "schema": {"type": "integer", "format": "int64"},
    },
]


_AGE: dict[str, Any] = {
    "replica_lag_ms": {
        "type": "integer",
        "format": "int64",
        "description": "How old the answer may be; there if a standby of a cluster gives it.",
    }
}
_FETCHED: dict[str, Any] = {
    "type": "object",
    "properties": {"records": {"type": "array", "items": {"type": "object"}}} | _AGE,
    "required": ["records"],
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _answers(schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    return {
        "200": {"description": "Done", "content": {media: {"schema": schema}}},
        "default": {"description": "An error of Lamina", "content": _json(_ERROR)},
    }


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _described(operation: Operation) -> dict[str, Any]:
    """Describes one row of the table."""
    parameters: list[dict[str, Any]] = []
    body: dict[str, Any] = {}
    required = []
    for name, parameter in operation.signature.parameters.items():
        schema = values.schema_of(operation.hints[name])
        needed = parameter.default is inspect.Parameter.empty
        if f"{{{name}}}" in operation.path:
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
        elif operation.verb == "GET":
            parameters.append({"name": name, "in": "query", "required": needed, "schema": schema})
        else:
            body[name] = schema
            required += [name] if needed else []
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": (inspect.getdoc(operation.method) or "").splitlines()[0],
        "x-scope": operation.scope,
        "parameters": parameters,
        "responses": _answers(
            {
                "type": "object",
                "properties": {"result": values.schema_of(operation.hints["return"])} | _AGE,
                "required": ["result"],
            }
        ),
    }
    if body:
        schema = {"type": "object", "properties": body, "additionalProperties": False}
        schema |= {"required": required} if required else {}
        described["requestBody"] = {"required": bool(required), "content": _json(schema)}
    return described


def _beside() -> dict[str, Any]:
    """Describes the routes that carry records."""
    number = {"type": "integer", "format": "int64"}
    paging = [
        *_WHERE,
        _query("start", number | {"minimum": 0}),
        _query("max_records", number | {"minimum": 1}),
        _query("max_bytes", number | {"minimum": 1}),
    ]
    produced = {
        "type": "object",
        "properties": {
            "records": {"type": "array", "items": _RECORD, "minItems": 1},
            "partition": {"anyOf": [number, {"type": "null"}]},
            "acks": {"type": "string", "enum": ["0", "1", "all", "archived"]},
        },
        "required": ["records"],
        "additionalProperties": False,
    }
    return {
        "/v1/topics/{topic}/records": {
            "post": {
                "operationId": "produce",
                "summary": "Appends records.",
                "x-scope": "write",
                "parameters": _WHERE[:1],
                "requestBody": {"required": True, "content": _json(produced)},
                "responses": _answers(_APPENDED),
            }
        },
        "/v1/topics/{topic}/partitions/{partition}/records": {
            "get": {
                "operationId": "fetch",
                "summary": "Returns records from an offset, waiting for the first up to wait_ms.",
                "x-scope": "read",
                "parameters": [*paging, _query("wait_ms", number | {"minimum": 0})],
                "responses": _answers(_FETCHED),
            }
        },
        "/v1/topics/{topic}/partitions/{partition}/watch": {
            "get": {
                "operationId": "watch",
                "summary": "Sends records as server-sent events, for ever.",
                "x-scope": "read",
                "parameters": paging[:3],
                "responses": _answers({"type": "string"}, "text/event-stream"),
            }
        },
    }


def _polling() -> dict[str, Any]:
    """Describes the route that hands out records of a group."""
    taken = values.schema_of(Poll)["properties"]
    taken = {name: taken[name] for name in taken if name not in ("topic", "group", "kind")}
    body = {"type": "object", "properties": taken, "additionalProperties": False}
    return {
        "/v1/topics/{topic}/groups/{group}/poll": {
            "post": {
                "operationId": "group.poll",
                "summary": "Hands out records of a group, to be acked before their deadline.",
                "x-scope": "write",
                "parameters": [_WHERE[0], _WHERE[0] | {"name": "group"}],
                "requestBody": {"required": False, "content": _json(body)},
                "responses": _answers(_FETCHED),
            }
        }
    }


def _reloading() -> dict[str, Any]:
    """Describes the route by which a server reads its files again."""
    result = {"type": "object", "properties": {"result": values.schema_of(Reloaded)}}
    return {
        "/v1/reload": {
            "post": {
                "operationId": "reload",
                "summary": "Reads keys, certificates and settings again, all of them or none.",
                "x-scope": "admin",
                "parameters": [],
                "responses": _answers(result | {"required": ["result"]}),
            }
        }
    }


def _of_cluster() -> dict[str, Any]:
    """Describes the routes by which a cluster is given to another server."""
    done = {"type": "object", "properties": {"result": {"type": "null"}}, "required": ["result"]}
    force = {"type": "object", "properties": {"force": {"type": "boolean", "default": False}}}
    summaries = {
        "promote": "Has this server take its cluster: what was released, or by force.",
        "handover": "Has this server let go of its cluster; answered when it has.",
    }
    found: dict[str, Any] = {}
    for name, summary in summaries.items():
        about = {
            "operationId": name,
            "summary": summary,
            "x-scope": "admin",
            "parameters": [],
            "responses": _answers(done),
        }
        if name == "promote":
            about["requestBody"] = {"content": {"application/json": {"schema": force}}}
        found[f"/v1/cluster/{name}"] = {"post": about}
    return found


def document() -> dict[str, Any]:
    """Returns the whole description."""
    paths: dict[str, Any] = _beside() | _polling() | _reloading() | _of_cluster()
    for operation in OPERATIONS.values():
        paths.setdefault(operation.path, {})[operation.verb.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lamina", "version": "1", "description": "A durable event log."},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
        "paths": paths,
    }


def page() -> str:
    """Returns the description as one page of HTML, which loads nothing from elsewhere."""
    rows = [
        f"<tr><td><code>{verb.upper()}</code><td><code>{html.escape(path)}</code>"
        f"<td>{html.escape(each['x-scope'])}<td>{html.escape(each['summary'])}"
        for path, verbs in sorted(document()["paths"].items())
        for verb, each in verbs.items()
    ]
    return (
        "<!doctype html><meta charset=utf-8><title>Lamina</title>"
        "<style>body{font:16px sans-serif;margin:2em}td{padding:.2em 1em .2em 0}</style>"
        "<h1>Lamina</h1><p>As <a href=/openapi.json>OpenAPI</a>.<table>"
        f"<tr><th>verb<th>path<th>scope<th>what{''.join(rows)}</table>"
    )
