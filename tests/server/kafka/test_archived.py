"""Kafka clients read what only the archive has: whole, damaged, and for a while not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.wal.reader import TopicReader
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.record_apis import FETCH, LIST_OFFSETS, PRODUCE
from tests.archive.rig import SETTINGS
from tests.server.kafka.raw_client import RawClient, fetched, made, offsets_of, produced
from tests.server.rig import served

TOPIC = "orders"
EACH, SEGMENTS = 8, 4
ROWS = EACH * SEGMENTS
FIRST = {"keratin": 0, "frame": 0, "wal": 1}
LOCAL = 2
"""Records behind those that are archived."""


def time_of(number: int) -> int:
    return 1000 * (number + 1)


class Rig:
    """A server whose topic is archived but for its end."""

    def __init__(self, folder: Path, service: Any, format_name: str) -> None:
        self.service, self.folder, self.format = service, folder, format_name
        self.store = service.broker.store
        self.first = FIRST[format_name]
        sizes = {"segment.bytes": 1 << 26, "archive.object.bytes": 1 << 26}
        self.store.create_topic(TOPIC, format=format_name, config=SETTINGS | sizes)
        for segment in range(SEGMENTS):
            self.append(range(segment * EACH, (segment + 1) * EACH))
            self.store.roll(TOPIC)
            self.store.archive()
        self.store.maintain()
        self.append(range(ROWS, ROWS + LOCAL))

    def append(self, numbers: Any) -> None:
        self.store.append_batch(
            TOPIC, [{"value": b"%05d" % n * 20_000, "timestamp": time_of(n)} for n in numbers]
        )

    def objects(self) -> list[Path]:
        return sorted((self.folder / "archive" / "data" / TOPIC / "0").glob("*.seg"))


@pytest.fixture(params=["keratin", "wal"])
def rig(request: Any, tmp_path: Path) -> Iterator[Rig]:
    archive = str(tmp_path / "archive")
    with served(tmp_path / "data", kafka_port=0, archive=archive) as service:
        yield Rig(tmp_path, service, request.param)


def read(client: RawClient, start: int) -> tuple[list[int], list[int]]:
    """The offsets that a client reads up to the end, and the numbers of errors on its way."""
    found: list[int] = []
    errors: list[int] = []
    at, end = start, start + 1
    while at < end:
        answer = client.ask(FETCH, 11, fetched(TOPIC, at, partition_max_bytes=300_000))
        partition = answer["responses"][0]["partitions"][0]
        end = partition["high_watermark"]
        if partition["error_code"]:
            errors.append(partition["error_code"])
            assert len(errors) < 10, errors
            continue
        data = bytes(partition["records"])
        for first, last, count in offsets_of(memoryview(data)):
            found += range(first, first + count)
            at = last + 1
    return found, errors


def listed(client: RawClient, timestamp: int) -> tuple[int, int]:
    asked = {"partition_index": 0, "timestamp": timestamp}
    request = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [asked]}]}
    answer = client.ask(LIST_OFFSETS, 9, request)["topics"][0]["partitions"][0]
    assert answer["error_code"] == 0
    return answer["offset"], answer["timestamp"]


def test_what_is_archived_is_read_and_found_by_time(rig: Rig) -> None:
    first, end = rig.first, rig.first + ROWS + LOCAL
    assert len(rig.objects()) == SEGMENTS
    with RawClient(rig.service.kafka_address) as client:
        assert read(client, first) == (list(range(first, end)), [])
        assert listed(client, -2)[0] == first
        for number in (0, 1, EACH - 1, EACH, ROWS - 1, ROWS, ROWS + LOCAL - 1):
            assert listed(client, time_of(number)) == (first + number, time_of(number))
            assert listed(client, time_of(number) - 1) == (first + number, time_of(number))
        assert listed(client, -3) == (end - 1, time_of(ROWS + LOCAL - 1))
        kept = EACH if rig.format == "wal" else 0  # the newest segment of a wal topic stays here
        assert listed(client, -4) == (first + ROWS - kept, -1)
        assert listed(client, -5) == (first + ROWS - 1, -1)


def test_what_is_archived_and_here_as_well_counts_as_both(tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    with served(tmp_path / "data", kafka_port=0, archive=archive) as service:
        store = service.broker.store
        kept = SETTINGS | {"segment.bytes": 1 << 26, "local.retention.bytes": -1}
        store.create_topic(TOPIC, config=kept)
        with RawClient(service.kafka_address) as client:
            assert (listed(client, -4), listed(client, -5)) == ((0, -1), (-1, -1))
            store.append(TOPIC, [b"a"] * 5)
            store.roll(TOPIC)
            store.archive()
            store.append(TOPIC, [b"b"])
            assert (listed(client, -4), listed(client, -5)) == ((0, -1), (4, -1))


def test_a_damaged_object_is_told_once_and_costs_its_own_records(rig: Rig) -> None:
    second = rig.objects()[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 3] ^= 0xFF
    second.write_bytes(data)
    every = set(range(rig.first, rig.first + ROWS + LOCAL))
    with RawClient(rig.service.kafka_address) as client:
        found, errors = read(client, rig.first)
    assert errors == [ErrorCode.CORRUPT_MESSAGE]
    assert len(found) == len(set(found))
    lost = every - set(found)
    assert lost
    assert lost <= set(range(rig.first + EACH, rig.first + 2 * EACH))


def test_the_event_loop_waits_for_no_archive(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a wal topic begins is up to the age of records that only the archive may have."""
    threads: set[str] = set()
    real = TopicReader.first_readable

    def first_readable(reader: TopicReader) -> int:
        threads.add(threading.current_thread().name)
        return real(reader)

    monkeypatch.setattr(TopicReader, "first_readable", first_readable)
    end = rig.first + ROWS + LOCAL
    with RawClient(rig.service.kafka_address) as client:
        client.send(FETCH, 11, fetched(TOPIC, end, max_wait_ms=20_000))
        with RawClient(rig.service.kafka_address) as other:
            answer = other.ask(PRODUCE, 9, produced(TOPIC, made([b"x"])))
            assert answer["responses"][0]["partition_responses"][0]["base_offset"] == end
        _, answer = client.receive(FETCH, 11)
        assert offsets_of(answer["responses"][0]["partitions"][0]["records"]) == [(end, end, 1)]
        assert read(client, rig.first) == (list(range(rig.first, end + 1)), [])
    assert bool(threads) == (rig.format == "wal")
    assert "lamina-kafka" not in threads


def test_an_archive_that_does_not_answer_is_tried_again(rig: Rig) -> None:
    archive, away = rig.folder / "archive", rig.folder / "away"
    with RawClient(rig.service.kafka_address) as client:
        archive.rename(away)
        archive.write_bytes(b"no directory")
        answer = client.ask(FETCH, 11, fetched(TOPIC, rig.first))["responses"][0]["partitions"][0]
        assert answer["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert not bytes(answer["records"])
        archive.unlink()
        away.rename(archive)
        every = list(range(rig.first, rig.first + ROWS + LOCAL))
        assert read(client, rig.first) == (every, [])
