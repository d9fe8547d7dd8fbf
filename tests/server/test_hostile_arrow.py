"""Batches that lie: refused by a typed error, nothing stored, nobody else disturbed.

A batch is lied about in the bytes of its Arrow stream, where no library corrects it on the way.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import lamina
from lamina import received
from lamina.errors import InvalidRequest, NotAllowed
from lamina.records import COLUMN_TYPES
from lamina.server import auth
from lamina.wire import failures, messages
from tests.fuzz.arrow import batch, stream_of
from tests.server.rig import ServerProcess

VALUES = [b"a" * 24, b"b" * 24, b"c" * 24, b"d" * 24]
OFFSETS = struct.pack("<5i", 0, 24, 48, 72, 96)


def values() -> pa.RecordBatch:
    return pa.record_batch([pa.array(VALUES, pa.binary())], ["value"])


def headers(*keys: bytes) -> pa.RecordBatch:
    made = [[{"key": key.decode(), "value": b"v"}] for key in keys]
    arrays = [pa.array([b"v"] * len(keys), pa.binary()), pa.array(made, COLUMN_TYPES["headers"])]
    return pa.RecordBatch.from_arrays(arrays, ["value", "headers"])


def patched(stream: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert stream.count(old) >= 1, "there is nothing to lie about"
    return stream.replace(old, new, 1)


def lying_offsets(*offsets: int) -> bytes:
    return patched(stream_of(values()), OFFSETS, struct.pack("<5i", *offsets))


def typed_as(kind: pa.DataType, column: str = "value") -> bytes:
    array = pa.array([b"x", b"y"], pa.binary()).cast(pa.string()).cast(kind)
    return stream_of(pa.RecordBatch.from_arrays([array], [column]))


def of_array(array: pa.Array, column: str = "value") -> bytes:
    return stream_of(pa.RecordBatch.from_arrays([array], [column]))


def rows_claimed(count: int) -> bytes:
    """Says that there are other rows than the buffers have, wherever a 4 stands for them."""
    return stream_of(values()).replace(struct.pack("<q", 4), struct.pack("<q", count))


def two_batches() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, values().schema) as stream:
        stream.write_batch(values())
        stream.write_batch(values())
    return bytes(sink.getvalue().to_pybytes())


def big_endian() -> bytes:
    """Says that numbers are big-endian: its schema's field for that lies on any 1 there is."""
    stream = bytearray(stream_of(headers(b"name")))

    def number(kind: str, at: int) -> int:
        return int(struct.unpack_from(f"<{kind}", stream, at)[0])

    root = 8 + number("I", 8)
    header = root + number("H", root - number("i", root) + 8)
    schema = header + number("I", header)
    one = next(at for at in range(schema + 2, 8 + number("i", 4), 2) if number("h", at) == 1)
    struct.pack_into("<H", stream, schema - number("i", schema) + 4, one - schema)
    return bytes(stream)


