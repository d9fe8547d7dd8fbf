"""The registry of a store: durable, one with its typed topics, in the archive as they are."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest, SchemaIncompatible
from lamina.formats.documents import topic_schemas
from lamina.storage.files import LocalFiles
from lamina.storage.objects import open_objects
from lamina.store.opening import Boot
from lamina.store.restore import restore
from lamina.store.store import Store
from lamina.subjects import changes, entries
from lamina.subjects.book import Book, anything
from lamina.subjects.changes import asked
from lamina.subjects.entries import TOPIC, Registered
from lamina_torture.simulated import SimulatedFiles
from tests.store.seat_rig import NEVER_MS
from tests.store.test_typed_topics import ROWS, WIDER, Order, opened


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


ID: dict[str, Any] = {"name": "id", "type": "long"}
ONE, TWO = record(ID), record(ID, {"name": "item", "type": "string", "default": "-", "doc": "?"})
MAIL_LIKE = record(ID, {"name": "to", "type": "string", "default": ""})
MAIL = '{"type":"object","properties":{"to":{"type":"string"}},"additionalProperties":false}'


def register(store: Store, subject: str, text: str, **more: Any) -> Registered:
    body = asked({"schema": text, **more})
    return store.schema_registry().change(
        lambda book: changes.registering(book, subject, body, anything)
    )


def set_level(store: Store, subject: str, level: str) -> None:
    store.schema_registry().change(lambda book: ([entries.LevelSet(subject, level)], None))


def delete(store: Store, subject: str, *, permanent: bool = False) -> None:
    store.schema_registry().change(
        lambda book: changes.deleting_subject(book, subject, permanent=permanent)
    )


def told(book: Book) -> dict[str, list[tuple[int, int]]]:
    return {
        name: [(each.version, each.id) for each in book.versions(name)] for name in book.subjects
    }


def ids(store: Any, topic: str) -> list[int]:
    return [each.id for each in store.schemas(topic)]


def test_what_is_registered_outlives_the_store_and_is_seen_beside_it(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        assert store.schema_registry().book().subjects == {}
        assert store.topics() == [], "looking makes nothing"
        assert [register(store, "s", text).id for text in (ONE, TWO, ONE)] == [1, 2, 1]
        set_level(store, "s", "FULL")
        store.flush()
        with lamina.open(str(tmp_path / "data"), read_only=True) as reader:
            assert reader.schema_registry().book() == store.schema_registry().book()
            assert register(store, "t", TWO).id == 2
            store.flush()
            assert told(reader.schema_registry().book())["t"] == [(1, 2)], "a reader follows"
        kept = store.schema_registry().book()
    with opened(tmp_path / "data") as store:
        assert store.schema_registry().book() == kept
        assert register(store, "u", MAIL, schemaType="JSON").id == 3


def test_concurrent_registrations_of_one_schema_give_one_id(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        found: list[tuple[int, int]] = []
        ready = threading.Barrier(8)

        def work(number: int) -> None:
            ready.wait()
            for text in (ONE, TWO):
                found.append((0, register(store, f"both-{number % 2}", text).id))
            text = record({"name": f"own{number}", "type": "int"})
            found.append((number + 1, register(store, f"own-{number}", text).id))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len({each for whose, each in found if whose == 0}) == 2
        assert {each for _, each in found} == set(range(1, 11)), "ids are dense"
        with lamina.open(str(tmp_path / "data"), read_only=True) as reader:
            store.flush()
            assert reader.schema_registry().book() == store.schema_registry().book()


KILLED = """
import sys
import lamina
from tests.store.test_schema_registry import record, register
store = lamina.open(sys.argv[1])
for number in range(10_000):
    version = register(store, "s", record({"name": f"f{number}", "type": ["null", "int"],
                                           "default": None}))
    print(version.id, flush=True)
