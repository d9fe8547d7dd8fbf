"""What consumers of a classic group say to each other: subscriptions and assignments.

The broker passes these bytes on without a look. They are Kafka's, so that `lamina.Consumer` and
Kafka's own consumers can be members of one group. All integers are big-endian.

    subscription = version i16, topics [string], user data bytes,
                   from version 1 on shares, from version 2 on generation i32
    assignment   = version i16, shares, user data bytes
    shares       = [topic string, partitions [i32]]
    [x]          = count i32, then so many x;   string = length i16, UTF-8
    bytes        = length i32, or -1 for none

Rules.
1. What another member sent is as hostile as anything from the network: lengths are compared with
   what is left, and what does not fit raises InvalidRequest.
2. A later version only adds fields behind those of an earlier one: unknown ones are left unread.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lamina.errors import InvalidRequest

PROTOCOL_TYPE = "consumer"
_NO_USER_DATA = struct.pack(">i", -1)
_NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants to read; what it has, and the generation that gave it that."""

    topics: tuple[str, ...]
    owned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    generation: int = _NO_GENERATION


def encode_subscription(asked: Subscription) -> bytes:
    """Encodes what a member wants to read, and has.

    Shares are written also where there are none: a leader that is librdkafka's dies of a sticky
    member of version 0.
    """
    names = sorted(asked.topics)
    topics = struct.pack(">hi", 2, len(names)) + b"".join(map(_string, names))
    return topics + _NO_USER_DATA + _shares(asked.owned) + struct.pack(">i", asked.generation)


def decode_subscription(data: bytes) -> Subscription:
    """Returns what a member wants to read and what it says to have."""
    reader = _Reader(data, "a subscription")
    version = reader.number(">h")
    topics = tuple(reader.string() for _ in range(reader.count(2)))
    if version < 1:
        return Subscription(topics)
    reader.skip_bytes()
    owned = reader.shares()
    return Subscription(topics, owned, reader.number(">i") if version > 1 else _NO_GENERATION)


def encode_assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    """Encodes a member's share: partitions by topic."""
    return struct.pack(">h", 0) + _shares(partitions) + _NO_USER_DATA


def decode_assignment(data: bytes) -> dict[str, list[int]]:
    """Returns a member's share; a leader that knows nothing of a member leaves it empty."""
    if not data:
        return {}
    reader = _Reader(data, "an assignment")
    reader.number(">h")
    return reader.shares()


def told_share(protocol_type: str, data: bytes) -> dict[str, list[int]] | None:
    """Returns a member's share for those who look on.

    None where it cannot be told: members of another kind have a language of their own, and what a
    leader sent may be anything.
    """
    if protocol_type != PROTOCOL_TYPE:
        return None
    try:
        return decode_assignment(data)
    except InvalidRequest:
        return None


def _shares(partitions: Mapping[str, Sequence[int]]) -> bytes:
    parts = [struct.pack(">i", len(partitions))]
    for topic, numbers in sorted(partitions.items()):
        parts += [_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class _Reader:
    """Reads one message from its start; raises InvalidRequest where it ends too early."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._position = 0

    def number(self, kind: str) -> int:
        (number,) = struct.unpack(kind, self._take(struct.calcsize(kind)))
        return int(number)

    def numbers(self, count: int) -> list[int]:
        """Reads so many i32 at once: a share may have hundreds of thousands."""
        return list(struct.unpack(f">{count}i", self._take(4 * count)))

    def count(self, least_bytes: int) -> int:
        """Reads how many items follow, each of at least so many bytes."""
        count = self.number(">i")
        if not 0 <= count <= (len(self._data) - self._position) // least_bytes:
            raise InvalidRequest(f"{self._what} claims {count} items, more than it has bytes for")
        return count

    def shares(self) -> dict[str, list[int]]:
        """Reads partitions by topic."""
        found: dict[str, list[int]] = {}
        for _ in range(self.count(6)):
            topic = self.string()
            found[topic] = self.numbers(self.count(4))
        return found

    def skip_bytes(self) -> None:
        """Passes over user data, or the -1 that stands for none."""
        length = self.number(">i")
        if length >= 0:
            self._take(length)

    def string(self) -> str:
        try:
            return self._take(self.number(">h")).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{self._what} names something that is not text") from error

    def _take(self, length: int) -> bytes:
        taken = self._data[self._position : self._position + max(length, 0)]
        if len(taken) != length:
            raise InvalidRequest(f"{self._what} ends after {len(self._data)} bytes, too early")
        self._position += length
        return taken
