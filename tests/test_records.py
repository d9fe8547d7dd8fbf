"""What users hand in becomes the exact batch of a format, or is refused with a reason."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina import records
from lamina.errors import InvalidRequest, UnsupportedField
from lamina.records import INPUT_SCHEMAS, KEPT_COLUMNS, prepare
from tests.support.contract import plain
from tests.support.strategies import batch_of, rows

NOW_MS = 1_700_000_000_000
WRITTEN = ("frame", "keratin", "wal")


def values_of(batch: pa.RecordBatch, column: str = "value") -> list[Any]:
    return batch.column(column).to_pylist()


def times_of(batch: pa.RecordBatch) -> list[int]:
    return batch.column("timestamp").cast(pa.int64()).to_pylist()


# ---------------------------------------------------------------- what is taken


@pytest.mark.parametrize("format_name", KEPT_COLUMNS)
def test_an_exact_batch_is_returned_without_a_copy(format_name: str) -> None:
    row = {"timestamp": 1, "value": b"v", "offset": 0}
    batch = batch_of([row] * 3, format_name)
    assert prepare(batch, format_name, now_ms=NOW_MS) is batch
    sliced = batch.slice(1, 1)
    assert prepare(sliced, format_name, now_ms=NOW_MS) is sliced


@pytest.mark.parametrize("format_name", WRITTEN)
def test_a_list_of_bytes_is_a_list_of_values(format_name: str) -> None:
    batch = prepare([b"a", bytearray(b"b"), memoryview(b"")], format_name, now_ms=NOW_MS)
    assert batch.schema.equals(INPUT_SCHEMAS[format_name])
    assert values_of(batch) == [b"a", b"b", b""]
    assert times_of(batch) == [NOW_MS] * 3


def test_tuples_are_keys_and_values_and_may_be_mixed_with_the_rest() -> None:
    given_rows: list[Any] = [(b"k", b"v"), (None, None), b"x", {"value": b"y", "timestamp": 5}]
    batch = prepare(given_rows, "keratin", now_ms=NOW_MS)
    assert values_of(batch, "key") == [b"k", None, None, None]
    assert values_of(batch) == [b"v", None, b"x", b"y"]
    assert times_of(batch) == [NOW_MS, NOW_MS, NOW_MS, 5]


def test_dicts_give_any_column_and_headers_keep_order_and_doubles() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    batch = prepare([{"value": b"v", "headers": headers}, {"value": b"w"}], "keratin", now_ms=1)
    assert values_of(batch, "headers") == [headers, None]


def test_an_iterator_of_rows_loses_nothing() -> None:
    batch = prepare(iter([(b"k", b"v")]), "keratin", now_ms=1)  # type: ignore[arg-type]
    assert values_of(batch, "key") == [b"k"]


def test_a_table_of_many_chunks_becomes_one_batch() -> None:
    parts = [pa.record_batch({"value": [bytes([i])], "key": [None]}) for i in range(5)]
    parts[2] = parts[2].slice(1)
    table = pa.Table.from_batches(parts)
    batch = prepare(table, "frame", now_ms=1)
    assert values_of(batch) == [b"\x00", b"\x01", b"\x03", b"\x04"]
    batch.validate(full=True)


@pytest.mark.parametrize("format_name", WRITTEN)
@pytest.mark.parametrize(
    "nothing", [[], pa.table({"value": pa.array([], pa.binary())}), pa.table({"value": []})]
)
def test_nothing_becomes_an_empty_batch(nothing: Any, format_name: str) -> None:
    batch = prepare(nothing, format_name, now_ms=1)
    assert batch.num_rows == 0
    assert batch.schema.equals(INPUT_SCHEMAS[format_name])


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(2),
        pa.dictionary(pa.int32(), pa.binary()),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_cast_if_nothing_is_lost(kind: pa.DataType) -> None:
    base = pa.array([b"zz", b"ab", None, b"cd"], pa.binary())
    text = base.cast(pa.string())
    if pa.types.is_dictionary(kind):
        array = (text if kind.value_type == pa.string() else base).dictionary_encode().cast(kind)
    else:
        array = (text if "string" in str(kind) else base).cast(kind)
    batch = prepare(pa.table({"value": array.slice(1)}), "keratin", now_ms=1)
    assert batch.column("value").type == pa.binary()
    assert values_of(batch) == [b"ab", None, b"cd"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1000, 2000], pa.int64()),
        pa.array([1, 2], pa.timestamp("s")),
        pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC")),
        pa.array([1000, 2000], pa.timestamp("ms", "Europe/Berlin")),
    ],
    ids=lambda array: str(array.type),
)
def test_times_of_any_unit_become_milliseconds(array: pa.Array) -> None:
    table = pa.table({"value": [b"a", b"b"], "timestamp": array})
    assert times_of(prepare(table, "frame", now_ms=1)) == [1000, 2000]


def test_headers_of_neighbouring_types_are_taken() -> None:
    large = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    mapped = pa.map_(pa.string(), pa.binary())
    for kind, item in ((large, {"key": "a", "value": b"1"}), (mapped, ("a", b"1"))):
        table = pa.table({"value": [b"v"], "headers": pa.array([[item]], kind)})
        batch = prepare(table, "keratin", now_ms=1)
        assert values_of(batch, "headers") == [[{"key": "a", "value": b"1"}]]


def test_missing_times_become_now_and_given_ones_stay() -> None:
    exact = batch_of([{"timestamp": None, "value": b"a"}, {"timestamp": 7, "value": b"b"}], "frame")
    assert times_of(prepare(exact, "frame", now_ms=NOW_MS)) == [NOW_MS, 7]
    assert times_of(prepare(exact.slice(1), "frame", now_ms=NOW_MS)) == [7]
    assert exact.column("timestamp").null_count == 1, "the caller's batch is not changed"


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(WRITTEN), st.integers(1, 4))
def test_however_records_are_cut_into_chunks_they_come_out_the_same(
    data: st.DataObject, format_name: str, pieces: int
) -> None:
    drawn = data.draw(rows(format_name))
    whole = batch_of(drawn, format_name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(drawn)), max_size=pieces)))
    bounds = zip([0, *cuts], [*cuts, len(drawn)], strict=True)
    chunks = [whole.slice(start, end - start) for start, end in bounds]
    names = data.draw(st.permutations(whole.schema.names))
    table = pa.Table.from_batches(chunks).select(names)
    batch = prepare(table, format_name, now_ms=NOW_MS)
    assert batch.equals(whole)
    batch.validate(full=True)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(WRITTEN))
def test_rows_and_batches_of_the_same_records_are_the_same(
    data: st.DataObject, format_name: str
) -> None:
    drawn = data.draw(rows(format_name))
    assert plain(prepare(drawn, format_name, now_ms=1)) == plain(batch_of(drawn, format_name))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("format_name", "column", "able"),
    [
        ("frame", "headers", "keratin"),
        ("frame", "tag", "wal"),
        ("frame", "node", "wal"),
        ("keratin", "tag", "wal"),
        ("keratin", "node", "wal"),
        ("wal", "key", "keratin"),
        ("wal", "headers", "keratin"),
    ],
)
def test_a_column_that_a_format_cannot_keep_is_refused_naming_one_that_can(
    format_name: str, column: str, able: str
) -> None:
    content: Any = [{"key": "a", "value": b"b"}] if column == "headers" else b"x"
    for given_records in (
        [{"value": b"v"}, {"value": b"v", column: content}],
        pa.table(
            {
                "value": [b"v", b"w"],
                column: pa.array([None, content], records.RECORD_SCHEMA.field(column).type),
            }
        ),
    ):
        with pytest.raises(
            UnsupportedField, match=rf"{format_name} cannot keep '{column}'.*{able}"
        ):
            prepare(given_records, format_name, now_ms=1)


@pytest.mark.parametrize("format_name", WRITTEN)
def test_a_column_that_is_all_null_loses_nothing_and_is_accepted(format_name: str) -> None:
    every = {name: pa.nulls(2) for name in records.RECORD_SCHEMA.names}
    table = pa.table(every | {"value": [b"a", b"b"]})
    batch = prepare(table, format_name, now_ms=NOW_MS)
    assert values_of(batch) == [b"a", b"b"]
    assert times_of(batch) == [NOW_MS] * 2


def test_a_null_value_is_a_tombstone_where_it_is_kept_and_refused_elsewhere() -> None:
    assert values_of(prepare([{"value": None}], "keratin", now_ms=1)) == [None]
    for format_name in ("frame", "wal"):
        exact = batch_of([{"timestamp": 1, "value": None}], format_name)
        for given_records in (exact, [{"value": None}]):
            with pytest.raises(UnsupportedField, match=f"{format_name} has no null values.*kerat"):
                prepare(given_records, format_name, now_ms=1)


def test_records_without_values_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="need a column 'value'"):
        prepare(pa.table({"key": [b"k"]}), "keratin", now_ms=1)
    with pytest.raises(InvalidRequest, match="tombstone"):
        prepare([{"key": b"k"}], "keratin", now_ms=1)


def test_an_unknown_column_is_refused_naming_the_known_ones() -> None:
    for given_records in ([{"valeu": b"v"}], pa.table({"value": [b"v"], "valeu": [None]})):
        with pytest.raises(
            InvalidRequest, match=r"'valeu'.*offset, timestamp, key, value, headers"
        ):
            prepare(given_records, "keratin", now_ms=1)


def test_a_column_given_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"])
    with pytest.raises(InvalidRequest, match="'value' is given 2 times"):
        prepare(twice, "keratin", now_ms=1)


def test_offsets_are_the_logs_to_give_except_for_an_archive() -> None:
    with pytest.raises(InvalidRequest, match="assigned by the log"):
        prepare([{"value": b"v", "offset": 1}], "keratin", now_ms=1)
    with pytest.raises(InvalidRequest, match="offset"):
        prepare([b"v"], "strm", now_ms=1)
    with pytest.raises(InvalidRequest, match="offset"):
        prepare([{"value": b"v", "offset": None}], "strm", now_ms=1)
    assert values_of(prepare([{"value": b"v", "offset": 9}], "strm", now_ms=1), "offset") == [9]


@pytest.mark.parametrize(
    "row",
    [
        {"value": 5},
        {"value": [b"v"]},
        {"value": "\udc80"},
        {"value": b"v", "timestamp": "yesterday"},
        {"value": b"v", "timestamp": 1 << 70},
        {"value": b"v", "headers": [5]},
        {"value": b"v", "headers": {"a": b"b"}},
        {"value": b"v", "headers": [{"key": None, "value": b"b"}]},
        {"value": b"v", "headers": [None]},
        {"value": b"v", "headers": [{"key": "a", "val": b"b"}]},
        5,
        "text",
        None,
        (b"k", b"v", b"?"),
        [b"k", b"v"],
    ],
    ids=repr,
)
def test_a_row_that_does_not_fit_is_refused_before_anything_is_written(row: Any) -> None:
    with pytest.raises(InvalidRequest):
        prepare([b"sound", row], "keratin", now_ms=1)


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ("value", pa.array([5])),
        ("value", pa.array([True])),
        ("value", pa.array([[b"v"]])),
        ("timestamp", pa.array([1.5])),
        ("timestamp", pa.array([1], pa.timestamp("us"))),
        ("timestamp", pa.array([1 << 62], pa.timestamp("s"))),
        ("headers", pa.array([[{"key": None, "value": b"b"}]])),
    ],
    ids=lambda given: given if isinstance(given, str) else str(given.type),
)
def test_a_cast_that_would_lose_something_is_refused_naming_the_column(
    column: str, array: pa.Array
) -> None:
    table = pa.table({"value": [b"v"]} | {column: array})
    with pytest.raises(InvalidRequest, match=f"column '{column}' must be"):
        prepare(table, "keratin", now_ms=1)


def test_a_nameless_header_outside_of_a_slice_does_no_harm() -> None:
    headers = pa.array([[{"key": None, "value": b"b"}], [{"key": "a", "value": b"b"}]],
                       records.HEADERS)  # fmt: skip
    exact = batch_of([{"timestamp": 1, "value": b"v"}] * 2, "keratin")
    exact = exact.set_column(3, INPUT_SCHEMAS["keratin"].field("headers"), headers)
    with pytest.raises(InvalidRequest, match="null key"):
        prepare(exact, "keratin", now_ms=1)
    assert prepare(exact.slice(1), "keratin", now_ms=1).num_rows == 1


def test_no_field_of_a_header_is_left_out_in_silence() -> None:
    for names in (["key", "value", "value"], ["key", "value", "more"]):
        arrays = [pa.array(["k"]), pa.array([b"v"]), pa.array([b"w"])]
        items = pa.StructArray.from_arrays(arrays, names=names)
        table = pa.table({"value": [b"v"], "headers": pa.ListArray.from_arrays([0, 1], items)})
        with pytest.raises(InvalidRequest, match="a key and a value, each once"):
            prepare(table, "keratin", now_ms=1)
