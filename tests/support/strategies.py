"""Records as hypothesis draws them: null, empty, long and non-UTF-8 fields, any 64-bit time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lamina import records

MILLISECONDS = st.one_of(
    st.integers(1_600_000_000_000, 1_900_000_000_000), st.integers(-(1 << 63), (1 << 63) - 1)
)
BYTES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\x00", b"\xff\xfe\x80", b"\x00" * 33]),
    st.integers(100, 5000).map(lambda size: bytes(range(256)) * (size // 256 + 1)),
)
LARGE = st.integers(1 << 20, 3 << 20).map(lambda size: bytes(range(251)) * (size // 251) + b"!")
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
HEADERS = st.one_of(
    st.none(),
    st.lists(
        st.fixed_dictionaries({"key": NAMES, "value": st.one_of(st.none(), BYTES)}), max_size=4
    ),
)


ANY_NAMES = st.one_of(NAMES.map(str.encode), st.binary(min_size=1, max_size=6))
"""Names as Arrow may hold them: its string columns do not see to it that they are UTF-8."""


def rows(format_name: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows with every column that a format keeps, offsets aside."""
    value = st.one_of(st.none(), BYTES) if format_name in records.NULL_VALUES else BYTES
    columns = {
        "timestamp": MILLISECONDS,
        "key": st.one_of(st.none(), BYTES),
        "value": value,
        "headers": HEADERS,
        "tag": st.one_of(st.none(), BYTES),
        "node": st.one_of(st.none(), BYTES),
    }
    kept = {name: columns[name] for name in records.KEPT_COLUMNS[format_name] if name in columns}
    return st.lists(st.fixed_dictionaries(kept), min_size=1, max_size=12)


def batch_of(drawn: list[dict[str, Any]], format_name: str) -> pa.RecordBatch:
    """Builds the exact input batch of a format from drawn rows."""
    schema = records.INPUT_SCHEMAS[format_name]
    arrays = []
    for field in schema:
        values = [row.get(field.name) for row in drawn]
        if field.name == "timestamp":
            arrays.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
