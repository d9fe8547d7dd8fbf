"""What consumers of a classic group say to each other: subscriptions, assignments, who gets what.

The broker passes these bytes on without a look. They are Kafka's, so that `lamina.Consumer` and
Kafka's own consumers can be members of one group. All integers are big-endian.

    subscription = version i16, topics [string], user data bytes, and in later versions more
    assignment   = version i16, [topic string, partitions [i32]], user data bytes
    [x]          = count i32, then so many x;   string = length i16, UTF-8
    bytes        = length i32, or -1 for none

Rules.
1. What another member sent is as hostile as anything from the network: lengths are compared with
   what is left, and what does not fit raises InvalidRequest.
2. A later version only adds fields behind those of the first: they are left unread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from lamina.errors import InvalidRequest

PROTOCOL_TYPE = "consumer"
RANGE = "range"
_NO_USER_DATA = struct.pack(">i", -1)


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encodes what a member wants to read."""
    names = sorted(topics)
    return struct.pack(">hi", 0, len(names)) + b"".join(map(_string, names)) + _NO_USER_DATA


def decode_subscription(data: bytes) -> list[str]:
    """Returns the topics that a member wants to read."""
    reader = _Reader(data, "a subscription")
    reader.number(">h")
    return [reader.string() for _ in range(reader.count(2))]


def encode_assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    """Encodes a member's share: partitions by topic."""
    parts = [struct.pack(">hi", 0, len(partitions))]
    for topic, numbers in sorted(partitions.items()):
        parts += [_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts) + _NO_USER_DATA


def decode_assignment(data: bytes) -> dict[str, list[int]]:
    """Returns a member's share; a leader that knows nothing of a member leaves it empty."""
    if not data:
        return {}
    reader = _Reader(data, "an assignment")
    reader.number(">h")
    found: dict[str, list[int]] = {}
    for _ in range(reader.count(6)):
        topic = reader.string()
        found[topic] = reader.numbers(reader.count(4))
    return found


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


def assign_ranges(
    subscriptions: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """Shares topics out as Kafka's range assignor does: neighbouring partitions to each member.

    Members are taken in the order of their ids, and those that come first get one more where the
    partitions of a topic do not divide evenly. Returns each member's partitions by topic.
    """
    shares: dict[str, dict[str, list[int]]] = {member: {} for member in subscriptions}
    wanted: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in set(subscriptions[member]):
            wanted.setdefault(topic, []).append(member)
    for topic, members in wanted.items():
        count = partitions.get(topic, 0)
        least, more = divmod(count, len(members))
        first = 0
        for place, member in enumerate(members):
            end = first + least + (place < more)
            if end > first:
                shares[member][topic] = list(range(first, end))
            first = end
    return shares


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

    def string(self) -> str:
        try:
            return self._take(self.number(">h")).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{self._what} names something that is no text") from error

    def _take(self, length: int) -> bytes:
        taken = self._data[self._position : self._position + max(length, 0)]
        if len(taken) != length:
            raise InvalidRequest(f"{self._what} ends after {len(self._data)} bytes, too early")
        self._position += length
        return taken
