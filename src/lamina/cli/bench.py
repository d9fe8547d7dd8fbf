"""`lamina bench`: a short measurement of this machine, in a temporary topic."""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.api import StoreApi


def run(
    store: StoreApi, *, seconds: float, producers: int, batch: int, size_bytes: int
) -> list[dict[str, Any]]:
    """Produces durably for some seconds, reads everything back; returns the figures."""
    if producers < 1 or batch < 1 or seconds <= 0:
        raise InvalidRequest("a bench needs producers, records and some time")
    topic = f"lamina-bench-{secrets.token_hex(4)}"
    store.create_topic(topic)
    try:
        return [
            _produce(store, topic, seconds, producers, [bytes(size_bytes)] * batch),
            _consume(store, topic),
        ]
    finally:
        store.delete_topic(topic)


def _produce(
    store: StoreApi, topic: str, seconds: float, producers: int, values: list[bytes]
) -> dict[str, Any]:
    import pyarrow as pa

    records = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])
    times: list[list[float]] = [[] for _ in range(producers)]
    store.append(topic, records, partition=0)
    deadline = time.perf_counter() + seconds

    def produce(mine: list[float]) -> None:
        while (started := time.perf_counter()) < deadline:
            store.append(topic, records, partition=0)
            mine.append(time.perf_counter() - started)

    started = time.perf_counter()
    threads = [threading.Thread(target=produce, args=(mine,)) for mine in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    all_times = sorted(each for mine in times for each in mine)
    return {
        "what": "produce (fsynced)",
        "records_per_s": round(len(all_times) * len(values) / elapsed),
        "p50_ms": round(statistics.median(all_times) * 1000, 3),
        "p99_ms": round(all_times[int(len(all_times) * 0.99)] * 1000, 3),
    }


def _consume(store: StoreApi, topic: str) -> dict[str, Any]:
    started = time.perf_counter()
    records = sum(batch.num_rows for batch in store.scan(topic))
    elapsed = time.perf_counter() - started
    return {
        "what": "consume",
        "records_per_s": round(records / elapsed),
        "p50_ms": None,
        "p99_ms": None,
    }
