"""What travels on the Flight streams, beside the Arrow batches themselves.

    DoExchange "append"   each message: metadata = order, a newline, then plain values, or a batch
                          as an Arrow stream; each answer: what was appended, or an error
    DoGet                 ticket = a question in JSON; the schema's metadata says what is not in
                          records: where a scan ends, what a diff found, how old it may be
    DoAction NAME         body = the arguments in JSON, and for those that speak of records that a
                          consumer holds, a newline and these as an Arrow stream; one result in JSON

An append of a few plain values carries them as they are: Arrow objects would cost more than the
values. Everything else is a batch.

Rules.
1. A message says all that is needed to act on it; a stream keeps no state between two.
2. Records travel in the metadata, and the exchange's own schema has no columns. Flight decodes and
   decompresses the batches of a stream before a server sees anything of them; bytes in the
   metadata are decoded by `lamina.received`, when scope, topic and size were looked at.
"""

from __future__ import annotations

import functools
import itertools
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from lamina import received
from lamina.api import BATCH_BYTES, BATCH_RECORDS, POLL_BYTES, Ack, Appended, Diff, ProducerStamp
from lamina.errors import InvalidRequest, LaminaError, Unavailable
from lamina.wire import failures, memory, values

APPEND = b"append"
HOLDER_ONLY = "lamina-holder-only"
"""The header of a client that wants to be answered by the holder of a cluster, and nobody else."""
NO_COLUMNS = pa.schema([])
"""The schema of every exchange."""
END = b"lamina.end"
"""The key of the schema's metadata that says up to which offset a scan reaches."""
DIFF = b"lamina.diff"
"""The key of the schema's metadata that holds what a diff says beside its records."""
LAG = b"lamina.replica_lag_ms"
"""The key of the schema's metadata that says how old a standby's answer may be."""
OFFSETS = "offsets"
"""The only column of records that are named by their offsets alone."""
HELD = dict.fromkeys((OFFSETS, "offset", "partition", "epoch"), pa.int64())
"""The columns that name records which a consumer holds."""
PLAIN_VALUES_MAX = 64
PLAIN_BYTES_MAX = 32 << 10
HEADER_BYTES_MAX = 8 << 10
TICKET_BYTES_MAX = 256 << 10
BATCH_BYTES_MAX = (1 << 31) - (1 << 20)
"""What one message carries: gRPC's own limit is 2 GiB, and an Arrow binary column's is, too."""
TIMEOUT_S_MAX = 1e9
"""What the system's clocks can count; longer waits are for ever."""
_U63 = 1 << 63
_EPOCH_MAX = (1 << 32) - 1  # what the journal of producers has room for


@dataclass(frozen=True, slots=True)
class Order:
    """One append as it is asked for."""

    topic: str
    partition: int | None = None
    acks: str = "all"
    timeout_s: float | None = None
    producer: ProducerStamp | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """Which records a reader asks for: a scan to the end, or one batch with a wait for it."""

    kind: str
    topic: str
    partition: int = 0
    start: int | None = None
    end: int | None = None
    max_records: int = BATCH_RECORDS
    max_bytes: int = BATCH_BYTES
    wait_ms: int = 0
    isolation: str = "durable"


@dataclass(frozen=True, slots=True)
class Poll:
    """Which records a consumer of a group asks for, to hold them for a while."""

    topic: str
    group: str
    max_records: int = 500
    lease_ms: int | None = None
    wait_ms: int = 0
    partitions: list[int] | None = None
    max_bytes: int = POLL_BYTES
    acks: int | str = "all"
    kind: str = "poll"


@dataclass(frozen=True, slots=True)
class Difference:
    """What a follower asks for: everything that is new to it."""

    topic: str
    partition: int
    start: int
    limit: int = BATCH_RECORDS
    max_bytes: int = BATCH_BYTES
    exclude_node: bytes | None = None
    kind: str = "diff"


Ticket: TypeAlias = Question | Poll | Difference
_TICKETS: dict[str, type[Ticket]] = {
    "scan": Question,
    "fetch": Question,
    "poll": Poll,
    "diff": Difference,
}


