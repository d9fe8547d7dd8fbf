"""What lies just on a bound of a small file or of a walk: taken, or refused, nothing between."""

from __future__ import annotations

import json

import pytest

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats import tail_file
from lamina.formats.documents import (
    cold_location,
    group_settings,
    position_file,
    producer_ids,
    strict_json,
    topic_schemas,
)
from lamina.formats.documents.cold_location import ColdLocation
from lamina.formats.documents.position_file import Position, TopicPosition
from lamina.formats.documents.producer_ids import Reserved
from lamina.formats.documents.topic_schemas import Entry, TopicSchemas
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import manifest
from lamina.formats.log_format import FrameCodec
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Budget, Limit
from lamina.formats.tail_file import NAME_BYTES_MAX, Kind, Section, Tail
from lamina.formats.wal.walks import SegmentFrames
from lamina.records import prepare
from tests.formats.test_keratin_golden import MANIFEST
from tests.formats.test_wal_golden import TOPIC
from tests.formats.test_wal_log import segment_bytes, wal_bytes


@pytest.mark.parametrize("wrong", [ColdLocation("", "d"), ColdLocation("p", ""), None])
def test_the_cold_directory_s_location_has_both_paths(wrong: ColdLocation | None) -> None:
    if wrong is None:
        right = ColdLocation("p", "d")
        assert cold_location.decode(cold_location.encode(right)) == right
        return
    with pytest.raises(CorruptData, match="empty"):
        cold_location.decode(cold_location.encode(wrong))


@pytest.mark.parametrize("next_id", [0, 1, (1 << 62) - 1])
def test_a_producer_s_id_is_any_from_0_on(next_id: int) -> None:
    assert producer_ids.decode(producer_ids.encode(Reserved(next_id))) == Reserved(next_id)


def test_no_producer_has_an_id_beyond_them() -> None:
    with pytest.raises(CorruptData, match="out of range"):
        producer_ids.decode(producer_ids.encode(Reserved(1 << 62)))


def test_settings_of_groups_are_read_as_they_were_written() -> None:
    kept = {"g": {"number": 7, "text": "earliest"}, "empty": {}}
    assert group_settings.decode(group_settings.encode(kept)) == kept


def test_versions_of_schemas_count_up_from_1() -> None:
    entries = (Entry(1, 9, "a"), Entry(2, 12, "b"))
    for versions, is_sound in ((entries, True), (entries[1:], False)):
        written = TopicSchemas("t", 5, "avro", "confluent", "", "backward", schemas=versions)
        raw = topic_schemas.encode(written)
        if is_sound:
            assert topic_schemas.decode(raw) == written
            continue
        with pytest.raises(CorruptData, match="count up from 1"):
            topic_schemas.decode(raw)


@pytest.mark.parametrize(("partition", "offset"), [("01", 5), ("x", 5), ("0", -1), ("0", "5")])
def test_a_position_s_offset_is_a_number_of_a_partition(partition: str, offset: object) -> None:
    given = json.loads(position_file.encode(Position("g", (TopicPosition("t", 1, {0: 5}),))))
    given["topics"][0]["offsets"] = {partition: offset}
    given.pop(strict_json.SEAL, None)
    sealed = given | {strict_json.SEAL: strict_json.seal(given)}
    with pytest.raises(CorruptData, match="wrong offset"):
        position_file.decode(json.dumps(sealed).encode())


def test_a_manifest_whose_version_has_one_bit_flipped_is_damaged_and_not_newer() -> None:
    raw = bytearray(manifest.encode(MANIFEST))
    raw[manifest.HEADER.at("version") + 1] ^= 2
    with pytest.raises(CorruptData, match="one bit"):
        manifest.decode(bytes(raw))


def test_a_name_in_a_tail_has_just_so_many_bytes() -> None:
    for length in (NAME_BYTES_MAX, NAME_BYTES_MAX + 1):
        tail = Tail(1, 1, (Section(Kind.COPY, "n" * length, b"body"),))
        if length == NAME_BYTES_MAX:
            assert tail_file.decode(tail_file.encode(tail)) == tail
            continue
        with pytest.raises(InvalidRequest, match="at most"):
            tail_file.encode(tail)


def test_a_frame_begins_with_all_of_its_magic() -> None:
    raw = bytearray(frame_log.encode(prepare([b"a"], "frame", now_ms=0), 4)[0])
    assert FrameCodec().begins_record(raw, 0, 4)
    for at in range(4):
        raw[at] ^= 1
        assert not FrameCodec().begins_record(raw, 0, 4), f"byte {at}"
        raw[at] ^= 1


def test_the_first_record_of_all_is_found_behind_damage() -> None:
    raw = bytes(frame_log.encode(prepare([b"a", b"b"], "frame", now_ms=0), 0)[0])
    log = OffsetLog(frame_log, b"\xff" * 40 + raw)
    damage = log.scan(0, None, Limit())
    assert damage.end == 0
    assert log.resync(damage, None, Budget(len(raw) + 40)) == 40


def test_a_frame_below_the_wanted_sequence_is_passed_over_behind_damage() -> None:
    whole = segment_bytes(wal_bytes(prepare([b"a", b"b", b"c"], "wal", now_ms=0)))
    raw = b"\xff" * 30 + whole
    frames = SegmentFrames(raw, TOPIC)
    damage = frames.scan(0, None, Limit())
    places = [30 + at for at in SegmentFrames(whole, TOPIC).scan(0, None, Limit()).positions]
    assert [frames.resync(damage, at, Budget(len(raw))) for at in (None, 7, 8, 9)] == [
        *(places[0], *places),
    ]
