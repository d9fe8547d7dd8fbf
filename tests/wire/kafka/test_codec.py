"""The codec on its own: what is hostile is refused with a typed error and bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.wire.kafka import codec, framing
from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.codec import Direction, MalformedMessage
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.message_schema import Api, fields_of
from lamina.wire.kafka.record_apis import FETCH, PRODUCE
from lamina.wire.kafka.topic_apis import METADATA
from tests.wire.kafka.drawn import MESSAGES, joined, messages, name_of

Message = tuple[Api, int, Direction]
SOME: list[Message] = [
    (PRODUCE, 3, "request"),
    (PRODUCE, 11, "request"),
    (FETCH, 16, "response"),
    (METADATA, 1, "request"),
    (METADATA, 12, "response"),
    (APIS[76], 1, "response"),
]


def written(message: Message, value: dict[str, Any]) -> bytes:
    return b"".join(codec.write(*message, value, bytearray()))


@pytest.mark.parametrize("message", SOME, ids=name_of)
def test_every_prefix_of_a_message_is_malformed(message: Message) -> None:
    @settings(max_examples=10, deadline=None, database=None)
    @given(messages(*message))
    def check(value: dict[str, Any]) -> None:
        data = written(message, value)
        for size in range(len(data)):
            with pytest.raises(MalformedMessage):
                codec.parse(*message, memoryview(data[:size]))
        if message[2] == "request":
            assert joined(codec.parse(*message, memoryview(data + b"\0"))) == joined(value)
            return
        with pytest.raises(MalformedMessage, match="too many"):
            codec.parse(*message, memoryview(data + b"\0"))

    check()


@pytest.mark.parametrize("message", MESSAGES, ids=name_of)
def test_arbitrary_bytes_are_a_message_or_malformed(message: Message) -> None:
    @settings(max_examples=30, deadline=None, database=None)
    @given(st.binary(max_size=60))
    def check(data: bytes) -> None:
        try:
            codec.parse(*message, memoryview(data))
        except MalformedMessage:
            return

    check()


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"])
def test_a_count_beyond_the_frame_allocates_nothing(count: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="more items"):
            codec.parse(METADATA, 1, "request", memoryview(count + b"\0\0" * 1000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_a_message_of_many_small_items_is_refused() -> None:
    items = codec.ITEMS_MAX + 1
    data = items.to_bytes(4) + b"\0\0" * items
    with pytest.raises(MalformedMessage, match="more items"):
        codec.parse(METADATA, 1, "request", memoryview(data))
    fewer = (codec.ITEMS_MAX).to_bytes(4) + b"\0\0" * codec.ITEMS_MAX
    assert len(codec.parse(METADATA, 1, "request", memoryview(fewer))["topics"]) == codec.ITEMS_MAX


def test_records_are_views_of_the_frame_and_buffers_of_their_own() -> None:
    records = [bytearray(b"one"), memoryview(b"two")]
    value = {"topic_data": [{"partition_data": [{"records": records}]}]}
    pieces = codec.write(PRODUCE, 9, "request", value, bytearray())
    assert pieces[1] is records[0]
    assert pieces[2] is records[1]
    frame = bytearray(b"".join(pieces))
    parsed = codec.parse(PRODUCE, 9, "request", memoryview(frame))
    view = parsed["topic_data"][0]["partition_data"][0]["records"]
    assert bytes(view) == b"onetwo"
    assert view.obj is frame


def test_unknown_tagged_fields_are_skipped() -> None:
    data = written((METADATA, 12, "request"), {"topics": []})
    tagged = data[:-1] + b"\x02\x07\x03abc\x63\x00"
    assert codec.parse(METADATA, 12, "request", memoryview(tagged))["topics"] == []
    with pytest.raises(MalformedMessage, match="tagged"):
        codec.parse(METADATA, 12, "request", memoryview(data[:-1] + b"\x01\x07\x09abc"))


def test_a_tagged_field_of_a_wrong_size_is_malformed() -> None:
    data = written((API_VERSIONS, 3, "response"), {"finalized_features_epoch": 5})
    assert data.endswith(b"\x01\x01\x08" + (5).to_bytes(8))
    longer = data[:-10] + b"\x01\x09" + (5).to_bytes(8) + b"\0"
    with pytest.raises(MalformedMessage, match="not as long"):
        codec.parse(API_VERSIONS, 3, "response", memoryview(longer))


def test_null_where_there_is_none_and_broken_text_are_malformed() -> None:
    with pytest.raises(MalformedMessage, match="null"):
        codec.parse(METADATA, 0, "request", memoryview(b"\xff" * 4))
    with pytest.raises(MalformedMessage, match="UTF-8"):
        codec.parse(METADATA, 0, "request", memoryview(b"\0\0\0\1\0\1\xff"))
    with pytest.raises(TypeError, match="name is null"):
        written((METADATA, 1, "request"), {"topics": [{"name": None}]})


def test_a_varint_is_of_32_bits() -> None:
    assert codec.uvarint(memoryview(b"\xff\xff\xff\xff\x0f"), 0) == ((1 << 32) - 1, 5)
    for wrong in (b"\xff\xff\xff\xff\x1f", b"\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(MalformedMessage, match="length"):
            codec.uvarint(memoryview(wrong), 0)
    for value in (0, 1, 127, 128, 300, 1 << 28, (1 << 32) - 1):
        data = codec.uvarint_of(value)
        assert codec.uvarint(memoryview(data), 0) == (value, len(data))


@pytest.mark.parametrize("version", [1, 12])
def test_frames_have_headers_of_their_version(version: int) -> None:
    frame = b"".join(framing.request_frame(METADATA, (version, 77), "me", {"topics": None}))
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    view = memoryview(frame)[4:]
    header = framing.request_header(view)
    assert header[:4] == (3, version, 77, "me")
    at = framing.message_position(header, METADATA, view)
    assert codec.parse(METADATA, version, "request", view, at)["topics"] is None
    answer = b"".join(framing.response_frame(METADATA, version, 77, {}))
    assert answer[4:8] == (77).to_bytes(4)
    codec.parse(METADATA, version, "response", memoryview(answer)[9 if version >= 9 else 8 :])


def test_an_answer_to_api_versions_never_has_tags_in_its_header() -> None:
    answer = b"".join(framing.response_frame(API_VERSIONS, 3, 1, {"error_code": 35}))
    assert answer[8:10] == (35).to_bytes(2)


@pytest.mark.parametrize("data", [b"", b"\0\3\0\1", b"\0\3\0\1\0\0\0\1\0\x09abc"])
def test_a_broken_header_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        framing.request_header(memoryview(data))


def test_a_header_that_ends_within_its_tags_is_malformed() -> None:
    view = memoryview(b"\0\3\0\x0c\0\0\0\1\xff\xff\x01\x00")
    header = framing.request_header(view)
    assert header.client_id is None
    with pytest.raises(MalformedMessage):
        framing.message_position(header, METADATA, view)


@pytest.mark.parametrize(
    "text",
    ["a int32", "a int33 0+", "a [] 0+", "a int32 0+ nul 0+", "a int32 0+\n    b int8 0+"],
)
def test_a_wrong_table_is_noticed(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|unpack|unknown|nowhere"):
        fields_of(text)


def test_error_codes_are_those_of_kafka() -> None:
    from kio.schema.errors import ErrorCode as Theirs

    assert {code.value: code.name.lower() for code in ErrorCode} == {
        code.value: Theirs(code.value).name for code in ErrorCode
    }


def test_ranges_are_what_clients_look_for() -> None:
    """Old librdkafka decides by single versions; see docs/kafka.md."""
    wanted = {0: (0, 3, 7), 1: (4, 10, 12), 10: (0,), 8: (2,), 9: (1,), 11: (0,), 14: (0,)}
    wanted |= {12: (0,), 13: (0,), 2: (1,), 22: (0,), 17: (0, 1), 36: (0,), 18: (0,)}
    for key, versions in wanted.items():
        api = APIS[key]
        assert all(api.advertised_first <= version <= api.last for version in versions), api.name
