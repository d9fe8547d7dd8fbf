"""Byte quotas as Kafka has them: an answer at once, and a pause before the next request is read.

A client is told how long (`throttle_time_ms`) and may wait by itself; the server does not rely on
that, and does not read its connection for as long. Records are never refused for a quota.
"""

from __future__ import annotations

from lamina.server.kafka.sessions import Call

PRODUCE = "Produce"
FETCHES = frozenset(("Fetch", "ShareFetch"))
_TOLD_MAX_MS = (1 << 31) - 1


def delay_s(call: Call) -> float:
    """Charges the bytes of a request to its key; returns how long its connection has to wait."""
    if call.name == PRODUCE:
        quota, size_bytes = call.door.broker.quotas.produce, call.size_bytes
    elif call.name in FETCHES:
        quota, size_bytes = call.door.broker.quotas.fetch, call.held_bytes
    else:
        return 0.0
    seconds = quota.charge(call.caller, size_bytes)
    quota.delayed_ms += told_ms(seconds)
    return seconds


def told_ms(seconds: float) -> int:
    """Returns a delay as an answer says it."""
    return min(_TOLD_MAX_MS, round(seconds * 1000))
