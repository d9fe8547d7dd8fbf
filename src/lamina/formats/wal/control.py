"""The bodies of WAL control frames: what happened to a topic, beside its records.

Truth: with the snapshot that covers them, these frames are the topics' metadata.
The frame names the topic (by id, never by name) and carries the checksum; the body is its data.
All integers little-endian. Every body begins with a version; each is 1.
Those of routers are in `routing`.

TopicCreate (type 2): a topic begins; for a topic that exists already, its new settings.

    | at | size | field       | type | meaning                                             |
    |----|------|-------------|------|-----------------------------------------------------|
    |  0 |    1 | version     | u8   | 1                                                   |
    |  1 |    8 | epoch       | u64  | grows when a name is deleted and created again      |
    |  9 |    2 | name_len    | u16  | bytes of name, at least 1                           |
    | 11 |    4 | config_len  | u32  | bytes of config                                     |

    followed by: name (UTF-8), config (UTF-8 JSON, as the user's settings were)

TopicDelete (type 3): the topic with that id and epoch, with all its records, is gone.

    | at | size | field       | type | meaning                                             |
    |----|------|-------------|------|-----------------------------------------------------|
    |  0 |    1 | version     | u8   | 1                                                   |
    |  1 |    8 | epoch       | u64  | the epoch that ends                                 |

Delete (type 6): records are gone. It is about a moment: only sequences below `upper_sequence`
(one past the head when it was issued) are meant, however late it is replayed.

    | at | size | field          | type | meaning                                          |
    |----|------|----------------|------|--------------------------------------------------|
    |  0 |    1 | version        | u8   | 1                                                |
    |  1 |    1 | kind           | u8   | 1 before, 2 tag, 3 tag prefix, 4 sequences       |
    |  2 |    8 | upper_sequence | u64  | one past the last sequence that can be meant     |
    | 10 |    8 | argument       | u64  | 1: before_sequence; 2, 3: bytes; 4: count        |

    followed by: the tag's bytes (2, 3) or `count` ascending u64 (4)

EvictWatermark (type 7): cap or age has taken the oldest records.

    | at | size | field             | type | meaning                                       |
    |----|------|-------------------|------|-----------------------------------------------|
    |  0 |    1 | version           | u8   | 1                                             |
    |  1 |    1 | reason            | u8   | 1 age, 2 record cap, 3 byte cap               |
    |  2 |    8 | evict_floor       | u64  | below it records were evicted: a gap          |
    | 10 |    8 | earliest_sequence | u64  | first that may still be read; >= evict_floor  |

CheckpointMark (type 8): how far each topic is copied into segments.

    | at | size | field       | type | meaning                                             |
    |----|------|-------------|------|-----------------------------------------------------|
    |  0 |    1 | version     | u8   | 1                                                   |
    |  1 |    4 | topic_count | u32  | how many entries follow, ascending by topic_id      |

    each entry

    | at | size | field                 | type | meaning                                   |
    |----|------|-----------------------|------|-------------------------------------------|
    |  0 |    8 | topic_id              | u64  | the topic                                 |
    |  8 |    8 | highest_sequence      | u64  | the last one in segments; 0 = none        |
    | 16 |    8 | evict_floor           | u64  | as above                                  |
    | 24 |    8 | earliest_sequence     | u64  | as above                                  |
    | 32 |    8 | active_first_sequence | u64  | names the active segment; 0 = none        |
    | 40 |    8 | active_data_bytes     | u64  | durable bytes of its `.data`              |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from lamina.errors import InvalidRequest, NewerFormat
from lamina.formats.kernels.binary import Layout
from lamina.formats.wal.cursor import Cursor
from lamina.formats.wal.layout import FrameType
from lamina.formats.wal.routing import (
    RoutedMark,
    Router,
    decode_mark,
    decode_router,
    encode_mark,
    encode_router,
    problem_of,
)

TOPIC_CREATE = Layout(
    "<",
    version="u8",
    epoch="u64",
    name_len="u16",
    config_len="u32",
)
TOPIC_DELETE = Layout(
    "<",
    version="u8",
    epoch="u64",
)
DELETE = Layout(
    "<",
    version="u8",
    kind="u8",
    upper_sequence="u64",
    argument="u64",
)
EVICT_WATERMARK = Layout(
    "<",
    version="u8",
    reason="u8",
    evict_floor="u64",
    earliest_sequence="u64",
)
CHECKPOINT_MARK = Layout(
    "<",
    version="u8",
    topic_count="u32",
)
CHECKPOINT_ENTRY = Layout(
    "<",
    topic_id="u64",
    highest_sequence="u64",
    evict_floor="u64",
    earliest_sequence="u64",
    active_first_sequence="u64",
    active_data_bytes="u64",
)
VERSION = 1


class EvictReason(IntEnum):
    """Why the oldest records went."""

    AGE = 1
    RECORD_CAP = 2
    BYTE_CAP = 3


class _DeleteKind(IntEnum):
    BEFORE = 1
    TAG = 2
    TAG_PREFIX = 3
    SEQUENCES = 4


@dataclass(frozen=True, slots=True)
class TopicCreate:
    """A topic begins, or gets new settings; `config` is JSON text."""

    name: str
    epoch: int
    config: str


@dataclass(frozen=True, slots=True)
class TopicDelete:
    """A topic is gone."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """All records below a sequence are gone."""

    upper_sequence: int
    before_sequence: int


@dataclass(frozen=True, slots=True)
class DeleteTag:
    """All records with exactly this tag are gone."""

    upper_sequence: int
    tag: bytes


@dataclass(frozen=True, slots=True)
class DeleteTagPrefix:
    """All records whose tag begins so are gone."""

    upper_sequence: int
    prefix: bytes


@dataclass(frozen=True, slots=True)
class DeleteSequences:
    """These records are gone; ascending."""

    upper_sequence: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EvictWatermark:
    """The oldest records are gone by cap or age."""

    evict_floor: int
    earliest_sequence: int
    reason: EvictReason


@dataclass(frozen=True, slots=True)
class TopicCheckpoint:
    """How far one topic is copied into its segments."""

    topic_id: int
    highest_sequence: int
    evict_floor: int
    earliest_sequence: int
    active_first_sequence: int
    active_data_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """How far each topic is copied into its segments; ascending by topic."""

    topics: tuple[TopicCheckpoint, ...]


Delete: TypeAlias = DeleteBefore | DeleteTag | DeleteTagPrefix | DeleteSequences
Control: TypeAlias = (
    TopicCreate | TopicDelete | Delete | EvictWatermark | CheckpointMark | Router | RoutedMark
)

_TYPES: dict[type[Control], FrameType] = {
    TopicCreate: FrameType.TOPIC_CREATE,
    TopicDelete: FrameType.TOPIC_DELETE,
    DeleteBefore: FrameType.DELETE,
    DeleteTag: FrameType.DELETE,
    DeleteTagPrefix: FrameType.DELETE,
    DeleteSequences: FrameType.DELETE,
    EvictWatermark: FrameType.EVICT_WATERMARK,
    CheckpointMark: FrameType.CHECKPOINT_MARK,
    Router: FrameType.ROUTER,
    RoutedMark: FrameType.ROUTED_MARK,
}


def type_of(body: Control) -> FrameType:
    """Returns the type of the frame that carries a body."""
    return _TYPES[type(body)]


def _problem(body: Control) -> str | None:
    """Returns what contradicts itself in a body, if anything does."""
    match body:
        case TopicCreate(name=""):
            return "has no name"
        case DeleteSequences(upper, sequences):
            ascending = all(low < high for low, high in pairwise((0, *sequences, upper)))
            return None if ascending else "has sequences that do not ascend below the upper one"
        case EvictWatermark(floor, earliest) if floor > earliest:
            return "has a floor above its earliest sequence"
        case CheckpointMark(topics):
            if any(low.topic_id >= high.topic_id for low, high in pairwise(topics)):
                return "has topics that do not ascend"
            if any(topic.evict_floor > topic.earliest_sequence for topic in topics):
                return "has a floor above its earliest sequence"
        case Router() | RoutedMark():
            return problem_of(body)
    return None


def encode(body: Control) -> bytes:
    """Encodes a body. Raises InvalidRequest for one that contradicts itself."""
    problem = _problem(body)
    if problem:
        raise InvalidRequest(f"{type(body).__name__} {problem}")
    match body:
        case TopicCreate():
            return _encode_create(body)
        case TopicDelete(epoch):
            return TOPIC_DELETE.pack(version=VERSION, epoch=epoch)
        case DeleteBefore(upper, before):
            return _encode_delete(_DeleteKind.BEFORE, upper, before, b"")
        case DeleteTag(upper, tag):
            return _encode_delete(_DeleteKind.TAG, upper, len(tag), tag)
        case DeleteTagPrefix(upper, prefix):
            return _encode_delete(_DeleteKind.TAG_PREFIX, upper, len(prefix), prefix)
        case DeleteSequences(upper, sequences):
            raw = np.array(sequences, dtype="<u8").tobytes()
            return _encode_delete(_DeleteKind.SEQUENCES, upper, len(sequences), raw)
        case EvictWatermark():
            return EVICT_WATERMARK.pack(version=VERSION, **asdict(body))
        case CheckpointMark(topics):
            head = CHECKPOINT_MARK.pack(version=VERSION, topic_count=len(topics))
            return head + b"".join(CHECKPOINT_ENTRY.pack(**asdict(topic)) for topic in topics)
        case Router():
            return encode_router(body)
        case RoutedMark():
            return encode_mark(body)


def _encode_create(body: TopicCreate) -> bytes:
    name, config = body.name.encode(), body.config.encode()
    if len(name) > 0xFFFF:
        raise InvalidRequest(f"a topic name has at most 65535 bytes, not {len(name)}")
    head = TOPIC_CREATE.pack(
        version=VERSION, epoch=body.epoch, name_len=len(name), config_len=len(config)
    )
    return head + name + config


def _encode_delete(kind: _DeleteKind, upper_sequence: int, argument: int, rest: bytes) -> bytes:
    head = DELETE.pack(version=VERSION, kind=kind, upper_sequence=upper_sequence, argument=argument)
    return head + rest


def decode(frame_type: int, data: bytes) -> Control:
    """Decodes the body of a control frame.

    Raises NewerFormat for an unknown type, version, kind or reason, CorruptData for bytes that
    contradict themselves; positions count from the body's first byte.
    """
    if frame_type not in _DECODERS:
        raise NewerFormat(
            "control frame of an unknown type",
            expected=f"one of {sorted(int(known) for known in _DECODERS)}",
            found=str(frame_type),
        )
    cursor = Cursor(data, f"{FrameType(frame_type).name} body")
    body = _DECODERS[frame_type](cursor)
    cursor.finish()
    problem = _problem(body)
    if problem:
        cursor.fail(problem)
    return body


def _decode_create(cursor: Cursor) -> TopicCreate:
    head = cursor.versioned(TOPIC_CREATE, VERSION)
    name = cursor.text(head["name_len"])
    return TopicCreate(name, head["epoch"], cursor.text(head["config_len"]))


def _decode_topic_delete(cursor: Cursor) -> TopicDelete:
    return TopicDelete(cursor.versioned(TOPIC_DELETE, VERSION)["epoch"])


def _decode_delete(cursor: Cursor) -> Delete:
    head = cursor.versioned(DELETE, VERSION)
    kind, upper, argument = head["kind"], head["upper_sequence"], head["argument"]
    match kind:
        case _DeleteKind.BEFORE:
            return DeleteBefore(upper, argument)
        case _DeleteKind.TAG:
            return DeleteTag(upper, cursor.take(argument))
        case _DeleteKind.TAG_PREFIX:
            return DeleteTagPrefix(upper, cursor.take(argument))
        case _DeleteKind.SEQUENCES:
            return DeleteSequences(upper, tuple(cursor.numbers(argument).tolist()))
    raise NewerFormat(
        "DELETE body of an unknown kind",
        position=DELETE.at("kind"),
        expected="1 to 4",
        found=str(kind),
    )


def _decode_evict(cursor: Cursor) -> EvictWatermark:
    head = cursor.versioned(EVICT_WATERMARK, VERSION)
    if head["reason"] not in list(EvictReason):
        raise NewerFormat(
            "EVICT_WATERMARK body with an unknown reason",
            position=EVICT_WATERMARK.at("reason"),
            expected="1 to 3",
            found=str(head["reason"]),
        )
    reason = EvictReason(head["reason"])
    return EvictWatermark(head["evict_floor"], head["earliest_sequence"], reason)


def _decode_checkpoint(cursor: Cursor) -> CheckpointMark:
    head = cursor.versioned(CHECKPOINT_MARK, VERSION)
    entries = cursor.many(head["topic_count"], CHECKPOINT_ENTRY)
    return CheckpointMark(tuple(TopicCheckpoint(**entry) for entry in entries))


_DECODERS: dict[int, Callable[[Cursor], Control]] = {
    FrameType.TOPIC_CREATE: _decode_create,
    FrameType.TOPIC_DELETE: _decode_topic_delete,
    FrameType.DELETE: _decode_delete,
    FrameType.EVICT_WATERMARK: _decode_evict,
    FrameType.CHECKPOINT_MARK: _decode_checkpoint,
    FrameType.ROUTER: decode_router,
    FrameType.ROUTED_MARK: decode_mark,
}
