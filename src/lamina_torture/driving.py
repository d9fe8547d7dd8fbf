"""Clients of one log through every door at once, each writing down what it asked and was told.

    embedded   threads of the process that has the store open and serves it
    flight     `lamina.connect`, which asks again by itself
    http       JSON, asked once

Kafka's libraries are in `kafka_driving`, Spark in `spark_driving`.

A client sends values that nobody else sends, reads on from where it was, and asks for ends. What
it writes down is a history for `histories`.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from lamina.errors import InvalidRequest, LaminaError
from lamina.store.store import Store
from lamina.wire import failures
from lamina_torture.histories import Operation, Outcome

TOPIC = "events"
PARTITIONS = 2
POLL_RECORDS = 40
_ANSWER_S = 20
Note: TypeAlias = Callable[[Operation], None]


class Unanswered(Exception):
    """Whether it was done is not known."""


class Door(Protocol):
    """A way to the log."""

    sends_most: int
    """How many values it appends as one."""

    def send(self, partition: int, values: list[bytes]) -> int:
        """Appends; returns the first offset."""

    def fetch(self, partition: int, start: int) -> list[tuple[int, str]]:
        """Reads from an offset on."""

    def end(self, partition: int) -> int:
        """Returns the end."""


class StoreDoor:
    """An embedded store, or a served one: they have the same methods."""

    sends_most = 3

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, partition: int, values: list[bytes]) -> int:
        """Appends as Arrow where there are several, plain where there is one."""
        records: Any = values[0] if len(values) == 1 else _batch(values)
        return self._store.append(TOPIC, records, partition=partition).base_offset

    def fetch(self, partition: int, start: int) -> list[tuple[int, str]]:
        """Waits a little for what is new."""
        batch = self._store.fetch(TOPIC, partition, start, max_records=POLL_RECORDS, wait_ms=20)
        values = [value.decode() for value in batch.column("value").to_pylist()]
        return list(zip(batch.column("offset").to_pylist(), values, strict=True))

    def end(self, partition: int) -> int:
        """Asks for the durable end."""
        return self._store.latest_offset(TOPIC, partition)


def _batch(values: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], ["value"])


class HttpDoor:
    """JSON, one connection a call."""

    sends_most = 3

    def __init__(self, port: int) -> None:
        self._port = port

    def _ask(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
        try:
            connection.request(verb, f"/v1/topics/{TOPIC}/{path}", json.dumps(body or {}))
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unanswered from error
        finally:
            connection.close()
        if answer.status != 200:
            raise failures.from_object(told)
        return told

    def send(self, partition: int, values: list[bytes]) -> int:
        """Produces."""
        records = [{"value": value.decode()} for value in values]
        told = self._ask("POST", "records", {"records": records, "partition": partition})
        return int(told["parts"][str(partition)]["base_offset"])

    def fetch(self, partition: int, start: int) -> list[tuple[int, str]]:
        """Waits a little for what is new."""
        asked = f"start={start}&max_records={POLL_RECORDS}&wait_ms=20"
        rows = self._ask("GET", f"partitions/{partition}/records?{asked}")["records"]
        return [(row["offset"], row["value"]) for row in rows]

    def end(self, partition: int) -> int:
        """Asks for the durable end."""
        return int(self._ask("GET", f"partitions/{partition}/latest")["result"])


class Client:
    """One client of a door: its name is part of every value that it sends."""

    def __init__(
        self,
        name: str,
        door: Door,
        *,
        first: int,
        seed: object,
        note: Note,
        pause_s: float = 0.0,
    ) -> None:
        self._name = name
        self._pause_s = pause_s
        self._door = door
        self._luck = random.Random(f"{seed} {name}")  # noqa: S311
        self._note = note
        self._sent = 0
        self._positions = dict.fromkeys(range(PARTITIONS), first)
        self.errors: list[LaminaError] = []

    def run(self, ended: threading.Event) -> None:
        """Makes one call of each kind, then any, until it is told to end."""
        for call in (self._send, self._poll, self._end):
            call(0)
        while not ended.wait(self._pause_s):
            partition = self._luck.randrange(PARTITIONS)
            self._luck.choice((self._send, self._send, self._poll, self._end))(partition)

    def _send(self, partition: int) -> None:
        count = min(self._luck.choice((1, 1, 3)), self._door.sends_most)
        values = [f"{self._name}-{self._sent + row}" for row in range(count)]
        self._sent += count
        began = time.monotonic_ns()
        asked = Operation("send", self._name, partition, began, 1 << 62, "info", tuple(values))
        self._note(asked)  # should this process die now, it is known that it was asked
        outcome, base = self._asked(self._door.send, partition, [v.encode() for v in values])
        # One that is stored already may be answered without its offset.
        found = tuple(enumerate(values, base)) if outcome == "ok" and base >= 0 else ()
        ended = time.monotonic_ns()
        self._note(dataclasses.replace(asked, ended_ns=ended, outcome=outcome, found=found))

    def _poll(self, partition: int) -> None:
        start, began = self._positions[partition], time.monotonic_ns()
        outcome, rows = self._asked(self._door.fetch, partition, start)
        if outcome != "ok":
            return
        self._positions[partition] = rows[-1][0] + 1 if rows else start
        ended = time.monotonic_ns()
        self._note(
            Operation("poll", self._name, partition, began, ended, "ok", (), tuple(rows), start)
        )

    def _end(self, partition: int) -> None:
        began = time.monotonic_ns()
        outcome, end = self._asked(self._door.end, partition)
        if outcome == "ok":
            ended = time.monotonic_ns()
            self._note(Operation("end", self._name, partition, began, ended, "ok", end=end))

    def _asked(self, call: Callable[..., Any], *given: Any) -> tuple[Outcome, Any]:
        """Calls; an error that is ours and says that the call was wrong means: not done."""
        try:
            return "ok", call(*given)
        except InvalidRequest as error:
            self.errors.append(error)
            return "fail", None
        except (LaminaError, Unanswered):
            time.sleep(0.02)
            return "info", None
