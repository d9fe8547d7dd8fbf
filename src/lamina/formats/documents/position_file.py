"""Where a reader without a store stands (`positions/of-<group>.json`), until a store takes it over.

    {"version": 1, "group": "billing", "topics": [
      {"topic": "orders", "epoch": 1, "offsets": {"0": 23, "1": 7}}, …], "crc32": "…"}

`offsets` are those below which everything was read, by partition. The reader's own checkpoint is
the truth: if this file is lost, a group is shown further behind than it is, until the next one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
_FILE = {"version": int, "group": str, "topics": list}
_TOPIC = {"topic": str, "epoch": int, "offsets": dict}
_PARTITION = re.compile("0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Where a reader stands in one topic; offsets by partition."""

    topic: str
    epoch: int
    offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a reader stands, under the name of a group."""

    group: str
    topics: tuple[TopicPosition, ...]


def encode(position: Position) -> bytes:
    """Encodes a position; equal ones give equal bytes."""
    topics = [
        {
            "topic": each.topic,
            "epoch": each.epoch,
            "offsets": {str(number): each.offsets[number] for number in sorted(each.offsets)},
        }
        for each in position.topics
    ]
    fields = {"version": VERSION, "group": position.group, "topics": topics}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> Position:
    """Decodes a position; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    document = strict_json.check_sealed(document, VERSION)
    strict_json.check_fields(document, "the position", _FILE)
    topics = [_topic(number, each) for number, each in enumerate(document["topics"])]
    return Position(document["group"], tuple(topics))


def _topic(number: int, given: object) -> TopicPosition:
    fields = strict_json.as_object(given, f"topic {number}")
    strict_json.check_fields(fields, f"topic {number}", _TOPIC)
    offsets = {}
    for partition, offset in fields["offsets"].items():
        if not _PARTITION.fullmatch(partition) or type(offset) is not int or offset < 0:
            found = f"{partition!r:.80}: {offset!r:.80}"
            raise CorruptData(f"topic {number} has a wrong offset", found=found)
        offsets[int(partition)] = offset
    return TopicPosition(fields["topic"], fields["epoch"], offsets)
