"""Calls an operation of a served store: its arguments as JSON, its answer as the typed value."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyarrow import flight

from lamina.client.connection import Connection, Patience
from lamina.wire import messages, values
from lamina.wire.operations import Operation


def call(
    connection: Connection,
    operation: Operation,
    given: dict[str, Any],
    held: pa.RecordBatch | None = None,
) -> Any:
    """Asks the server; `held` are the records that the operation is about, where it has any.

    What is not the same done twice is asked again only where the server has refused it.
    """
    action = flight.Action(operation.name, messages.encode_call(given, held))
    patience = Patience.of(connection.timeout_s)

    def ask(options: Any) -> bytes:
        (result,) = connection.client.do_action(action, options)
        answer: bytes = result.body.to_pybytes()
        return answer

    answer = connection.repeat(ask, patience, only_refused=not operation.repeatable)
    return values.from_plain(operation.hints["return"], json.loads(answer), operation.name)
