"""confluent-kafka's own registry client and serializers, unchanged, against the registry here.

What they write is read by each other, and as columns by `store.read`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import lamina
from lamina.server import auth
from lamina.server.service import Service
from tests.server.rig import served

FIELD = descriptor_pb2.FieldDescriptorProto
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "doc": "what was bought",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "item", "type": "string"},
            {"name": "price", "type": ["null", "double"], "default": None},
        ],
    }
)
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "required": ["id", "item"],
        "properties": {
            "id": {"type": "integer"},
            "item": {"type": "string"},
            "price": {"type": ["number", "null"]},
        },
        "additionalProperties": False,
    }
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "item": "pen", "price": 1.5},
    {"id": 1 << 40, "item": "ç", "price": None},
]


def order_class() -> Any:
    """A message as protoc declares it, with a file of its own that imports another."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Line").field.add(name="x", number=1, type=5, label=1)
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(
        (("id", FIELD.TYPE_INT64), ("item", FIELD.TYPE_STRING), ("at", FIELD.TYPE_MESSAGE)), 1
    ):
        made = message.field.add(name=name, number=number, type=kind, label=FIELD.LABEL_OPTIONAL)
        if name == "at":
            made.type_name = ".google.protobuf.Timestamp"
    lines = message.field.add(name="lines", number=4, type=FIELD.TYPE_MESSAGE, label=3)
    lines.type_name = ".shop.Line"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ORDER = order_class()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("registry") / "data", kafka_port=0) as running:
        yield running


@pytest.fixture
def registry(service: Service) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": service.http_url}) as made:
        yield made


def by_kafka(service: Service, topic: str, values: list[bytes]) -> list[bytes]:
    """Sends values through the Kafka door, and returns what a consumer gets of them."""
    producer = Producer({"bootstrap.servers": service.kafka_address})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": service.kafka_address, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(len(values), 60)
    consumer.close()
    return [each.value() for each in found]