LIES: dict[str, Callable[[], bytes]] = {
    "offsets beyond the data": lambda: lying_offsets(0, 24, 48, 72, 1 << 20),
    "offsets far beyond the data": lambda: lying_offsets(0, 24, 48, 72, (1 << 31) - 1),
    "offsets that fall": lambda: lying_offsets(0, 48, 24, 72, 96),
    "negative offsets": lambda: lying_offsets(-64, 24, 48, 72, 96),
    "offsets inside that leave and come back": lambda: lying_offsets(0, 1 << 20, 48, 72, 96),
    "more rows than offsets": lambda: rows_claimed(1000),
    "more rows than memory": lambda: rows_claimed(1 << 60),
    "a negative number of rows": lambda: rows_claimed(-4),
    "keys of headers that are no text": lambda: patched(
        stream_of(headers(b"name", b"name")), b"namename", b"n\xff\xfe\xfdname"
    ),
    "text": lambda: typed_as(pa.string()),
    "large binary": lambda: typed_as(pa.large_binary()),
    "views": lambda: typed_as(pa.binary_view()),
    "text views": lambda: typed_as(pa.string_view()),
    "a dictionary": lambda: of_array(pa.array(["x", "x"]).dictionary_encode()),
    "runs": lambda: of_array(pa.RunEndEncodedArray.from_arrays([2], [b"x"])),
    "a union": lambda: of_array(
        pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([b"x", b"y"])])
    ),
    "fixed size": lambda: of_array(pa.array([b"x", b"y"], pa.binary(1))),
    "an extension": lambda: of_array(pa.array([b"x" * 16] * 2, pa.uuid())),
    "nulls of no type": lambda: of_array(pa.nulls(1 << 16)),
    "a list of values": lambda: of_array(pa.array([[b"x"], [b"y"]])),
    "times of another unit": lambda: of_array(
        pa.array([1, 2], pa.timestamp("us", tz="UTC")), "timestamp"
    ),
    "an unknown column": lambda: typed_as(pa.binary(), "secret"),
    "a column twice": lambda: stream_of(
        pa.RecordBatch.from_arrays([pa.array([b"x"]), pa.array([b"y"])], ["value", "value"])
    ),
    "two batches": two_batches,
    "big-endian": big_endian,
    "half a stream": lambda: stream_of(values())[:300],
    "no stream": lambda: b"no stream at all",
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = str(tmp_path_factory.mktemp("keys") / "keys.json")
    made = {"file": path, "admin": auth.create(path, scope="admin")[1]}
    made["write"] = auth.create(path, scope="write", prefix="mine.")[1]
    made["read"] = auth.create(path, scope="read", prefix="mine.")[1]
    return made


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("lies") / "data"
    with ServerProcess(folder, f"keys.file={keys['file']}", "max.request.bytes=1048576") as running:
        with lamina.connect(running.url, api_key=keys["admin"]) as store:
            for name, format_name in (("mine.k", "keratin"), ("mine.w", "wal"), ("other", "frame")):
                store.create_topic(name, format=format_name, partitions=2)
                store.append(name, b"first", partition=0)
        yield running


class Raw:
    """A stranger's connection: appends made of whatever bytes."""

    def __init__(self, url: str, key: str) -> None:
        self._client = flight.connect(url)
        self.options = flight.FlightCallOptions(
            timeout=60, headers=[(b"authorization", f"Bearer {key}".encode())]
        )
        self._stream: Any = None

    def exchange(self, schema: pa.Schema) -> tuple[Any, Any]:
        command = flight.FlightDescriptor.for_command(b"append")
        writer, reader = self._client.do_exchange(command, self.options)
        writer.begin(schema)
        return writer, reader

    def append(self, stream: bytes, topic: str = "mine.k", partition: int | None = 0) -> Any:
        """Returns the answer, or the error that it tells of."""
        if self._stream is None:
            self._stream = self.exchange(messages.NO_COLUMNS)
        writer, reader = self._stream
        order = json.dumps({"topic": topic, "partition": partition}).encode()
        writer.write_metadata(order + b"\n" + stream)
        answer = reader.read_chunk().app_metadata.to_pybytes()
        described = json.loads(answer)
        return failures.decode(answer) if "error" in described else described

    def send_own(self, batch: pa.RecordBatch, codec: str | None) -> Any:
        """Sends a batch as Flight itself would carry it."""
        command = flight.FlightDescriptor.for_command(b"append")
        writer, reader = self._client.do_exchange(command, self.options)
        writer.begin(batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec))
        writer.write_with_metadata(batch, b'{"topic": "mine.k"}')
        return reader.read_chunk()

    def act(self, name: str, body: bytes) -> Any:
        return list(self._client.do_action(flight.Action(name, body), self.options))

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def stranger(server: ServerProcess, keys: dict[str, str]) -> Iterator[Raw]:
    raw = Raw(server.url, keys["write"])
    yield raw
    raw.close()


def ends(server: ServerProcess, key: str) -> list[int]:
    with lamina.connect(server.url, api_key=key) as store:
        return [store.latest_offset(t, p) for t in ("mine.k", "mine.w") for p in (0, 1)]


