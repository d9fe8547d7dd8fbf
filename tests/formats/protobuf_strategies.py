"""Messages and values of them, for hypothesis: descriptors and objects of google.protobuf."""

from __future__ import annotations

import base64
import itertools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import strategies as st

from lamina.formats.typed import protobuf_schema
from lamina.formats.typed.schema_model import Type

Kinds = descriptor_pb2.FieldDescriptorProto
_INT32, _INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
_UINT32, _UINT64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    Kinds.TYPE_INT32: _INT32,
    Kinds.TYPE_SINT32: _INT32,
    Kinds.TYPE_SFIXED32: _INT32,
    Kinds.TYPE_INT64: _INT64,
    Kinds.TYPE_SINT64: _INT64,
    Kinds.TYPE_SFIXED64: _INT64,
    Kinds.TYPE_UINT32: _UINT32,
    Kinds.TYPE_FIXED32: _UINT32,
    Kinds.TYPE_UINT64: _UINT64,
    Kinds.TYPE_FIXED64: _UINT64,
    Kinds.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    Kinds.TYPE_DOUBLE: st.floats(allow_nan=False),
    Kinds.TYPE_BOOL: st.booleans(),
    Kinds.TYPE_STRING: st.text(max_size=40),
    Kinds.TYPE_BYTES: st.binary(max_size=40),
}
_KEYS = [kind for kind in SCALARS if kind not in (10, 1, 2, 12)]
NUMBERS = st.one_of(st.integers(1, 15), st.integers(16, 3000), st.just((1 << 29) - 1))
WELL_KNOWN = ("timestamp", "duration", "wrappers")


@st.composite
def files(draw: Any) -> descriptor_pb2.FileDescriptorProto:
    """A file of proto3, or of proto2 with required fields and defaults; `p.Root` is the message."""
    is_proto2 = draw(st.booleans())
    file = descriptor_pb2.FileDescriptorProto(name="root.proto", package="p")
    file.syntax = "proto2" if is_proto2 else "proto3"
    file.dependency.extend(f"google/protobuf/{each}.proto" for each in WELL_KNOWN)
    names = itertools.count()
    symbols = draw(st.lists(st.integers(-5, 300), min_size=1, max_size=4, unique=True))
    state = file.enum_type.add(name="State")
    for at, number in enumerate([0, *(each for each in symbols if each)]):
        state.value.add(name=f"S{at}", number=number)
    root = file.message_type.add(name="Root")
    _fill(draw, root, ".p.Root", is_proto2, 2, names)
    return file


def _fill(draw: Any, message: Any, full: str, is_proto2: bool, depth: int, names: Any) -> None:
    count = draw(st.integers(1, 6))
    numbers = draw(st.lists(NUMBERS, min_size=count, max_size=count, unique=True))
    for at, number in enumerate(numbers):
        field = message.field.add(name=f"f{at}", number=number, label=1)
        shape = draw(st.integers(0, 10))
        if shape == 0 and depth:
            _map(draw, message, field, full, names)
            continue
        _typed(draw, message, field, full, is_proto2, depth, names)
        if shape <= 3:
            field.label = 3
            if field.type not in (9, 11, 12) and draw(st.booleans()):
                field.options.packed = draw(st.booleans())
        elif shape == 4:
            _in_oneof(message, field, "either")
        elif is_proto2 and shape == 5 and field.type != 11:
            field.label = 2
        elif not is_proto2 and shape == 5 and field.type != 11:
            field.proto3_optional = True
    # Those of their own come behind the others.
    for field in message.field:
        if field.proto3_optional:
            _in_oneof(message, field, f"_{field.name}")


def _in_oneof(message: Any, field: Any, name: str) -> None:
    known = [each.name for each in message.oneof_decl]
    if name not in known:
        message.oneof_decl.add(name=name)
        known.append(name)
    field.oneof_index = known.index(name)