"""


def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    data, last = str(tmp_path / "data"), 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, data], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(5):
            answered = int(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdout.close()
        last = max(last, answered)
        with opened(tmp_path / "data") as store:
            known = store.schema_registry().book().versions("s")
            assert [each.id for each in known] == list(range(1, len(known) + 1))
            assert len(known) >= last
            last = len(known)


def test_what_was_answered_is_there_after_power_is_lost(tmp_path: Path) -> None:
    files, kept = SimulatedFiles(), 0
    for text in (ONE, TWO, '"int"'):
        store = Store("/data", files=files, tick_ms=NEVER_MS)
        assert len(store.schema_registry().book().versions("s")) == kept
        set_level(store, "s", "NONE")
        register(store, "s", text)
        store.create_topic(f"t{kept}")
        register(store, f"t{kept}-value", ONE)
        files, kept = files.snapshot().crash("dropped"), kept + 1
    with Store("/data", files=files, tick_ms=NEVER_MS) as store:
        assert told(store.schema_registry().book())["s"] == [(1, 1), (2, 2), (3, 3)]
        assert [ids(store, f"t{number}") for number in range(3)] == [[1]] * 3


# ---------------------------------------------------------------------- typed topics


def test_a_topics_own_schema_is_its_subject(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order, key="id")
        store.set_schema("orders", WIDER, compatibility="NONE")
        store.create_topic("mails", schema=MAIL, encoding="json")
        store.create_topic("rides", schema=Order, encoding="protobuf")
        book = store.schema_registry().book()
        assert told(book) == {
            "orders-value": [(1, 1), (2, 2)], "mails-value": [(1, 3)], "rides-value": [(1, 4)]
        }  # fmt: skip
        assert book.level("orders-value") == "NONE"
        languages = [book.versions(f"{name}-value")[0].schema.language for name in store.topics()]
        assert languages == ["JSON", "AVRO", "PROTOBUF"]
        assert TOPIC not in store.topics(), "until a client registers something"
        kept = told(book)
        with lamina.open(str(tmp_path / "data"), read_only=True) as reader:
            assert told(reader.schema_registry().book()) == kept
            store.create_topic("brief", schema=ONE)
            assert told(reader.schema_registry().book()) == kept | {"brief-value": [(1, 5)]}
            store.delete_topic("brief")
    with opened(tmp_path / "data") as store:
        assert told(store.schema_registry().book()) == kept
        assert register(store, "other", ONE).id == 5
        assert register(store, "orders-value", WIDER).version == 2, "it is the same schema"
    with opened(tmp_path / "data") as store:
        assert told(store.schema_registry().book()) == kept | {"other": [(1, 5)]}
        store.set_schema("rides", pa.schema([*store.schema("rides").arrow, ("more", pa.int64())]))
        assert told(store.schema_registry().book())["rides-value"] == [(1, 4), (2, 6)]
        assert ids(store, "rides") == [4, 6]
        store.create_topic("again", schema=WIDER)
        assert ids(store, "again") == [2]


def test_a_schema_that_is_registered_for_a_topic_gives_it_columns(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders")
        store.append("orders", [b"\0\0\0\0\1\x02", b"\0\0\0\0\2\x04\x02x", b"plain"])
        register(store, "orders-value", ONE)
        register(store, "orders-value", TWO)
        register(store, "later-value", TWO)
        assert ids(store, "orders") == [1, 2]
        rows = store.read("orders", errors="null").read_all()
        assert rows["id"].to_pylist() == [1, 2, None]
        assert rows["item"].to_pylist() == ["-", "x", None]
        store.create_topic("later")
        assert ids(store, "later") == [2], "also for a topic that comes later"
        store.append("later", pa.table({"id": [7], "item": ["y"]}))
        (batch,) = store.scan("later")
        assert batch["value"].to_pylist() == [b"\0\0\0\0\2\x0e\x02y"]
    with lamina.open(str(tmp_path / "data"), read_only=True) as reader:
        assert reader.read("orders", 0, 0, end=2).read_all()["id"].to_pylist() == [1, 2]


def test_levels_of_a_topic_and_of_its_subject_are_one(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=ONE)
        set_level(store, "orders-value", "NONE")
        assert store.schema("orders").compatibility == "NONE"
        store.set_schema("orders", record({"name": "x", "type": "int"}))
        store.set_schema("orders", record({"name": "y", "type": "int"}), compatibility="NONE")
        store.set_schema("orders", record({"name": "y", "type": "int"}), compatibility="FULL")
        assert store.schema_registry().book().levels == {"orders-value": "FULL"}
        strict = record(ID, {"name": "must", "type": "int"})
        with pytest.raises(SchemaIncompatible):
            store.set_schema("orders", strict)
        with pytest.raises(InvalidRequest, match="incompatible with an earlier schema"):
            register(store, "orders-value", strict)
        store.schema_registry().change(
            lambda book: changes.taking_back(book, "orders-value", is_level=True)
        )
        assert store.schema("orders").compatibility == "BACKWARD"
        set_level(store, "new-value", "NONE")
        store.create_topic("new", schema=ONE)
        assert store.schema("new").compatibility == "NONE"


def test_what_has_no_columns_is_registered_and_leaves_the_topic_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=ONE)
        store.create_topic("texts")
        set_level(store, "", "NONE")
        set_level(store, "orders-value", "NONE")
        for text in ('"string"', record({"name": "x", "type": ["int", "string"]})):
            register(store, "texts-value", text)
        register(store, "orders-value", MAIL, schemaType="JSON")
        register(store, "orders-value", record({"name": "_offset", "type": "int"}))
        assert ids(store, "texts") == []
        assert ids(store, "orders") == [1]
        assert len(store.schema_registry().book().versions("orders-value")) == 3
        register(store, "orders-value", TWO)
        assert len(ids(store, "orders")) == 2


def test_deleting_a_subject_leaves_records_readable_and_does_not_undo_itself(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        store.append("orders", ROWS)
        delete(store, "orders-value")
        delete(store, "orders-value", permanent=True)
    with opened(tmp_path / "data") as store:
        assert told(store.schema_registry().book()) == {}
        assert store.read("orders").read_all().num_rows == 3
        assert register(store, "s", ONE).id == 2, "no id is given twice"


def test_a_file_that_could_not_follow_does_so_with_the_next_registration(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders")
        register(store, "orders-value", ONE)
        (tmp_path / "data/topics/orders/schemas.json").unlink()
        assert ids(store, "orders") == []
        assert register(store, "orders-value", ONE).id == 1
        assert ids(store, "orders") == [1]


def test_ids_of_a_topic_from_elsewhere_that_are_anothers_here_stay_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        register(store, "s", ONE)
        store.create_topic("orders", schema=TWO)
        path = tmp_path / "data/topics/orders/schemas.json"
        made = topic_schemas.decode(path.read_bytes())
        clash = topic_schemas.Entry(1, 1, made.schemas[0].text)
        path.write_bytes(topic_schemas.encode(topic_schemas.TopicSchemas(
            made.topic, made.created_ms, made.encoding, made.framing, made.key,
            made.compatibility, (clash,),
        )))  # fmt: skip
    with opened(tmp_path / "data") as store:
        assert ids(store, "orders") == [1]
        assert told(store.schema_registry().book())["s"] == [(1, 1)]


# ---------------------------------------------------------------------- the topic


def test_others_may_write_the_topic_and_are_followed(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        register(store, "s", ONE)
        rows = [entries.encode(Registered("far", 1, 9, entries.Schema(TWO))), (b"\xff", b"?")]
        columns = [pa.array(each, pa.binary()) for each in zip(*rows, strict=True)]
        store.append(TOPIC, pa.RecordBatch.from_arrays(columns, ["key", "value"]))
        assert told(store.schema_registry().book()) == {"s": [(1, 1)], "far": [(1, 9)]}
        assert register(store, "t", '"int"').id == 10
        store.delete_topic(TOPIC)
        assert store.schema_registry().book().subjects == {}


@pytest.mark.parametrize("more", [{"format": "frame", "partitions": 2}, {"format": "wal"}])
def test_a_topic_that_cannot_be_a_registry_is_named(tmp_path: Path, more: Any) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic(TOPIC, **more)
        with pytest.raises(InvalidRequest, match="one partition"):
            register(store, "s", ONE)
        store.create_topic("orders", schema=Order)
        assert told(store.schema_registry().book()) == {"orders-value": [(1, 1)]}, (
            "others do without it"
        )


def test_who_reads_a_book_is_not_disturbed_by_who_writes(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        for number, change in enumerate((register, register, set_level, delete, register)):
            book = store.schema_registry().book()
            kept = copy.deepcopy(book)
            given = {register: (MAIL_LIKE if number else ONE,), set_level: ("NONE",)}
            change(store, "s", *given.get(change, ()))
            assert store.schema_registry().book() != kept
            assert book == kept
        assert told(store.schema_registry().book()) == {"s": [(3, 2)]}


def test_what_topics_knew_before_lasts_longer_than_they_do(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        register(store, "s", MAIL, schemaType="JSON")
        store.delete_topic("orders")
    with opened(tmp_path / "data") as store:
        assert told(store.schema_registry().book()) == {"orders-value": [(1, 1)], "s": [(1, 2)]}


def test_the_archive_has_the_registry_and_a_restore_brings_it_back(tmp_path: Path) -> None:
    archive = open_objects("memory://")
    with opened(tmp_path / "data", archive=archive) as store:
        store.create_topic("orders", config={"remote.storage.enable": "true"}, schema=Order)
        for text in (ONE, TWO):
            register(store, "s", text)
        set_level(store, "s", "FULL")
        kept = store.schema_registry().book()
        for topic in (TOPIC, "orders"):
            store.roll(topic, 0)
        store.archive()
    restore(archive, Boot(LocalFiles(), str(tmp_path / "data2"), lambda: 1))
    with opened(tmp_path / "data2", archive=archive) as store:
        assert store.schema_registry().book() == kept
        assert register(store, "t", MAIL, schemaType="JSON").id == 4