def by_lamina(service: Service, topic: str, values: list[bytes]) -> list[bytes]:
    """The same by `lamina.Producer` and `lamina.Consumer`."""
    with lamina.connect(service.flight_url) as store:
        with lamina.Producer(store) as producer:
            for value in values:
                producer.produce(topic, value, partition=0)
            assert producer.flush(60) == 0
        with lamina.Consumer(store, {"auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([lamina.TopicPartition(topic, 0, 0)])
            return [each.value() for each in consumer.consume(len(values), 60)]


def as_given(row: dict[str, Any], context: Any = None) -> dict[str, Any]:
    del context
    return row


Pair = tuple[Callable[..., bytes | None], Callable[..., Any], list[Any]]


def avro(registry: SchemaRegistryClient) -> Pair:
    return AvroSerializer(registry, AVRO, as_given), AvroDeserializer(registry), ROWS


def json_documents(registry: SchemaRegistryClient) -> Pair:
    made = JSONSerializer(JSON, registry, as_given)
    return made, JSONDeserializer(None, as_given, registry), ROWS


def protobuf(registry: SchemaRegistryClient) -> Pair:
    rows = [ORDER(id=each["id"], item=each["item"]) for each in ROWS]
    rows[0].at.FromMilliseconds(1_700_000_000_123)
    return ProtobufSerializer(ORDER, registry), ProtobufDeserializer(ORDER, {}, registry), rows


@pytest.mark.parametrize("through", [by_kafka, by_lamina])
@pytest.mark.parametrize("pair", [avro, json_documents, protobuf])
@pytest.mark.parametrize("is_there", [True, False])
def test_serializers_write_what_deserializers_and_typed_reads_read(
    service: Service, registry: SchemaRegistryClient, pair: Any, through: Any, is_there: bool
) -> None:
    """The topic may be there before the schema is registered, or be made afterwards."""
    topic = f"{pair.__name__}-{through.__name__}-{is_there}"
    store = service.broker.store
    if is_there:
        store.create_topic(topic)
    serialize, deserialize, rows = pair(registry)
    context = SerializationContext(topic, MessageField.VALUE)
    values = [serialize(row, context) for row in rows]
    if not is_there:
        store.create_topic(topic)
    known = registry.get_latest_version(f"{topic}-value")
    assert [value[:5] for value in values] == [b"\0" + known.schema_id.to_bytes(4, "big")] * 2
    found = through(service, topic, values)
    assert found == values
    assert [deserialize(value, context) for value in found] == rows

    table = store.read(topic).read_all()
    assert table["id"].to_pylist() == [1, 1 << 40]
    assert table["item"].to_pylist() == ["pen", "ç"]
    if pair is protobuf:
        assert table["at"].to_pylist()[1] is None
        assert table["at"].cast("int64").to_pylist()[0] == 1_700_000_000_123_000_000
    else:
        assert table["price"].to_pylist() == [1.5, None]


@pytest.mark.parametrize("encoding", ["avro", "json", "protobuf"])
def test_deserializers_read_what_a_typed_topic_wrote(
    service: Service, registry: SchemaRegistryClient, encoding: str
) -> None:
    store, topic = service.broker.store, f"own-{encoding}"
    store.create_topic(topic, schema=AVRO, encoding=encoding)
    if encoding == "json":
        store.set_schema(topic, AVRO, framing="registry")
    store.append(topic, [row | {"price": 2.5} for row in ROWS])
    values = [v for batch in store.scan(topic) for v in batch["value"].to_pylist()]
    context = SerializationContext(topic, MessageField.VALUE)
    assert registry.get_versions(f"{topic}-value") == [1]
    if encoding == "protobuf":
        made = ProtobufDeserializer(ORDER, {}, registry)
        assert [made(value, context).item for value in values] == ["pen", "ç"]
        return
    read: Any = AvroDeserializer(registry)
    if encoding == "json":
        read = JSONDeserializer(None, as_given, registry)
    assert [read(value, context) for value in values] == [row | {"price": 2.5} for row in ROWS]


def test_a_reader_reads_old_records_under_a_new_schema(
    service: Service, registry: SchemaRegistryClient
) -> None:
    store = service.broker.store
    store.create_topic("grown")
    context = SerializationContext("grown", MessageField.VALUE)
    first = AvroSerializer(registry, AVRO, as_given)(ROWS[0], context)
    document = json.loads(AVRO)
    document["fields"].append({"name": "count", "type": "int", "default": 1})
    wider = AvroSerializer(registry, json.dumps(document), as_given)
    second = wider(ROWS[1] | {"count": 7}, context)
    assert by_kafka(service, "grown", [first, second]) == [first, second]
    read = AvroDeserializer(registry, json.dumps(document))
    assert [read(value, context)["count"] for value in (first, second)] == [1, 7]
    assert store.read("grown").read_all()["count"].to_pylist() == [1, 7]
    document["fields"].append({"name": "must", "type": "int"})
    strict = AvroSerializer(registry, json.dumps(document), as_given)
    with pytest.raises(SchemaRegistryError) as caught:
        strict(ROWS[0] | {"count": 1, "must": 2}, context)
    assert (caught.value.http_status_code, caught.value.error_code) == (409, 409)


def test_references_of_serializers(service: Service, registry: SchemaRegistryClient) -> None:
    street = (
        '{"type":"record","name":"Street","namespace":"a","fields":[{"name":"no","type":"int"}]}'
    )
    registry.register_schema("street", Schema(street, "AVRO"))
    home = '{"type":"record","name":"Home","fields":[{"name":"street","type":"a.Street"}]}'
    schema = Schema(home, "AVRO", [SchemaReference("a.Street", "street", 1)])
    service.broker.store.create_topic("homes")
    context = SerializationContext("homes", MessageField.VALUE)
    row = {"street": {"no": 7}}
    value = AvroSerializer(registry, schema, as_given)(row, context)
    assert AvroDeserializer(registry)(value, context) == row
    service.broker.store.append("homes", [value])
    assert service.broker.store.read("homes").read_all()["street"].to_pylist() == [{"no": 7}]
    assert registry.get_referenced_by("street", 1) == [
        registry.get_latest_version("homes-value").schema_id
    ]


def cart_class() -> Any:
    """A message of a file that imports one of the user's own, and one of Protobuf's."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    inner = descriptor_pb2.FileDescriptorProto(
        name="in/line.proto", package="cart", syntax="proto3"
    )
    inner.message_type.add(name="Line").field.add(name="x", number=1, type=5, label=1)
    pool.Add(inner)
    file = descriptor_pb2.FileDescriptorProto(name="cart.proto", package="cart", syntax="proto3")
    file.dependency.extend(["in/line.proto", "google/protobuf/timestamp.proto"])
    message = file.message_type.add(name="Cart")
    for number, (name, kind, label) in enumerate(
        (("lines", ".cart.Line", 3), ("at", ".google.protobuf.Timestamp", 1)), 1
    ):
        made = message.field.add(name=name, number=number, type=FIELD.TYPE_MESSAGE, label=label)
        made.type_name = kind
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("cart.Cart"))


@pytest.mark.parametrize("skips_known", [True, False])
def test_imported_files_are_subjects_of_their_own(
    service: Service, registry: SchemaRegistryClient, skips_known: bool
) -> None:
    made, topic, store = cart_class(), f"carts-{skips_known}", service.broker.store
    store.create_topic(topic)
    cart = made()
    cart.lines.add(x=3)
    context = SerializationContext(topic, MessageField.VALUE)
    value = ProtobufSerializer(made, registry, {"skip.known.types": skips_known})(cart, context)
    named = registry.get_latest_version(f"{topic}-value").schema.references
    files = [*(["google/protobuf/timestamp.proto"] if not skips_known else []), "in/line.proto"]
    assert sorted(each.name for each in named) == files
    assert set(files) <= set(registry.get_subjects())
    assert ProtobufDeserializer(made, {}, registry)(value, context) == cart
    store.append(topic, [value])
    assert store.read(topic).read_all()["lines"].to_pylist() == [[{"x": 3}]]


def test_documents_refer_to_others(registry: SchemaRegistryClient) -> None:
    registry.register_schema("size", Schema('{"type": "integer"}', "JSON"))
    text = '{"type": "object", "title": "Box", "properties": {"w": {"$ref": "size.json"}}}'
    schema = Schema(text, "JSON", [SchemaReference("size.json", "size", 1)])
    context = SerializationContext("boxes", MessageField.VALUE)
    value = JSONSerializer(schema, registry, as_given)({"w": 3}, context)
    assert JSONDeserializer(None, as_given, registry)(value, context) == {"w": 3}


def test_the_client_by_itself(registry: SchemaRegistryClient) -> None:
    schema, other = Schema('{"type":"string"}', "AVRO"), Schema('"int"', "AVRO")
    number = registry.register_schema("alone", schema, normalize_schemas=True)
    assert registry.register_schema("alone-2", schema) == number
    assert registry.lookup_schema("alone", schema).version == 1
    assert registry.get_schema(number).schema_str == schema.schema_str
    assert registry.get_subjects_by_schema_id(number) == ["alone", "alone-2"]
    assert {each.subject for each in registry.get_schema_versions(number)} == {"alone", "alone-2"}
    assert registry.get_version("alone", 1).schema_id == number
    assert registry.test_compatibility("alone", other) is False
    assert registry.test_compatibility_all_versions("alone", other) is False
    assert registry.set_compatibility("alone", "NONE")["compatibility"] == "NONE"
    assert registry.get_compatibility("alone") == "NONE"
    assert registry.test_compatibility("alone", other) is True
    assert registry.get_config("alone").compatibility_level == "NONE"
    registry.delete_config("alone")
    assert registry.update_mode("alone", "READONLY") == "READONLY"
    assert registry.get_mode("alone") == "READONLY"
    with pytest.raises(SchemaRegistryError) as caught:
        registry.register_schema("alone", other)
    assert caught.value.error_code == 42205
    registry.delete_mode("alone")
    assert registry.get_global_mode() == "READWRITE"
    assert registry.get_contexts() == ["."]
    assert set(registry.get_schema_types()) == {"AVRO", "JSON", "PROTOBUF"}
    assert "alone" in registry.get_subjects()
    assert registry.delete_version("alone-2", 1) == 1
    assert registry.delete_subject("alone") == [1]
    assert registry.delete_subject("alone", permanent=True) == [1]
    for wrong in ("alone", "never"):
        with pytest.raises(SchemaRegistryError) as caught:
            registry.get_latest_version(wrong)
        assert caught.value.error_code == 40401


def test_a_serializer_uses_the_latest_version_with_some_properties(
    service: Service, registry: SchemaRegistryClient
) -> None:
    """It cannot register them by itself: the client finds no hash for what they are in."""
    wider = json.loads(AVRO)
    wider["fields"].append({"name": "count", "type": "int", "default": 1})
    for major, text in (("1", AVRO), ("2", json.dumps(wider))):
        body = {"schema": text, "metadata": {"properties": {"major": major}}}
        url = f"{service.http_url}/subjects/kept-value/versions"
        assert httpx.post(url, json=body, timeout=60).status_code == 200
    context = SerializationContext("kept", MessageField.VALUE)
    for major in ("1", "2"):
        known = registry.get_latest_with_metadata("kept-value", {"major": major})
        assert known.version == int(major)
        chosen = {"auto.register.schemas": False, "use.latest.with.metadata": {"major": major}}
        value = AvroSerializer(registry, AVRO, as_given, chosen)(ROWS[0], context)
        assert value is not None
        assert int.from_bytes(value[1:5], "big") == known.schema_id


def test_the_program_of_the_page_runs(service: Service) -> None:
    page = (Path(__file__).parents[3] / "docs" / "typed.md").read_text(encoding="utf-8")
    section = page.split("## Schemas for Confluent's clients")[1].split("\n## ")[0]
    (program,) = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
    for told, found in (
        ("http://localhost:9301", service.http_url),
        ("localhost:9092", service.kafka_address),
        ("grpc://localhost:9300", service.flight_url),
    ):
        assert told in program
        program = program.replace(told, found)
    names: dict[str, Any] = {}
    exec(compile(program, "typed.md", "exec"), names)
    names["registry"].close()


def test_a_client_with_a_key(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    key = auth.create(path, scope="write", prefix="mine.")[1]
    with served(tmp_path / "data", keys_file=path) as service:
        asked = {"url": service.http_url, "basic.auth.user.info": f"any:{key}"}
        with SchemaRegistryClient(asked) as registry:
            schema = Schema('"string"', "AVRO")
            assert registry.register_schema("mine.a-value", schema) == 1
            with pytest.raises(SchemaRegistryError) as caught:
                registry.register_schema("other-value", schema)
            assert (caught.value.http_status_code, caught.value.error_code) == (403, 40301)
        with (
            SchemaRegistryClient(asked | {"basic.auth.user.info": "any:wrong"}) as registry,
            pytest.raises(SchemaRegistryError) as caught,
        ):
            registry.get_subjects()
        assert caught.value.http_status_code == 401
