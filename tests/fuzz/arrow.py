"""Arrow streams as they arrive: whatever is taken is sound, of the exact types and bounded."""

from __future__ import annotations

import pyarrow as pa

from lamina import received
from lamina.records import COLUMN_TYPES
from lamina.wire import messages

UNPACKED_MAX = 1 << 20
NOW = 1_700_000_000_000
_HEADERS = [{"key": "h", "value": b"v"}, {"key": "é", "value": None}]
_COLUMNS = {
    "timestamp": [NOW, NOW + 1, NOW + 2],
    "key": [None, b"k", b""],
    "value": [b"v" * 30, b"", b"third"],
    "headers": [_HEADERS, None, _HEADERS[:1]],
    "tag": [None, b"tag", b"x"],
    "node": [b"", None, b"n"],
}
_CODECS = (None, "lz4", "zstd")


def check(data: bytes) -> None:
    """Judges a stream of records: what is taken can be read and moved about."""
    arrived = received.announced(pa.py_buffer(data))
    batch = received.unpacked(arrived, COLUMN_TYPES, UNPACKED_MAX)
    assert arrived.size_bytes <= UNPACKED_MAX
    assert all(COLUMN_TYPES[field.name] == field.type for field in batch.schema)
    batch.validate(full=True)
    if batch.num_columns:
        half = batch.num_rows // 2
        moved = pa.concat_batches([batch, batch]).take(pa.array(range(half, batch.num_rows)))
        assert moved.to_pylist() == batch.to_pylist()[half:]


def check_held(data: bytes) -> None:
    """Judges a stream that names records."""
    batch = messages.decode_held(data, UNPACKED_MAX)
    assert all(column.type == pa.int64() for column in batch.columns)
    batch.to_pylist() if batch.num_columns else None


def streams() -> list[bytes]:
    """Every column there is, plain and compressed."""
    chosen = [("value",), ("timestamp", "key", "value", "headers"), ("value", "tag", "node")]
    return [stream_of(batch(*names), codec) for names in chosen for codec in _CODECS]


def held_streams() -> list[bytes]:
    named = pa.record_batch({"offset": [0, 1], "partition": [0, 0], "epoch": [1, 1]})
    return [stream_of(named), stream_of(pa.record_batch({"offsets": [1, 2]}), "zstd")]


def batch(*names: str) -> pa.RecordBatch:
    arrays = [pa.array(_COLUMNS[name], COLUMN_TYPES[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, list(names))


def stream_of(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
