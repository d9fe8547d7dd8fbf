"""What travels on the Flight streams, beside the Arrow batches themselves.

    DoExchange "append"   each message: metadata = order, a newline, plain values (or a batch)
                          each answer:  metadata = what was appended, or an error
    DoGet                 ticket = a question in JSON; the schema's metadata says where a scan ends
    DoAction NAME         body = the arguments in JSON; one result in JSON

An append of a few plain values carries them in the metadata itself: Arrow objects would cost more
than the values. Everything else is a batch, whose schema is the stream's.

Rule: a message says all that is needed to act on it; a stream keeps no state between two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lamina.engine.appending import Appended
from lamina.engine.reader import BATCH_BYTES, BATCH_RECORDS
from lamina.engine.requests import Ack, ProducerStamp
from lamina.errors import InvalidRequest, LaminaError, Unavailable
from lamina.wire import failures, values

APPEND = b"append"
END = b"lamina.end"
"""The key of the schema's metadata that says up to which offset a scan reaches."""
PLAIN_VALUES_MAX = 64
PLAIN_BYTES_MAX = 32 << 10
HEADER_BYTES_MAX = 8 << 10
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


def encode_order(order: Order, plain: list[bytes] | None = None) -> bytes:
    """Encodes an append's metadata."""
    stamp = order.producer
    described: dict[str, Any] = {
        "topic": order.topic,
        "partition": order.partition,
        "acks": order.acks,
        "timeout_s": order.timeout_s,
        "producer": stamp and (stamp.producer_id, stamp.epoch, stamp.sequence),
    }
    if plain is None:
        return json.dumps(described).encode()
    described["lengths"] = list(map(len, plain))
    return b"\n".join((json.dumps(described).encode(), b"".join(plain)))


def decode_order(data: bytes) -> tuple[Order, list[bytes] | None]:
    """Decodes an append's metadata; raises InvalidRequest for what is none."""
    header, _, body = data.partition(b"\n")
    if len(header) > HEADER_BYTES_MAX:
        raise InvalidRequest(f"an append's header is {len(header)} bytes long")
    described = decode_object(header)
    for name, kinds in _ORDER_KINDS.items():
        if type(described.get(name)) not in kinds:
            raise InvalidRequest(f"an append's {name} cannot be {described.get(name)!r:.80}")
    timeout_s = described.get("timeout_s")
    if timeout_s is not None and not 0 <= timeout_s <= TIMEOUT_S_MAX:  # nor what is no number
        raise InvalidRequest(f"an append's timeout_s cannot be {timeout_s!r:.80}")
    order = Order(
        described["topic"],
        described.get("partition"),
        described.get("acks", "all"),
        timeout_s,
        _stamp(described.get("producer")),
    )
    lengths = described.get("lengths")
    return order, None if lengths is None else _split(body, lengths)


_NONE = type(None)
_ORDER_KINDS: dict[str, tuple[type, ...]] = {
    "topic": (str,),
    "partition": (int, _NONE),
    "acks": (str, _NONE),
    "timeout_s": (float, int, _NONE),
    "producer": (list, _NONE),
    "lengths": (list, _NONE),
}
"""Checked by hand: this is once an append, and reading annotations would cost ten times as much."""


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
    """Encodes the answer to an append."""
    parts = {
        number: (ack.base_offset, ack.count, ack.durability)
        for number, ack in appended.parts.items()
    }
    return json.dumps({"parts": parts, "count": appended.count}).encode()


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


def encode_question(question: Question) -> bytes:
    """Encodes a reader's ticket."""
    return json.dumps(values.to_plain(question)).encode()


def decode_question(data: bytes) -> Question:
    """Decodes a reader's ticket; raises InvalidRequest for what is none."""
    question: Question = values.from_plain(Question, decode_object(data), "a ticket")
    if question.kind not in ("scan", "fetch"):
        raise InvalidRequest(f"a ticket asks for a scan or a fetch, not {question.kind!r}")
    return question


def decode_object(data: bytes) -> dict[str, Any]:
    """Decodes a JSON object; raises InvalidRequest for what is none."""
    try:
        described = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}") from error
    if not isinstance(described, dict):
        raise InvalidRequest("not a JSON object")
    return described