def encode_append(order: Order, records: pa.RecordBatch | list[bytes]) -> pa.Buffer | bytes:
    """Encodes an append: its order, and its records behind it."""
    if isinstance(records, list):
        return encode_order(order, records)
    return received.packed(records, encode_order(order) + b"\n", memory.pool())


def encode_order(order: Order, plain: list[bytes] | None = None) -> bytes:
    """Encodes an append's metadata; written by hand, because a lone append waits for it."""
    stamp = order.producer
    partition = "null" if order.partition is None else order.partition
    timeout_s = "null" if order.timeout_s is None else float(order.timeout_s)
    who = stamp and f"[{stamp.producer_id},{stamp.epoch},{stamp.sequence}]"
    header = (
        f'{{"topic":{_quoted(order.topic)},"partition":{partition},"acks":{_quoted(order.acks)},'
        f'"timeout_s":{timeout_s},"producer":{who or "null"}'
    )
    if plain is None:
        return f"{header}}}".encode()
    lengths = ",".join([str(len(value)) for value in plain])
    return b"".join((f'{header},"lengths":[{lengths}]}}\n'.encode(), *plain))


@functools.lru_cache(1024)
def _quoted(text: str) -> str:
    return json.dumps(text)


def decode_order(data: pa.Buffer, max_bytes: int) -> tuple[Order, list[bytes] | pa.Buffer | None]:
    """Decodes an append's metadata; raises InvalidRequest for what is none.

    Returns plain values as they are, in all at most `max_bytes`, and the Arrow stream of a batch
    without looking at it.
    """
    is_small = data.size <= HEADER_BYTES_MAX + PLAIN_BYTES_MAX
    beginning = (data if is_small else data.slice(0, HEADER_BYTES_MAX + 1)).to_pybytes()
    header, newline, body = beginning.partition(b"\n")
    if len(header) > HEADER_BYTES_MAX:
        raise InvalidRequest(f"an append's header is over {HEADER_BYTES_MAX} bytes long")
    get: Callable[..., Any] = decode_object(header).get
    topic, partition, acks = get("topic"), get("partition"), get("acks", "all")
    timeout_s, producer, lengths = get("timeout_s"), get("producer"), get("lengths")
    given = (topic, partition, acks, timeout_s, producer, lengths)
    if tuple(map(type, given)) not in _ORDER_KINDS:
        raise _wrong_order(given)
    if timeout_s is not None and not 0 <= timeout_s <= TIMEOUT_S_MAX:  # nor what is no number
        raise InvalidRequest(f"an append's timeout_s cannot be {timeout_s!r:.80}")
    patience_s = None if timeout_s is None else float(timeout_s)
    order = Order(topic, partition, acks, patience_s, _stamp(producer))
    rest = data.slice(len(header) + 1) if newline else None
    if lengths is not None:
        if data.size - len(header) > max_bytes:
            raise InvalidRequest(f"an append's plain values are over {max_bytes} bytes")
        return order, _split(body if is_small or rest is None else rest.to_pybytes(), lengths)
    return order, rest if rest is not None and rest.size else None


_NONE = type(None)
_ORDER_FIELDS: dict[str, tuple[type, ...]] = {
    "topic": (str,),
    "partition": (int, _NONE),
    "acks": (str, _NONE),
    "timeout_s": (float, int, _NONE),
    "producer": (list, _NONE),
    "lengths": (list, _NONE),
}
_ORDER_KINDS = frozenset(itertools.product(*_ORDER_FIELDS.values()))
"""Every way that an order may be made of types: one look a message, a lone append waits for it."""


def _wrong_order(given: tuple[Any, ...]) -> InvalidRequest:
    name, value = next(
        (name, value)
        for (name, kinds), value in zip(_ORDER_FIELDS.items(), given, strict=True)
        if type(value) not in kinds
    )
    return InvalidRequest(f"an append's {name} cannot be {value!r:.80}")


