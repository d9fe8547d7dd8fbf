"""A Kafka client that is connected, as the console and the command line show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """One connection. What the client says of itself is cut short, and empty until it has."""

    client_id: str
    software: str
    version: str
    host: str
    key: str
    """The id of its key, `anonymous` where there are no keys; empty before it has presented one."""
    since_ms: int