@pytest.mark.parametrize("partition", [0, None])
@pytest.mark.parametrize("topic", ["mine.k", "mine.w"])
def test_a_batch_that_lies_is_refused_and_its_stream_goes_on(
    server: ServerProcess, keys: dict[str, str], stranger: Raw, topic: str, partition: int | None
) -> None:
    before = ends(server, keys["admin"])
    for name, make in LIES.items():
        told = stranger.append(make(), topic, partition)
        assert type(told) is lamina.InvalidRequest, f"{name}: {told!r}"
    assert ends(server, keys["admin"]) == before, "nothing was stored"
    honest = batch("value", "tag") if topic == "mine.w" else batch("value", "key", "headers")
    assert stranger.append(stream_of(honest, "zstd"), topic, 0)["count"] == 3
    assert server.process is not None
    assert server.process.poll() is None


@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
def test_a_flight_batch_of_its_own_is_refused_before_it_is_decoded(
    server: ServerProcess, stranger: Raw, codec: str | None
) -> None:
    """Arrow would unpack it, whatever it is, before anybody could look."""
    large = pa.record_batch([pa.array([bytes(256 << 20)], pa.binary())], ["value"])
    before = peak_bytes(server)
    with pytest.raises((flight.FlightError, OSError)) as caught:
        stranger.send_own(large if codec else values(), codec)
    told = failures.decode(getattr(caught.value, "extra_info", b"") or b"")
    assert told is None or "without columns" in str(told)
    assert peak_bytes(server) - before < 64 << 20


def peak_bytes(server: ServerProcess) -> int:
    assert server.process is not None
    with open(f"/proc/{server.process.pid}/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("topic", ["mine.k", "other"])
def test_a_small_message_that_unpacks_to_much_costs_nothing(
    server: ServerProcess, stranger: Raw, codec: str, topic: str
) -> None:
    large = pa.record_batch([pa.array([bytes(512 << 20)], pa.binary())], ["value"])
    stream = stream_of(large, codec)
    before = peak_bytes(server)
    told = stranger.append(stream, topic)
    wanted = NotAllowed if topic == "other" else lamina.InvalidRequest
    assert type(told) is wanted
    assert peak_bytes(server) - before < len(stream) + (32 << 20)


def test_a_length_that_a_compressed_buffer_claims_is_bounded(stranger: Raw) -> None:
    zeros = pa.array([bytes(4096)] * 4, pa.binary())
    stream = stream_of(pa.record_batch([zeros], ["value"]), "lz4")
    before, said, after = stream.rpartition(struct.pack("<q", 4 * 4096))
    for claimed in (1 << 62, -2, -(1 << 63), 1 << 21, 0, 1, 4 * 4096 - 1, 4 * 4096 + 64):
        lie = before + struct.pack("<q", claimed) + after
        assert type(stranger.append(lie)) is lamina.InvalidRequest, claimed
    assert stranger.append(before + said + after)["count"] == 4


def test_a_key_that_may_not_write_is_refused_before_it_sends_anything(
    server: ServerProcess, keys: dict[str, str]
) -> None:
    reader = Raw(server.url, keys["read"])
    with pytest.raises((flight.FlightError, OSError)) as caught:
        reader.append(stream_of(values()))
    told = failures.decode(getattr(caught.value, "extra_info", b"") or b"")
    assert told is None or isinstance(told, NotAllowed)
    reader.close()


HELD = stream_of(pa.record_batch({"offset": pa.array([0], pa.int64())}))


@pytest.mark.parametrize(
    "stream",
    [
        of_array(pa.array([0], pa.int32()), "offset"),
        of_array(pa.array(["0"]), "offset"),
        of_array(pa.array([0]).dictionary_encode(), "offset"),
        of_array(pa.array([[0]]), "offset"),
        of_array(pa.array([0], pa.int64()), "value"),
        HELD.replace(struct.pack("<q", 1), struct.pack("<q", 1 << 40)),
        HELD[:-30],
        stream_of(pa.record_batch({"offset": pa.array(bytes(1 << 26), pa.int64())}), "zstd"),
    ],
    ids=["int32", "text", "dictionary", "list", "unknown", "rows", "cut", "large"],
)
def test_a_call_whose_records_lie_is_refused(
    server: ServerProcess, keys: dict[str, str], stranger: Raw, stream: bytes
) -> None:
    with lamina.connect(server.url, api_key=keys["write"]) as store:
        group = store.group("mine.k", "g")
        before = [(each.committed, each.records) for each in group.lag()]
        with pytest.raises(flight.FlightError) as caught:
            stranger.act("group.ack", b'{"topic": "mine.k", "group": "g"}\n' + stream)
        assert type(failures.decode(caught.value.extra_info)) is lamina.InvalidRequest
        assert [(each.committed, each.records) for each in group.lag()] == before


# ---------------------------------------------------------------- foreign code in this process


def lying_arrays() -> dict[str, pa.Array]:
    def binary(offsets: list[int], data: bytes, kind: pa.DataType = pa.binary()) -> pa.Array:
        packed = struct.pack(f"<{len(offsets)}i", *offsets)
        buffers = [None, pa.py_buffer(packed), pa.py_buffer(data)]
        return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)

    long_view = struct.pack("<i4sii", 100, b"long", 7, 1 << 20)
    view = [None, pa.py_buffer(long_view), pa.py_buffer(b"x" * 100)]
    return {
        "offsets": binary([0, 1 << 24, 5], b"hello"),
        "falling": binary([0, 4, 2, 5], b"hello"),
        "text": binary([0, 2, 4], b"\xff\xfe\xfd\xfc", pa.string()),
        "view": pa.Array.from_buffers(pa.binary_view(), 1, view),
        "dictionary": pa.DictionaryArray.from_arrays(
            pa.array([0, 9], pa.int32()), pa.array([b"x"]), safe=False
        ),
    }


