"""Lamina behind its server: `lamina serve` on loopback, clients over Arrow Flight."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import threading
from collections.abc import Sequence

import pyarrow as pa

import lamina
from benchmarks.field.embedded import TOPIC, Read, batch_of
from benchmarks.field.queues import with_threads
from benchmarks.field.system import FSYNC, HOST, IN_FLIGHT, Server, free_port

CLIENTS = 4
JOINED = 8
"""The batches of a request, at most."""


class Served(Read, Server):
    """One client, which has several batches under way on its stream."""

    name = "Lamina served"
    kind = "served"
    start_s = 1.5
    clients = 1
    idempotent = False
    """What no other client here is, and costs an fsync more: like is compared with like."""

    @classmethod
    def version(cls) -> str:
        return f"{importlib.metadata.version('lamina')}, Arrow Flight"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "lamina", "serve", "--data", os.path.join(self.folder, "data")),
            *("--quiet", "--set", f"flight.port={self.port}"),
            *("--set", f"http.port={free_port()}", "--set", "kafka.port=-1"),
        ]

    def connect(self) -> None:
        self.store = self._connected()
        self.connections = [self._connected() for _ in range(self.clients)]
        if TOPIC not in self.store.topics():
            self.store.create_topic(TOPIC, format="keratin")
        self.acks: object = "all" if self.durability == FSYNC else 1

    def _connected(self) -> lamina.RemoteStore:
        return lamina.connect(f"grpc://{HOST}:{self.port}", idempotent=self.idempotent)

    def disconnect(self) -> None:
        for client in (self.store, *self.connections):
            client.close()

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[pa.RecordBatch]:
        return [batch_of(batch) for batch in values]

    def produce(self, values: Sequence[pa.RecordBatch]) -> None:
        """Requests of several batches, as Kafka's client makes them; as many batches under way."""
        each = min(JOINED, IN_FLIGHT // self.clients)
        requests = iter(range(0, len(values), each))
        turn = threading.Lock()

        def run(client: lamina.RemoteStore) -> None:
            while True:
                with turn:
                    start = next(requests, None)
                if start is None:
                    return
                joined = pa.Table.from_batches(values[start : start + each])
                client.append(TOPIC, joined, partition=0, acks=self.acks)

        threads = [
            threading.Thread(target=run, args=(client,))
            for client in self.connections
            for _ in range(IN_FLIGHT // each // self.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def produce_each(self, values: Sequence[pa.RecordBatch]) -> None:
        for batch in values:
            self.store.append(TOPIC, batch, partition=0, acks=self.acks)

    def append(self, value: bytes) -> None:
        self.store.append(TOPIC, value, partition=0, acks=self.acks)

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        def make() -> object:
            client = self._connected()
            return lambda: client.append(TOPIC, value, partition=0, acks=self.acks)

        return with_threads(producers, seconds, make)


class ServedByMany(Served):
    """Several clients at once, each with its own connection."""

    name = "Lamina served, 4 clients"
    clients = CLIENTS


class ServedOnce(ServedByMany):
    """The client's default: whatever is sent again after a broken connection is stored once."""

    name = "Lamina served, 4 idempotent clients"
    idempotent = True
