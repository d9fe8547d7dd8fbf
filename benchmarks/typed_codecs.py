"""A part of `make bench-typed`: values to columns and back, each encoding beside its own library.

The same records as a flat event of ten fields and as a nested one. Decoding goes from bytes to
columns of Arrow, for libraries by way of their objects; Google's library only parses, which it does
in C, and makes no columns. Encoding goes from columns to bytes, for libraries from their objects.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pydantic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.bars import best_of
from lamina.formats.keratin import log as keratin
from lamina.formats.typed import (
    avro_decode,
    avro_encode,
    avro_program,
    avro_text,
    json_decode,
    json_encode,
    protobuf_decode,
    protobuf_encode,
    protobuf_layout,
    protobuf_program,
)
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.row_faults import Values
from lamina.formats.typed.schema_source import schema_of
from lamina.records import prepare

FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "session", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "kind", "type": "int"},
        {"name": "ok", "type": "boolean"},
        {"name": "price", "type": "double"},
        {"name": "load", "type": "float"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": "long"},
    ],
}
NESTED: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "count", "type": "int"},
                    ],
                },
            },
        },
        {
            "name": "address",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "string"}],
            },
        },
    ],
}
EVENTS = {"flat": FLAT, "nested": NESTED}
MESSAGES = {
    "flat": """syntax = "proto3"; message Event {
        int64 id = 1; string user = 2; string session = 3; string page = 4; int32 kind = 5;
        bool ok = 6; double price = 7; float load = 8; optional string note = 9;
        int64 at = 10; }""",
    "nested": """syntax = "proto3"; message Order {
        message Line { string sku = 1; int32 count = 2; }
        message Address { string city = 1; string zip = 2; }
        int64 id = 1; repeated Line lines = 2; Address address = 3; }""",
}
KERNELS, PEERS = ("avro", "json", "protobuf"), ("fastavro", "orjson", "google", "pydantic")
ROWS = {
    "avro": "Avro",
    "json": "JSON",
    "protobuf": "Protobuf",
    "fastavro": "fastavro",
    "orjson": "orjson",
    "google": "google.protobuf, parsing alone",
    "pydantic": "pydantic",
}
"""How the table of the documentation names them."""
Calls = dict[str, Callable[[], object]]


class Event(pydantic.BaseModel):
    id: int
    user: str
    session: str
    page: str
    kind: int
    ok: bool
    price: float
    load: float
    note: str | None
    at: int


class Line(pydantic.BaseModel):
    sku: str
    count: int


class Address(pydantic.BaseModel):
    city: str
    zip: str


class Order(pydantic.BaseModel):
    id: int
    lines: list[Line]
    address: Address


MODELS: dict[str, type[pydantic.BaseModel]] = {"flat": Event, "nested": Order}


def flat(number: int) -> dict[str, Any]:
    return {
        **{"id": number, "user": f"user-{number % 5000}", "session": f"{number * 7919:016x}"},
        **{"page": f"/shop/{number % 97}/item", "kind": number % 12, "ok": number % 3 > 0},
        **{"price": number * 0.25, "load": float(number % 7)},
        **{"note": None if number % 2 else f"note {number}", "at": 1_700_000_000_000 + number},
    }


def nested(number: int) -> dict[str, Any]:
    lines = [{"sku": f"sku-{number % 100 + each}", "count": each + 1} for each in range(number % 4)]
    return {"id": number, "lines": lines, "address": {"city": "Bern", "zip": f"{number % 9999}"}}


def rows_of(event: str, count: int) -> list[dict[str, Any]]:
    return [(flat if event == "flat" else nested)(number) for number in range(count)]


def written_by_fastavro(schema: Any, rows: list[dict[str, Any]]) -> list[bytes]:
    made = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        made.append(out.getvalue())
    return made


def read_by_fastavro(schema: Any, values: list[bytes]) -> pa.Table:
    rows = [fastavro.schemaless_reader(io.BytesIO(value), schema, None) for value in values]
    return pa.Table.from_pylist(rows)


def google_class(event: str) -> Any:
    """The class that Google's library has for an event: the fields of `MESSAGES`."""
    words = descriptor_pb2.FieldDescriptorProto
    kinds = {"long": words.TYPE_INT64, "int": words.TYPE_INT32, "string": words.TYPE_STRING}
    kinds |= {"boolean": words.TYPE_BOOL, "double": words.TYPE_DOUBLE, "float": words.TYPE_FLOAT}
    file = descriptor_pb2.FileDescriptorProto(name=f"{event}.proto", syntax="proto3")

    def message(made: Any, schema: dict[str, Any]) -> None:
        made.name = schema["name"]
        for number, each in enumerate(schema["fields"], start=1):
            kind = each["type"][1] if isinstance(each["type"], list) else each["type"]
            label = words.LABEL_OPTIONAL
            if isinstance(kind, dict) and kind["type"] == "array":
                kind, label = kind["items"], words.LABEL_REPEATED
            field = made.field.add(name=each["name"], number=number, label=label)
            if isinstance(kind, dict):
                message(made.nested_type.add(), kind)
                field.type = words.TYPE_MESSAGE
                field.type_name = f".{EVENTS[event]['name']}.{kind['name']}"
            else:
                field.type = kinds[kind]

    message(file.message_type.add(), EVENTS[event])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(EVENTS[event]["name"]))