def _stamp(given: list[Any] | None) -> ProducerStamp | None:
    if given is None:
        return None
    whole = len(given) == 3 and all(type(part) is int and 0 <= part < _U63 for part in given)
    if not whole or given[1] > _EPOCH_MAX:
        raise InvalidRequest("producer must be an id, an epoch and a sequence")
    return ProducerStamp(*given)


def _split(body: bytes, lengths: list[int]) -> list[bytes]:
    if len(lengths) > PLAIN_VALUES_MAX or not all(
        type(length) is int and length >= 0 for length in lengths
    ):
        raise InvalidRequest("an append's plain values have wrong lengths")
    if sum(lengths) != len(body):
        raise InvalidRequest(f"an append's plain values are {len(body)} bytes, not {sum(lengths)}")
    plain, position = [], 0
    for length in lengths:
        plain.append(body[position : position + length])
        position += length
    return plain


def encode_appended(appended: Appended) -> bytes:
    """Encodes the answer to an append; by hand, too."""
    parts = ",".join(
        [
            f'"{number}":[{ack.base_offset},{ack.count},{_quoted(ack.durability)}]'
            for number, ack in appended.parts.items()
        ]
    )
    return f'{{"parts":{{{parts}}},"count":{appended.count}}}'.encode()


def encode_failed(error: LaminaError) -> bytes:
    """Encodes the answer to an append that failed."""
    return failures.encode(error)


def decode_answer(data: bytes) -> Appended:
    """Decodes an answer; raises the error that it tells of, Unavailable for what is no answer."""
    try:
        described = json.loads(data)
        if "error" not in described:
            parts = {int(number): Ack(*ack) for number, ack in described["parts"].items()}
            return Appended(parts, described["count"])
        error = failures.from_object(described)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise Unavailable(f"the server's answer cannot be read: {data[:80]!r}") from problem
    raise error


def encode_question(question: Ticket) -> bytes:
    """Encodes a reader's ticket."""
    return json.dumps(values.to_plain(question)).encode()


def decode_question(data: bytes) -> Ticket:
    """Decodes a reader's ticket; raises InvalidRequest for what is none."""
    described = decode_object(data)
    kind = described.get("kind")
    known = _TICKETS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise InvalidRequest(f"a ticket asks for {' or '.join(_TICKETS)}, not {kind!r:.80}")
    question: Ticket = values.from_plain(known, described, "a ticket")
    return question


def encode_diff(found: Diff) -> bytes:
    """Encodes what a diff says beside its records."""
    told = {"next_offset": found.next_offset, "caught_up": found.caught_up, "gaps": found.gaps}
    return json.dumps(values.to_plain(told)).encode()


def decode_diff(batch: pa.RecordBatch) -> Diff:
    """Decodes a diff from its records and their schema's metadata."""
    told = json.loads(batch.schema.metadata[DIFF])
    gaps = values.from_plain(typing.get_type_hints(Diff)["gaps"], told["gaps"], "gaps")
    records = batch.replace_schema_metadata(None)
    return Diff(records, told["next_offset"], told["caught_up"], gaps)


def encode_call(given: dict[str, Any], held: pa.RecordBatch | None = None) -> bytes:
    """Encodes the arguments of an operation; the records that it speaks of as Arrow."""
    header = json.dumps(values.to_plain(given)).encode()
    if held is None:
        return header
    whole: bytes = received.packed(held, header + b"\n", memory.pool()).to_pybytes()
    return whole


def split_call(data: bytes) -> tuple[bytes, bytes]:
    """Parts a call into its arguments and its records, for `decode_object` and `decode_held`."""
    header, _, rest = data.partition(b"\n")
    return header, rest


def decode_held(data: bytes, max_bytes: int) -> pa.RecordBatch:
    """Decodes the records that a call speaks of; raises InvalidRequest for what names none."""
    return received.unpacked(received.announced(pa.py_buffer(data)), HELD, max_bytes)


def decode_object(data: bytes) -> dict[str, Any]:
    """Decodes a JSON object; raises InvalidRequest for what is none."""
    try:
        described = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}") from error
    if not isinstance(described, dict):
        raise InvalidRequest("not a JSON object")
    return described
