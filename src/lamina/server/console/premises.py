"""The server itself: what it runs, on which disk, with which settings; its keys and its limits.

Rules.
1. All of this concerns every topic: a key with a prefix sees its own scope and limits, no more.
2. Neither a key nor its hash is ever part of a page: an id, what the key may, and its note.
"""

from __future__ import annotations

import platform
import time
from typing import Any

from lamina import __version__
from lamina.errors import NotAllowed
from lamina.server.broker import Broker
from lamina.server.console.looks import View
from lamina.storage import machine

LIMITS = (
    *("max.connections", "open.files.max", "max.request.bytes", "max.inflight.bytes"),
    *("max.wait.ms", "max.waiting", "rate.requests", "idle.ms", "drain.ms"),
    *("quota.produce.bytes", "quota.fetch.bytes", "disk.free.min.bytes"),
)
"""The settings that bound what callers may do."""
KEYS_MAX = 500


def _broker(view: View) -> Broker:
    assert view.broker is not None, "a page is served by a broker"
    return view.broker


def broker(view: View) -> dict[str, Any]:
    """Describes the server: version, since when, disk, health, settings, the last recovery."""
    if view.caller.prefix:
        raise NotAllowed(f"the server is described to keys of all topics, not of {_mine(view)}")
    store, server = view.store, _broker(view)
    space = machine.space_of(store.path)
    report = store.recovery_report
    kinds: dict[str, int] = {}
    for event in report.events:
        kinds[event.kind] = kinds.get(event.kind, 0) + 1
    return {
        "version": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {machine.processors()} processors",
        "process": machine.process_id(),
        "started_ms": view.started_ms,
        "now_ms": time.time_ns() // 1_000_000,
        "data": store.path,
        "disk": {
            "total_bytes": space.total_bytes,
            "free_bytes": space.free_bytes,
            **_held(view),
        },
        "health": server.health(view.caller),
        "settings": _settings(server),
        "recovery": {
            "milliseconds": report.milliseconds,
            "kinds": [{"kind": kind, "events": events} for kind, events in kinds.items()],
        },
    }


def _mine(view: View) -> str:
    return f"{view.caller.prefix!r}…"


def _held(view: View) -> dict[str, int]:
    parts = [part for each in view.store.extents().values() for part in each]
    return {"log_bytes": sum(part.size_bytes for part in parts)}


def _settings(server: Broker) -> list[dict[str, Any]]:
    values = server.settings.as_dict()
    return [
        {
            "key": row["key"],
            "value": values[row["key"]],
            "changed": values[row["key"]] != row["default"],
            "unit": row["unit"],
            "consequence": row["consequence"],
        }
        for row in server.settings.explained()
    ]


def keys(view: View) -> dict[str, Any]:
    """Returns who may do what, and how much of each limit is used now.

    The keys are listed for admins of all topics; everybody sees what their own key may do.
    """
    server, caller = _broker(view), view.caller
    rules_all = caller.scope == "admin" and not caller.prefix
    known = server.keys.known() if rules_all and server.keys is not None else None
    used = {
        "max.connections": server.calls.used + server.streams.used,
        "max.inflight.bytes": server.inflight.used,
        "max.waiting": server.waiting.used,
    }
    limits = [row for row in _settings(server) if row["key"] in LIMITS]
    for row in limits:
        row["used"] = used.get(row["key"]) if not caller.prefix else None
    return {
        "needs_key": server.asks_for_keys,
        "caller": {"name": caller.name, "scope": caller.scope, "prefix": caller.prefix},
        "keys": None
        if known is None
        else [
            {
                "id": each.name,
                "scope": each.scope,
                "prefix": each.prefix,
                "note": note,
                "produce_bytes": each.produce_bytes,
                "fetch_bytes": each.fetch_bytes,
            }
            for each, note in known[:KEYS_MAX]
        ],
        "total": 0 if known is None else len(known),
        "limits": limits,
    }


PREMISES = {"broker": broker, "keys": keys}
"""Every feed of the server itself by its name in the path."""
