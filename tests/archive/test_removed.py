"""What was removed or deleted on purpose, or only looks sound, is not served by the archive."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from lamina.archive.encode import examine
from lamina.archive.object_reader import BlockCache, ColdLog
from lamina.errors import InvalidRequest, RecordsMissing, UnknownTopic
from lamina.formats.scan import Limit
from lamina.formats.strm import write
from lamina.formats.strm.layout import INDEX, INDEX_ENTRY
from lamina.records import INPUT_SCHEMAS
from lamina.storage.paths import ObjectKey, archive_topic_settings
from lamina.store.archive_store import ArchiveStore, archived_topics
from lamina.store.orphans import clean, orphans
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import (
    NOW_MS,
    SETTINGS,
    TOPIC,
    archived,
    memory,
    numbered,
    opened,
    read,
    values,
)
from tests.support.failing_objects import FailingObjects

LATER_MS = 1 << 62


def test_trimmed_records_are_gone_while_their_object_is_still_listed() -> None:
    objects = FailingObjects(memory())
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        for first in (0, 10, 20):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
            store.archive()
        assert store.trim(TOPIC, 0, 10) == 10
        assert objects.size(ObjectKey(TOPIC, 0, 0).name) > 0, "the object is there"
        assert store._partitions[TOPIC, 0]._is_archived(10)
        assert not store._partitions[TOPIC, 0]._is_archived(3)
        with pytest.raises(RecordsMissing) as caught:
            read(store, 3)
        assert (caught.value.first, caught.value.end, caught.value.reason) == (3, 10, "trim")
        assert read(store) == numbered(10, 30)


def test_an_archive_whose_list_still_names_what_was_trimmed_does_not_serve_it() -> None:
    objects = FailingObjects(memory())
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        for first in (0, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
            store.archive()
        store.trim(TOPIC, 0, 10)
        store.tier.metadata.save(  # and then the process dies, before the list is replaced
            next(iter(store.tier._kept.values())).shelf, store._partitions[TOPIC, 0].ledger
        )
        with ArchiveStore(objects) as reading:
            with pytest.raises(RecordsMissing) as caught:
                read(reading, 0)
            assert caught.value.reason == "trim"
            assert read(reading) == numbered(10, 20)


def test_an_index_that_is_sound_but_another_one_is_not_believed() -> None:
    """Between blocks that have a hole, a wrong index contradicts nothing but its checksum."""
    rows = [
        {"offset": offset, "timestamp": NOW_MS, "value": bytes(700_000)} for offset in (0, 5, 10)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=INPUT_SCHEMAS["strm"])
    data = bytearray(write.encode(batch, topic=TOPIC, partition=0, created_at_ms=NOW_MS))
    entry = examine(data, TOPIC, 0)
    second = entry.index_offset + INDEX.size + INDEX_ENTRY.size
    assert struct.unpack_from(">q", data, second) == (5,)
    found = {}
    for offset in (5, 4, 2):
        struct.pack_into(">q", data, second, offset)
        objects = memory()
        objects.create(ObjectKey(TOPIC, 0, 0).name, bytes(data))
        cache = BlockCache()
        cold = ColdLog(objects, TOPIC, 0, INPUT_SCHEMAS["strm"], cache, ask=lambda: (entry,))
        cold.load()
        try:
            batches = list(cold.scan(0, 11, Limit()))
            found[offset] = [each.column("offset")[0].as_py() for each in batches]
        except RecordsMissing as missing:
            found[offset] = missing.reason
        cache.close()
    assert found == {5: [0, 5, 10], 4: [0, 5, 10], 2: "lost"}, "one flipped bit is turned back"


def test_a_deleted_topic_is_hidden_at_once_and_removed_by_the_command() -> None:
    objects, files = memory(), SimulatedFiles()
    with opened(files, objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.create_topic("other", config=SETTINGS)
        for name in (TOPIC, "other"):
            store.append(name, values(0, 10))
            store.roll(name)
        store.archive()
        assert archived(objects) == numbered(0, 10)
        store.delete_topic(TOPIC)
        store.archive()
        with ArchiveStore(objects) as reading:
            assert reading.topics() == ["other"]
            with pytest.raises(UnknownTopic):
                read(reading)
        assert objects.size(ObjectKey(TOPIC, 0, 0).name) > 0, "nothing is removed by itself"

        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 5))
        store.roll(TOPIC)
        with pytest.raises(InvalidRequest, match="lamina tier orphans --execute"):
            store.archive()
        (status,) = [each for each in store.tier_status() if each.topic == TOPIC]
        assert "lamina tier orphans --execute" in status.last_error
        assert read(store) == numbered(0, 5)

        assert orphans(objects, 0) == [], "they are young"
        found = orphans(objects, LATER_MS)
        assert {info.key.split("/")[1] for info in found} == {TOPIC}
        assert found[-1].key == archive_topic_settings(TOPIC), "the mark goes last"
        clean(objects, found[:-1])
        assert TOPIC not in archived_topics(objects), "half of it is not a topic"
        clean(objects, orphans(objects, LATER_MS))
        assert orphans(objects, LATER_MS) == []

        store.archive()
        (status,) = [each for each in store.tier_status() if each.topic == TOPIC]
        assert status.last_error == ""
        assert archived(objects) == read(store) == numbered(0, 5)


def test_deleting_does_not_wait_for_an_archive_that_is_down() -> None:
    objects, files = FailingObjects(memory()), SimulatedFiles()
    store = opened(files, objects)
    store.create_topic(TOPIC, config=SETTINGS)
    store.append(TOPIC, values(0, 10))
    store.roll(TOPIC)
    store.archive()
    objects.fail_at, objects.forever = len(objects.calls), True
    store.delete_topic(TOPIC)
    store.archive()
    assert TOPIC in archived_topics(objects.inner), "it could not be told"
    objects.fail_at = None
    store.close()
    assert TOPIC in archived_topics(objects.inner, deleted=True), "closing tells it"
