"""kio and kafka-python, who know the protocol from Kafka's own schemas, judge every message."""

from __future__ import annotations

import dataclasses
import datetime
import io
import pkgutil
import uuid
from enum import Enum
from importlib import import_module
from typing import Any

import kafka.protocol
import pytest
from hypothesis import HealthCheck, given, settings
from kafka.protocol.api_message import ApiMessage
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from lamina.wire.kafka import codec
from lamina.wire.kafka.codec import Direction
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.message_schema import Api, Field
from lamina.wire.kafka.share_apis import SHARE_FETCH
from tests.wire.kafka.drawn import MESSAGES, fields_of, joined, messages, name_of

Message = tuple[Api, int, Direction]
QUICK = settings(
    max_examples=12,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NIL = uuid.UUID(int=0)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def ours(message: Message, value: dict[str, Any]) -> bytes:
    return b"".join(codec.write(*message, value, bytearray()))


# ---------------------------------------------------------------- kio


def kio_class(api: Api, version: int, direction: Direction) -> type:
    load = load_request_schema if direction == "request" else load_response_schema
    return load(api.key, version)


def plain(fields: tuple[Field, ...], version: int, entity: Any) -> dict[str, Any]:
    """What kio parsed, under our names: both have the fields of a version in the same order."""
    there = [field for field in fields if field.is_in(version)]
    theirs = dataclasses.fields(entity)
    assert len(there) == len(theirs), [field.name for field in theirs]
    for field, their in zip(there, theirs, strict=True):
        assert set(field.name.split("_")) & set(their.name.split("_")), (field.name, their.name)
    found = {
        field.name: _plain(field, version, getattr(entity, their.name))
        for field, their in zip(there, theirs, strict=True)
    }
    return {field.name: found.get(field.name, field.default) for field in fields}


def _plain(field: Field, version: int, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(field, version, item) for item in value]
    if dataclasses.is_dataclass(value):
        return plain(field.inside, version, value)
    if field.kind == "uuid":
        return (value or NIL).bytes
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round((value - EPOCH) / datetime.timedelta(milliseconds=1))
    return value.value if isinstance(value, Enum) else value


def _without_null_records(value: dict[str, Any]) -> None:
    for topic in value.get("responses", ()):
        for partition in topic["partitions"]:
            partition["records"] = partition["records"] or []


@pytest.mark.parametrize("message", MESSAGES, ids=name_of)
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(message: Message) -> None:
    api, version, direction = message
    kind = kio_class(*message)
    read, write = entity_reader(kind), entity_writer(kind)

    @QUICK
    @given(messages(*message))
    def judge(value: dict[str, Any]) -> None:
        if api is SHARE_FETCH:  # kio takes no null records there, which nobody sends
            _without_null_records(value)
        data = ours(message, value)
        entity, size = read(data, 0)
        assert size == len(data)
        assert plain(fields_of(api, direction), version, entity) == joined(value)
        out = io.BytesIO()
        write(out, entity)
        assert out.getvalue() == data
        assert joined(codec.parse(*message, memoryview(out.getvalue()))) == joined(value)

    judge()


# ---------------------------------------------------------------- kafka-python


def _python_classes() -> dict[tuple[int, str], type[ApiMessage]]:
    for found in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in found.name and "generate" not in found.name:
            import_module(found.name)
    return {
        (kind.API_KEY, kind.type): kind
        for kind in ApiMessage.__subclasses__()
        if kind._class_version is None
    }


PYTHON = _python_classes()
KNOWN_TO_PYTHON = [message for message in MESSAGES if (message[0].key, message[2]) in PYTHON]


def test_kafka_python_knows_most_messages() -> None:
    assert len(KNOWN_TO_PYTHON) > 300


@pytest.mark.parametrize("message", KNOWN_TO_PYTHON, ids=name_of)
def test_kafka_python_reads_what_we_write_and_writes_what_we_read(message: Message) -> None:
    api, version, direction = message
    kind = PYTHON[api.key, direction]

    @QUICK
    @given(messages(*message))
    def judge(value: dict[str, Any]) -> None:
        if (
            api is API_VERSIONS and direction == "response"
        ):  # an error means version 0 there, whatever was asked for
            value["error_code"] = 0
        data = ours(message, value)
        theirs = kind.decode(data, version=version)
        theirs._header = None  # asked for by some of them
        again = theirs.encode()
        assert joined(codec.parse(*message, memoryview(bytes(again)))) == joined(value)

    judge()


def test_a_field_too_many_is_noticed_by_the_judge() -> None:
    api, version, direction = next(m for m in MESSAGES if name_of(m) == "Metadata-request-12")
    fields = (*api.request, Field("extra", "int8", (0, 99), default=0))
    read = entity_reader(kio_class(api, version, direction))
    entity, _ = read(ours((api, version, direction), {}), 0)
    with pytest.raises(AssertionError):
        plain(fields, version, entity)
