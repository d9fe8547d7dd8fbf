"""One stream over archived, sealed and growing segments, wherever the seam lies and moves."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.archive import object_reader as cold_reading
from lamina.archive import uploader
from lamina.errors import ArchiveUnavailable, CorruptData, Fenced, InvalidRequest, RecordsMissing
from lamina.formats.strm.layout import Coding
from lamina.storage.objects import Objects
from lamina.storage.paths import ObjectKey, archive_ledger, archive_manifest
from lamina.store.archive_store import ArchiveStore
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import (
    DATA,
    NOW_MS,
    SETTINGS,
    TOPIC,
    archived,
    attempt,
    memory,
    numbered,
    opened,
    read,
    table,
    values,
)
from tests.formats.test_strm_by_hand import ORDERS, VECTOR, read_by_hand
from tests.support.failing_objects import FailingObjects

END = 40


def seal_at(store: Store, edges: list[int]) -> None:
    """Appends `END` records with a segment border at each edge."""
    first = 0
    for edge in [*edges, END]:
        store.append(TOPIC, values(first, edge - first))
        if edge < END:
            store.roll(TOPIC)
        first = edge


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_the_seam_at_every_offset_is_read_from_every_offset(format_name: str) -> None:
    config = SETTINGS | {"segment.bytes": 1 << 20}
    for seam in range(1, END):
        with opened(SimulatedFiles(), memory()) as store:
            store.create_topic(TOPIC, format=format_name, config=config)
            seal_at(store, [seam])
            before = table(store.scan(TOPIC))
            store.archive()
            assert store._partitions[TOPIC, 0].layout.earliest_offset == seam
            assert table(store.scan(TOPIC)).equals(before)
            for start in range(END):
                assert read(store, start, max_records=7) == numbered(start, END)
                batch = store.fetch(TOPIC, 0, start, max_bytes=1)
                assert batch.column("offset").to_pylist() == [start]
            assert read(store, 0, end=seam + 1) == numbered(0, min(END, seam + 1))
            assert store.gaps(TOPIC) == ()


def test_a_reader_that_has_begun_goes_on_while_the_seam_passes_it() -> None:
    for passed in range(END):
        with opened(SimulatedFiles(), memory()) as store:
            store.create_topic(TOPIC, config=SETTINGS)
            seal_at(store, [10, 20, 30])
            found = []
            for number, batch in enumerate(store.scan(TOPIC, max_records=1)):
                found += batch.column("offset").to_pylist()
                if number == passed:
                    store.archive()
            assert found == list(range(END))


def test_local_segments_stay_while_no_listed_object_holds_them() -> None:
    with opened(SimulatedFiles(), memory()) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"segment.bytes": 1 << 20})
        seal_at(store, [10, 20, 30])
        partition = store._partitions[TOPIC, 0]
        assert partition.apply_local_retention(END) == 0, "the archive lists nothing yet"
        assert read(store, 0) == numbered(0, END)
        store.archive()
        assert partition.layout.earliest_offset == 30
        assert read(store, 0) == numbered(0, END)


def test_time_is_found_on_both_sides_of_the_seam() -> None:
    times = [NOW_MS + (offset * 37 % 50) * 10 for offset in range(END)]
    schema = {"value": pa.binary(), "timestamp": pa.timestamp("ms", tz="UTC")}
    for seam in range(1, END, 3):
        with opened(SimulatedFiles(), memory()) as store:
            store.create_topic(TOPIC, config=SETTINGS | {"segment.bytes": 1 << 20})
            for first, end in ((0, seam), (seam, END)):
                columns = [pa.array(values(first, end - first)), pa.array(times[first:end])]
                columns = [columns[0], columns[1].cast(schema["timestamp"])]
                store.append(TOPIC, pa.RecordBatch.from_arrays(columns, names=list(schema)))
                store.roll(TOPIC)
                if end < END:
                    store.archive()
            for wanted in range(NOW_MS, NOW_MS + 520, 10):
                expected = next((o for o, time in enumerate(times) if time >= wanted), None)
                assert store.offset_for_time(TOPIC, 0, wanted) == expected


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.sampled_from(["roll", "archive", "reopen", "retain"]), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 80)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_a_log_with_an_archive_is_a_list(steps: list[tuple[str, int]]) -> None:
    files, objects = SimulatedFiles(), memory()
    store = opened(files, objects)
    store.create_topic(TOPIC, config=SETTINGS)
    end, gone = 0, 0
    for kind, number in steps:
        if kind == "append":
            store.append(TOPIC, values(end, number))
            end += number
        elif kind == "trim":
            gone = max(gone, store.trim(TOPIC, 0, number))
            assert gone <= max(number, 0) or gone == store.earliest_offset(TOPIC)
        elif kind == "retain":
            store.alter_topic(TOPIC, {"retention.bytes": 1500})
            store.apply_retention(TOPIC)
            store.alter_topic(TOPIC, {"retention.bytes": -1})
            assert store.earliest_offset(TOPIC) >= gone
            gone = store.earliest_offset(TOPIC)
        elif kind == "reopen":
            store.close()
            store = opened(files, objects)
        else:
            getattr(store, kind)(*([TOPIC] if kind == "roll" else []))
        assert store.earliest_offset(TOPIC) == gone
        assert read(store, gone) == numbered(gone, end)
        if gone:
            with pytest.raises(RecordsMissing) as missing:
                read(store, gone - 1)
            assert missing.value.reason in ("trim", "retention")
    store.archive()
    cold = archived(objects)
    assert cold == numbered(cold[0][0], cold[-1][0] + 1) if cold else True
    store.close()


# ---------------------------------------------------------------- damage and lies


def with_archive(objects: Objects, files: SimulatedFiles | None = None, **config: object) -> Store:
    store = opened(files or SimulatedFiles(), objects)
    store.create_topic(TOPIC, config={**SETTINGS, "segment.bytes": 1 << 20, **config})
    seal_at(store, [20])
    return store


FLIPS: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "last flipped": lambda data: data[:-1] + bytes([data[-1] ^ 0x80]),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("how", FLIPS)
def test_a_local_copy_stays_while_the_store_gives_back_other_bytes(how: str) -> None:
    objects = FailingObjects(memory())
    with with_archive(objects) as store:
        objects.spoil = lambda key, data: FLIPS[how](data) if key.endswith(".seg") else data
        attempt(store)
        (status,) = store.tier_status()
        assert "does not return what was uploaded" in status.last_error
        assert status.archived_offset == 0
        assert store._partitions[TOPIC, 0].layout.earliest_offset == 0
        assert read(store) == numbered(0, END)
        objects.spoil = None
        store.archive()
        assert store._partitions[TOPIC, 0].layout.earliest_offset == 20
        assert read(store) == numbered(0, END)


@pytest.mark.parametrize("how", FLIPS)
def test_wrong_bytes_are_never_served_and_cost_only_what_they_hold(how: str) -> None:
    objects = FailingObjects(memory())
    with with_archive(objects) as store:
        store.archive()
        objects.spoil = lambda key, data: FLIPS[how](data) if key.endswith(".seg") else data
        with pytest.raises(RecordsMissing) as missing:
            read(store)
        assert (missing.value.first, missing.value.end, missing.value.reason) == (0, 20, "lost")
        assert read(store, missing.value.end) == numbered(20, END)
        objects.spoil = None
        assert read(store) == numbered(0, END), "a passing lie leaves no trace"


def test_bytes_that_were_wrong_once_are_fetched_again() -> None:
    objects = FailingObjects(memory())
    with with_archive(objects) as store:
        store.archive()
        lies = iter([True, False, True, False])
        objects.spoil = lambda _, data: FLIPS["flipped"](data) if next(lies, False) else data
        assert read(store) == numbered(0, END)


def test_a_missing_object_is_named_and_what_follows_is_served() -> None:
    objects = memory()
    with with_archive(objects) as store:
        store.archive()
        objects.delete(ObjectKey(TOPIC, 0, 0).name)
        with pytest.raises(RecordsMissing, match="there is no data/orders/0"):
            read(store)
        assert read(store, 20) == numbered(20, END)


def test_a_damaged_local_record_is_read_from_the_archive() -> None:
    files, objects = SimulatedFiles(), memory()
    with with_archive(objects, files, **{"local.retention.bytes": -1}) as store:
        store.archive()
        path = f"{DATA}/topics/{TOPIC}/0/segments/{0:020}.log"
        file = files.open(path)
        file.write_at(files.size(path) // 2, b"\xff\xff\xff")
        assert read(store) == numbered(0, END)
        assert store._partitions[TOPIC, 0].layout.earliest_offset == 0


# ---------------------------------------------------------------- the list, its owner, its keys


def test_the_list_is_made_again_from_the_objects_alone() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        seal_at(store, [9, 20, 33])
        store.archive()
        store.trim(TOPIC, 0, 20)
        store.archive()
    expected = archived(objects)
    assert expected == numbered(expected[0][0], 33)
    assert 0 < expected[0][0] <= 20, "an object was trimmed"
    key = archive_manifest(TOPIC, 0)
    kept = objects.read(key).data
    for damaged in (None, b"", kept[:-9], kept.replace(b'"end_offset": 33', b'"end_offset": 32')):
        objects.delete(key)
        if damaged is not None:
            objects.create(key, damaged)
        assert archived(objects) == expected


def test_a_lost_list_is_believed_only_where_the_log_has_nothing_to_compare() -> None:
    files, objects = SimulatedFiles(), memory()
    with opened(files, objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        seal_at(store, [20, 33])
        store.archive()
    objects.delete(archive_manifest(TOPIC, 0))
    with opened(files, objects) as store:
        store.roll(TOPIC)
        store.archive()
        assert read(store) == archived(objects) == numbered(0, END)
        assert store.tier_status()[0].last_error == ""


def test_a_second_store_takes_over_and_the_first_one_stops() -> None:
    files, objects = SimulatedFiles(), memory()
    first = with_archive(objects, files)
    first.archive()
    copy = files.snapshot().restart()
    with opened(copy, objects) as second:
        second.archive()
        first.roll(TOPIC)
        attempt(first)
        (status,) = first.tier_status()
        assert "was taken over" in status.last_error
        assert first.latest_offset(TOPIC) == END
        with pytest.raises(Fenced, match="durable but not archived"):
            first.append(TOPIC, values(END, 1), acks="archived")
        assert read(first) == numbered(0, END + 1), "what was archived and what is local"
        second.roll(TOPIC)
        second.archive()
        assert archived(objects) == numbered(0, END)
    first.close()


def test_another_topic_of_the_same_name_is_not_touched() -> None:
    objects = memory()
    with with_archive(objects) as store:
        store.archive()
    before = archived(objects)
    other = opened(SimulatedFiles(), objects)
    other._boot = other._boot  # the clock below makes it another topic
    object.__setattr__(other._boot, "now_ms", lambda: NOW_MS + 1)
    other.create_topic(TOPIC, config=SETTINGS)
    other.append(TOPIC, [b"another"])
    other.roll(TOPIC)
    attempt(other)
    (status,) = other.tier_status()
    assert "holds another topic of this name" in status.last_error
    assert archived(objects) == before
    other.close()


def test_a_sound_object_with_other_records_is_left_alone() -> None:
    objects = memory()
    objects.create(ObjectKey(TOPIC, 0, 100).name, VECTOR)
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"segment.bytes": 1 << 20})
        store.append(TOPIC, values(0, 100))
        store.roll(TOPIC)
        store.archive()
        store.append(TOPIC, values(100, 5))
        store.roll(TOPIC)
        attempt(store)
        (status,) = store.tier_status()
        assert "another object has the key" in status.last_error
        assert status.archived_offset == 100
        assert bytes(objects.read(ObjectKey(TOPIC, 0, 100).name).data) == VECTOR
        assert read(store) == numbered(0, 105)
        assert store._partitions[TOPIC, 0].layout.earliest_offset == 100


def test_an_object_of_an_upload_that_was_cut_off_is_taken_whatever_its_bytes() -> None:
    """The same records, compressed in another way: the last one is the last that is sealed."""
    config = SETTINGS | {"segment.bytes": 1 << 20}
    first, second = memory(), memory()
    for objects, compression in ((first, "zstd"), (second, "lz4")):
        with opened(SimulatedFiles(), objects) as store:
            store.create_topic(TOPIC, config=config | {"archive.compression.type": compression})
            store.append(TOPIC, values(0, 20))
            store.roll(TOPIC)
            if objects is second:
                key = ObjectKey(TOPIC, 0, 0).name
                second.create(key, bytes(first.read(key).data))
            store.archive()
            assert store.tier_status()[0].archived_offset == 20
    assert second.read(key).data == first.read(key).data
    assert archived(second) == numbered(0, 20)


@pytest.mark.parametrize("place", [0, 1, 9, 10, 19])
def test_an_upload_is_read_back_from_its_first_byte_to_its_last(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "READ_BACK_BYTES", 10)
    objects, sent = memory(), bytes(range(20))
    stored = bytearray(sent)
    objects.create("sound", bytes(stored))
    stored[place] ^= 1
    objects.create("changed", bytes(stored))
    assert uploader.reads_back(objects, "sound", memoryview(sent))
    assert not uploader.reads_back(objects, "changed", memoryview(sent), tries=2)
    assert not uploader.reads_back(objects, "sound", memoryview(sent)[:-1]), "it is longer"


def test_an_object_made_by_hand_is_read_without_list_or_topic_file() -> None:
    objects = memory()
    objects.create(ObjectKey("orders", 0, 100).name, VECTOR)
    with ArchiveStore(objects) as store:
        assert store.topics() == ["orders"]
        assert store.earliest_offset("orders") == 100
        rows = table(store.scan("orders", start=100)).to_pylist()
        with pytest.raises(RecordsMissing):
            list(store.scan("orders", start=0))
        with pytest.raises(InvalidRequest, match="read-only"):
            store.append("orders", [b"x"])
    for row, expected in zip(rows, ORDERS, strict=True):
        assert {name: row[name] for name in ("offset", "key", "value")} == {
            name: expected[name] for name in ("offset", "key", "value")
        }


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_a_reader_written_from_the_document_reads_our_objects(compression: str) -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        config = SETTINGS | {"archive.compression.type": compression}
        store.create_topic(TOPIC, config=config)
        rows = [
            {"key": b"k", "value": None, "headers": [{"key": "h", "value": b"v"}]},
            {"key": None, "value": b"plain"},
        ]
        store.append(TOPIC, rows)
        store.roll(TOPIC)
        store.append(TOPIC, values(2, 30))
        store.roll(TOPIC)
        store.archive()
        expected = table(store.scan(TOPIC)).to_pylist()
    found = []
    for info in sorted(objects.list("data"), key=lambda info: info.key):
        if info.key.endswith(".seg"):
            found += read_by_hand(objects.read(info.key).data)
    assert [row["offset"] for row in found] == [row["offset"] for row in expected]
    for name in ("key", "value"):
        assert [row[name] for row in found] == [row[name] for row in expected]


def test_a_seek_fetches_an_index_and_a_block() -> None:
    objects = FailingObjects(memory())
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(
            TOPIC,
            config=SETTINGS
            | {
                "segment.bytes": 1 << 28,
                "archive.object.bytes": 1 << 28,
                "archive.compression.type": "none",
            },
        )
        for _ in range(12):
            store.append(TOPIC, [bytes(250_000) for _ in range(4)])
        store.roll(TOPIC)
        store.archive()
        assert not store._partitions[TOPIC, 0].layout.sealed
        objects.calls.clear()
        assert store.fetch(TOPIC, 0, 43, max_records=1).column("offset").to_pylist() == [43]
        assert [kind for kind, _ in objects.calls] == ["read_range"] * 2
        objects.calls.clear()
        assert store.fetch(TOPIC, 0, 43, max_records=1).num_rows == 1
        assert objects.calls == [], "the block and the index are held"


def test_the_cache_stays_within_its_limit() -> None:
    cache = cold_reading.BlockCache(1000)
    for number in range(50):
        cache.put({number: "x"}, 300)
        assert cache.size_bytes <= 1000
    assert [cache.get(number) for number in (46, 47, 49)] == [None, "x", "x"]
    cache.put({"huge": "x"}, 1001)
    assert cache.get("huge") is None
    cache.close()


def test_what_shares_memory_leaves_the_cache_together() -> None:
    cache = cold_reading.BlockCache(1000)
    cache.put({1: "a", 2: "b"}, 400)
    cache.put({3: "c"}, 400)
    assert cache.get(2) == "b", "this use counts for 1 too"
    cache.put({2: "other", 4: "d"}, 400)
    assert [cache.get(number) for number in (1, 2, 3, 4)] == ["a", "b", None, "d"]
    cache.put({5: "e"}, 900)
    assert [cache.get(number) for number in (1, 2, 4, 5)] == [None, None, None, "e"]
    assert cache.size_bytes == 900
    cache.close()


def test_a_scan_leaves_no_more_memory_than_the_cache_may_hold() -> None:
    """Blocks are decoded together: one that is held keeps the buffers of its neighbours."""
    objects = memory()
    limit = 6 << 20
    with opened(SimulatedFiles(), objects) as store:
        large = {"segment.bytes": 1 << 26, "archive.object.bytes": 1 << 26}
        store.create_topic(TOPIC, config=SETTINGS | large)
        for _ in range(24):
            store.append(TOPIC, [bytes(250_000) for _ in range(4)])
        store.roll(TOPIC)
        store.archive()
    with ArchiveStore(objects) as archive:
        archive._cache.limit_bytes = limit
        before = pa.total_allocated_bytes()
        assert sum(batch.num_rows for batch in archive.scan(TOPIC)) == 96
        assert archive._cache.size_bytes > limit // 4, "something is held"
        assert pa.total_allocated_bytes() - before <= limit


def test_acks_archived_means_in_the_object_store() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"archive.window.ms": 5})
        ack = store.append(TOPIC, values(0, 3), acks="archived", timeout_s=30)
        assert ack.durability == "archived"
        assert archived(objects) == numbered(0, 3)
        store.create_topic("local")
        with pytest.raises(InvalidRequest, match=r"remote\.storage\.enable"):
            store.append("local", [b"x"], acks="archived")
    with opened(SimulatedFiles(), None) as store:
        store.create_topic("local")
        with pytest.raises(InvalidRequest, match="opened with `archive`"):
            store.append("local", [b"x"], acks="archived")
        with pytest.raises(InvalidRequest, match="needs a store opened with"):
            store.create_topic(TOPIC, config=SETTINGS)


def test_a_read_only_store_reads_over_the_seam() -> None:
    files, objects = SimulatedFiles(), memory()
    with with_archive(objects, files) as store:
        store.archive()
    with ReadOnlyStore(DATA, files=files, archive=objects) as reader:
        assert read(reader, 0) == numbered(0, END)
    with ReadOnlyStore(DATA, files=files) as reader, pytest.raises(ArchiveUnavailable):
        read(reader, 0)


def test_a_ledger_that_is_newer_is_refused() -> None:
    objects = memory()
    with with_archive(objects) as store:
        store.archive()
    key = archive_ledger(TOPIC, 0)
    objects.delete(key)
    objects.create(key, b'{"version": 2}')
    with pytest.raises(CorruptData, match="newer"):
        archived(objects)


def test_plain_topics_stay_plain_objects() -> None:
    objects = memory()
    with with_archive(objects) as store:
        store.archive()
        entry = store.tier._kept[store._partitions[TOPIC, 0]].shelf.manifest.objects[0]  # type: ignore[union-attr]
    assert entry.flags == Coding().flags