@pytest.mark.parametrize("name", lying_arrays())
@pytest.mark.parametrize("door", ["embedded", "served"])
def test_a_batch_of_foreign_code_that_lies_is_refused(
    tmp_path: Path, server: ServerProcess, keys: dict[str, str], door: str, name: str
) -> None:
    lie = pa.RecordBatch.from_arrays([lying_arrays()[name]], ["value"])
    if door == "served":
        opened: Any = lamina.connect(server.url, api_key=keys["write"])
    else:
        opened = lamina.open(str(tmp_path / "data"))
        opened.create_topic("mine.k", partitions=2)
    with opened as store:
        end = store.latest_offset("mine.k")
        keyed = pa.RecordBatch.from_arrays([lie.column(0)] * 2, ["key", "value"])
        for records in (lie, pa.Table.from_batches([lie]), keyed):
            with pytest.raises(lamina.InvalidRequest, match="broken"):
                store.append("mine.k", records)
        assert store.latest_offset("mine.k") == end


def test_types_that_a_server_refuses_are_cast_by_the_client(
    server: ServerProcess, keys: dict[str, str]
) -> None:
    """A program may hand in text; what goes over the wire is exact."""
    given = pa.record_batch({"value": ["text"], "key": pa.array(["k"], pa.large_string())})
    with lamina.connect(server.url, api_key=keys["write"]) as store:
        ack = store.append("mine.k", given, partition=1)
        read = store.fetch("mine.k", 1, ack.base_offset)
        assert read.column("value").to_pylist() == [b"text"]
        with pytest.raises(lamina.InvalidRequest, match="no schema"):
            store.append("mine.k", pa.record_batch({"value": [b"x"], "other": [1]}))


def test_what_is_packed_is_unpacked_the_same() -> None:
    whole = batch("timestamp", "key", "value", "headers")
    packed = received.packed(whole.slice(1), b"order\n", pa.system_memory_pool())
    arrived = received.announced(packed.slice(len(b"order\n")))
    assert received.unpacked(arrived, COLUMN_TYPES, 1 << 20).equals(whole.slice(1))


def test_messages_that_are_no_schema_and_batch_are_refused_before_arrow_reads_them() -> None:
    """Arrow reads any message as a schema, and believes any length: both end the process."""
    batch = pa.record_batch({"value": pa.array([b"x"])})
    schema, rows = batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()
    assert received.announced(pa.py_buffer(schema + rows)).schema == batch.schema
    wild = rows[:4] + b"\x25\xab\x05\xc1" + rows[8:]
    for broken in (rows + rows, schema + schema, rows, schema, schema + wild, wild, b""):
        with pytest.raises(InvalidRequest):
            received.announced(pa.py_buffer(broken))
    with pytest.raises(InvalidRequest, match="does not begin with its schema"):
        received.announced(pa.py_buffer(rows + rows))
