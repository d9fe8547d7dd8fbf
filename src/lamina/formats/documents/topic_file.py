"""A topic's own file (`topic.json`): format, partitions, epoch and settings.

    {"version": 1, "name": "orders", "format": "keratin", "partitions": 4, "epoch": 1,
     "created_ms": …, "deleted": false, "settings": {"retention.ms": 86400000},
     "crc32": "…"}

Writing it is what creates a topic, after its directories exist; writing it with `deleted` is what
deletes one, before its files go. A deleted topic's file stays, so that the epoch of the same name
grows when it is created again, so that readers of the old one notice.

A topic of format wal also has `topic_ids`, one number for each partition, by which the write-ahead
log calls it; the log's own TopicCreate frames hold the same, and restore this file if it is lost.

`settings` holds only what was set; defaults are the code's. If the file is lost, format and
partitions are found from the segment files and the settings are the defaults.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
UNKNOWN_MS = 0
"""When a topic was created whose file is lost: everything else of it may be a guess, too."""

_FIELDS = {
    "version": int,
    "name": str,
    "format": str,
    "partitions": int,
    "epoch": int,
    "created_ms": int,
    "deleted": bool,
    "settings": dict,
}


@dataclass(frozen=True, slots=True)
class TopicFile:
    """What is written about a topic."""

    name: str
    format: str
    partitions: int
    epoch: int
    created_ms: int
    deleted: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    topic_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.partitions < 1 or self.epoch < 1:
            raise ValueError(f"partitions and epoch count from 1, got {self}")
        if self.topic_ids and len(self.topic_ids) != self.partitions:
            raise ValueError(f"every partition has one topic id, got {self}")


def encode(topic: TopicFile) -> bytes:
    """Encodes a topic's file."""
    fields = {"version": VERSION, **asdict(topic)}
    if not topic.topic_ids:
        del fields["topic_ids"]
    sealed = fields | {strict_json.SEAL: strict_json.seal(fields)}
    return (json.dumps(sealed, indent=2) + "\n").encode()


def decode(buffer: Buffer) -> TopicFile:
    """Decodes a topic's file; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    document = strict_json.check_sealed(document, VERSION)
    ids = {"topic_ids": list} if "topic_ids" in document else {}
    strict_json.check_fields(document, "the topic", _FIELDS | ids)
    del document["version"]
    try:
        return TopicFile(**document)
    except ValueError as error:
        raise CorruptData(f"the topic contradicts itself: {error}") from error
