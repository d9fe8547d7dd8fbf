"""A version that comes while a reader is under way: what it wrote is no bad record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.api import StoreApi, TopicSchema
from lamina.formats.typed.value_codec import TypedReader
from tests.server.rig import served


def version(*more: str) -> str:
    """A schema that has a number, and texts that may be there."""
    texts = [{"name": name, "type": ["null", "string"], "default": None} for name in more]
    fields = [{"name": "id", "type": "long"}, *texts]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


@pytest.fixture(params=["embedded", "served"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreApi]:
    path = tmp_path / "data"
    if request.param == "embedded":
        with lamina.open(str(path)) as opened:
            yield opened
        return
    with served(path) as service, lamina.connect(service.flight_url) as connected:
        yield connected


def test_what_a_new_version_wrote_is_read_by_those_who_are_reading(store: StoreApi) -> None:
    store.create_topic("orders", partitions=2, schema=version())
    store.append("orders", pa.table({"id": [1]}), partition=0)
    reading = store.read("orders")
    first = next(reading)["id"].to_pylist()
    store.set_schema("orders", version("note"))
    store.append("orders", pa.table({"id": [2], "note": ["n"]}), partition=1)
    rest = [number for batch in reading for number in batch["id"].to_pylist()]
    assert (first, rest) == ([1], [2])
    assert reading.schema.names[4:] == ["id"]


def test_versions_are_asked_for_once_in_a_batch_whatever_ids_it_has() -> None:
    kinds = [version(), version("note")]
    known = [
        TopicSchema("t", number, number + 5, "avro", "registry", "", "NONE", text, b"")
        for number, text in enumerate(kinds, 1)
    ]
    asked = []

    def later() -> list[TopicSchema]:
        asked.append(True)
        return known

    reader = TypedReader("t", known[:1], with_errors=True, later=later)
    new = b"\0\0\0\0\x07\x08\0"
    values = [new, *(b"\0\0\0\1" + bytes([number]) + b"\x02" for number in range(200)), None, new]
    batch = pa.record_batch(
        {
            "offset": pa.array(range(len(values))),
            "timestamp": pa.array([0] * len(values)).cast(pa.timestamp("ms", tz="UTC")),
            "value": pa.array(values, pa.binary()),
        }
    )
    for _ in range(2):
        rows, _ = reader.rows(batch, 0)
        assert rows["id"].to_pylist() == [4, *[None] * 201, 4]
        told = rows["_error"].to_pylist()
        assert (told[0], told[-2:], len(set(told[1:-2]))) == (None, [None, None], 1)
        assert told[1].startswith("a schema id that nobody knows")
    assert len(asked) == 2, "they may come to be known, so each batch asks again"