def calls_of(event: str, rows: list[dict[str, Any]]) -> Calls:
    """Everything that is timed for an event; each kernel's columns are held against the rows."""
    kind = avro_text.parse(json.dumps(EVENTS[event]))
    message = schema_of(MESSAGES[event], "protobuf")
    parsed = fastavro.parse_schema(EVENTS[event])
    table = pa.Table.from_pylist(rows, schema=arrow_schema(kind))
    avro, template = avro_program.compiled(kind, kind), json_encode.template(kind)
    steps, tables = protobuf_layout.compiled(message), protobuf_program.compiled(message)
    encode: Calls = {
        "avro": lambda: avro_encode.encode(avro, table),
        "json": lambda: json_encode.encode(template, table),
        "protobuf": lambda: protobuf_encode.encode(steps, table),
    }
    columns: dict[str, Any] = {name: call() for name, call in encode.items()}
    decode: Calls = {
        "avro": lambda: avro_decode.decode(avro, Values.of(columns["avro"])),
        "json": lambda: json_decode.decode(kind, Values.of(columns["json"])),
        "protobuf": lambda: protobuf_decode.decode(tables, Values.of(columns["protobuf"])),
    }
    for name, call in decode.items():
        found: Any = call()
        got = [column.to_pylist() for column in found.columns]
        assert got == [[row[field] for row in rows] for field in rows[0]], (name, event)
    values = {name: column.to_pylist() for name, column in columns.items()}
    model, parser = MODELS[event], google_class(event)
    models, objects = [model(**row) for row in rows], [parser(**row) for row in rows]
    decode |= {
        "fastavro": lambda: read_by_fastavro(parsed, values["avro"]),
        "orjson": lambda: pa.Table.from_pylist([orjson.loads(each) for each in values["json"]]),
        "google": lambda: [parser.FromString(each) for each in values["protobuf"]],
        "pydantic": lambda: [model.model_validate_json(each) for each in values["json"]],
    }
    encode |= {
        "fastavro": lambda: written_by_fastavro(parsed, rows),
        "orjson": lambda: [orjson.dumps(row) for row in rows],
        "google": lambda: [each.SerializeToString() for each in objects],
        "pydantic": lambda: [each.model_dump_json() for each in models],
    }
    timed = {f"{name} {event} decode": call for name, call in decode.items()}
    return timed | {f"{name} {event} encode": call for name, call in encode.items()}


def measured(count: int, rounds: int) -> dict[str, float]:
    """Seconds for all records, by `<who> <event> <way>`; and those of the keratin scan."""
    rows = {event: rows_of(event, count) for event in EVENTS}
    calls = {name: call for event in EVENTS for name, call in calls_of(event, rows[event]).items()}
    values = written_by_fastavro(fastavro.parse_schema(FLAT), rows["flat"])
    plain = pa.table({"value": pa.array(values, pa.binary())})
    log, _ = keratin.encode(prepare(plain, "keratin", now_ms=1), 0)
    calls["keratin scan"] = lambda: keratin.decode(log, keratin.scan(log, 0))
    return best_of(calls, rounds=rounds, repeat=1)


def table_of(best: dict[str, float], count: int) -> str:
    """The rows of the documentation: million records per second."""
    ways = [(event, way) for event in EVENTS for way in ("decode", "encode")]
    lines = [
        "| | " + " | ".join(f"{event}, {way}" for event, way in ways) + " |",
        "|---" * (len(ways) + 1) + "|",
    ]
    for name, shown in ROWS.items():
        cells = [f"{count / best[f'{name} {event} {way}'] / 1e6:.2f}" for event, way in ways]
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
