"""What a client loads, measured in a fresh process: no compiler, no kernel, no storage engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.rig import served

ENGINE = ("formats", "storage", "log", "wal", "groups", "archive", "inspect", "store", "server")
EVERYTHING = """
import importlib, pkgutil, sys
import lamina, lamina.client, lamina.wire
for package in (lamina.client, lamina.wire):
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")
lamina.RemoteStore, lamina.Producer, lamina.Consumer, lamina.TopicPartition, lamina.ProducerStamp
"""
USED = """
import sys
import lamina
store = lamina.connect(sys.argv[1])
with store, lamina.Producer(store) as producer:
    store.create_topic("plain")
    store.append("plain", [b"first"])
    producer.produce("plain", b"second")
    producer.flush()
    consumer = lamina.Consumer(store, {"group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["plain"])
    assert [each.value() for each in consumer.consume(2, 5)] == [b"first", b"second"]
    consumer.close()
    group = store.group("plain", "workers")
    assert group.ack(group.poll()) == 2
    assert store.describe_group("plain", "workers").lag == 0
"""
KEYED = """
    store.create_topic("keyed", partitions=2)
    store.append("keyed", [(b"key", b"value"), (b"other", b"value")])
"""


def loaded(program: str, *arguments: str) -> set[str]:
    told = [sys.executable, "-c", f"{program}\nprint(*sys.modules)", *arguments]
    said = subprocess.run(told, check=True, capture_output=True, text=True, timeout=120)
    return set(said.stdout.split())


def heavy(modules: set[str]) -> list[str]:
    engine = tuple(f"lamina.{name}" for name in ENGINE)
    return sorted(
        name
        for name in modules
        if name in ("numba", "llvmlite", "obstore", *engine)
        or name.startswith(tuple(f"{each}." for each in engine))
    )


def test_importing_the_client_loads_no_engine() -> None:
    found = loaded(EVERYTHING)
    assert {"lamina.client.remote_store", "lamina.wire.operations", "lamina.api"} <= found
    assert heavy(found) == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    path: Path = tmp_path_factory.mktemp("served")
    with served(path) as service:
        yield service.flight_url


def test_appending_reading_and_consuming_load_no_engine(server: str) -> None:
    assert heavy(loaded(USED, server)) == []


def test_only_keyed_records_for_several_partitions_load_a_kernel(server: str) -> None:
    found = heavy(loaded(USED.replace("plain", "again") + KEYED, server))
    assert "numba" in found
    keeps = ("", ".kernel_cache", ".programs", ".background_work")  # the last without a cache
    kept_in = {f"lamina.storage{each}" for each in keeps}
    others = {name for name in found if name.startswith("lamina.")} - kept_in
    assert {name.split(".")[1] for name in others} == {"formats"}


def test_a_module_of_the_engine_would_be_seen() -> None:
    assert heavy({"lamina.log.commit", "lamina.client.calls", "lamina.logs", "os"}) == [
        "lamina.log.commit"
    ]
