"""Every API that there is a table for, by its key."""

from __future__ import annotations

from lamina.wire.kafka import (
    connection_apis,
    group_apis,
    record_apis,
    share_apis,
    topic_apis,
    transaction_apis,
)
from lamina.wire.kafka.message_schema import Api

_TABLES = (
    connection_apis,
    record_apis,
    topic_apis,
    group_apis,
    share_apis,
    transaction_apis,
)

APIS: dict[int, Api] = {
    found.key: found
    for table in _TABLES
    for found in vars(table).values()
    if isinstance(found, Api)
}
"""Every API by its key."""