def _typed(
    draw: Any, message: Any, field: Any, full: str, is_proto2: bool, depth: int, names: Any
) -> None:
    shape = draw(st.integers(0, 9))
    if shape == 0:
        field.type, field.type_name = 14, ".p.State"
    elif shape == 1 and depth:
        name = f"M{next(names)}"
        field.type, field.type_name = 11, f"{full}.{name}"
        inner = message.nested_type.add(name=name)
        _fill(draw, inner, f"{full}.{name}", is_proto2, depth - 1, names)
    elif shape == 2:
        word = draw(
            st.sampled_from(
                ("Timestamp", "Duration", "Int64Value", "StringValue", "BoolValue", "UInt32Value")
            )
        )
        field.type, field.type_name = 11, f".google.protobuf.{word}"
    else:
        field.type = draw(st.sampled_from(list(SCALARS)))


def _map(draw: Any, message: Any, field: Any, full: str, names: Any) -> None:
    name = f"{field.name.upper()}Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=draw(st.sampled_from(_KEYS)))
    value = entry.field.add(name="value", number=2, label=1)
    _typed(draw, message, value, full, False, 0, names)
    field.type, field.type_name, field.label = 11, f"{full}.{name}", 3


def class_of(file: descriptor_pb2.FileDescriptorProto, name: str = "p.Root") -> Any:
    """The class of a file's message, in a pool of its own."""
    from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def schema_of(file: descriptor_pb2.FileDescriptorProto, name: str = "p.Root") -> Type:
    """The same message as Lamina has it."""
    return protobuf_schema.parse(base64.b64encode(file.SerializeToString()).decode(), name)


def is_map(field: Any) -> bool:
    """Whether a field of a descriptor is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


@st.composite
def filled(draw: Any, made: Any) -> Any:
    """A message of a class with drawn values."""
    message = made() if isinstance(made, type) else made
    done: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if field.is_required or draw(st.booleans()):
            if oneof is not None and oneof.name in done:
                continue
            done.add(oneof.name if oneof is not None else "")
            _set(draw, message, field)
    return message


def _set(draw: Any, message: Any, field: Any) -> None:
    name, target = field.name, getattr(message, field.name)
    if is_map(field):
        key, value = field.message_type.fields
        for each in draw(st.lists(SCALARS[key.type], max_size=3)):
            if value.message_type is not None:
                _known(draw, target[each])
            else:
                target[each] = draw(values_of(value))
    elif field.is_repeated:
        for _ in range(draw(st.integers(0, 3))):
            if field.message_type is not None:
                _known(draw, target.add())
            else:
                target.append(draw(values_of(field)))
    elif field.message_type is not None:
        target.SetInParent()
        _known(draw, target)
    else:
        setattr(message, name, draw(values_of(field)))


def _known(draw: Any, message: Any) -> None:
    word = message.DESCRIPTOR.full_name
    if word in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        nanoseconds = draw(st.integers(-(1 << 62), 1 << 62))
        message.FromNanoseconds(nanoseconds)
    else:
        draw(filled(message))


def values_of(field: Any) -> st.SearchStrategy[Any]:
    """Values of a field that is no message."""
    if field.enum_type is not None:
        return st.sampled_from([each.number for each in field.enum_type.values])
    return SCALARS[field.type]


def row_of(message: Any) -> dict[str, Any]:
    """A message as the row that its columns have."""
    return {field.name: _shown(message, field) for field in message.DESCRIPTOR.fields}


def _shown(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        inner = field.message_type.fields[1]
        return {key: _one(inner, value[key]) for key in value}
    if field.is_repeated:
        return [_one(field, each) for each in value]
    if field.has_presence and not message.HasField(field.name) and not field.has_default_value:
        return None
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.message_type is None:
        return value
    word = field.message_type.full_name
    if word in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return value.seconds * 10**9 + value.nanos
    if word.startswith("google.protobuf."):
        return value.value
    return row_of(value)
