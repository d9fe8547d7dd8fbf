"""Metadata snapshot (`snapshot-<n>.bin`): what the WAL's control frames add up to so far.

Truth: once WAL files that it covers are deleted, their control frames live only here. Until a new
one is durable the one before it stays, and the WAL files since that one.
All integers little-endian. Checksum: XXH3-64 (seed 0) over the payload.

    | at | size | field       | type     | meaning                                         |
    |----|------|-------------|----------|-------------------------------------------------|
    |  0 |    8 | magic       | bytes[8] | "LAMSNAP" and a zero byte                       |
    |  8 |    2 | version     | u16      | 1                                               |
    | 10 |    2 | flags       | u16      | 0; anything else is a newer format              |
    | 12 |    4 | payload_len | u32      | bytes that follow this header, to the file's end |
    | 16 |    8 | xxh3        | u64      | over the payload                                |

    the payload begins with

    | at | size | field                    | type | meaning                                |
    |----|------|--------------------------|------|----------------------------------------|
    |  0 |    8 | next_topic_id            | u64  | above every id ever given              |
    |  8 |    8 | last_checkpoint_sequence | u64  | lower bound of WAL replay              |
    | 16 |    4 | topic_count              | u32  | topics, ascending by id                |
    | 20 |    4 | deleted_topic_count      | u32  | deleted topics, ascending by id        |
    | 24 |    4 | shard_count              | u32  | WAL shards, ascending by number        |
    | 28 |    4 | router_count             | u32  | routers, in order                      |

    then, for each topic

    | at | size | field             | type | meaning                                       |
    |----|------|-------------------|------|-----------------------------------------------|
    |  0 |    8 | topic_id          | u64  | below next_topic_id                           |
    |  8 |    8 | epoch             | u64  | grows when a name is deleted and created again |
    | 16 |    8 | evict_floor       | u64  | below it records were evicted                 |
    | 24 |    8 | earliest_sequence | u64  | first that may still be read; >= evict_floor  |
    | 32 |    8 | delete_below      | u64  | greatest before_sequence ever deleted to      |
    | 40 |    2 | name_len          | u16  | bytes of name, at least 1                     |
    | 42 |    4 | config_len        | u32  | bytes of config                               |
    | 46 |    4 | range_count       | u32  | ranges of deleted sequences                   |

    followed by: name (UTF-8), config (UTF-8 JSON), and the ranges, ascending, neither touching nor
    empty, each

    | at | size | field         | type | meaning                                           |
    |----|------|---------------|------|---------------------------------------------------|
    |  0 |    8 | from_sequence | u64  | first deleted sequence                            |
    |  8 |    8 | to_sequence   | u64  | one past the last                                 |

    then, for each deleted topic

    | at | size | field    | type | meaning                                                |
    |----|------|----------|------|--------------------------------------------------------|
    |  0 |    8 | topic_id | u64  | an id that must not come back                          |
    |  8 |    8 | epoch    | u64  | the epoch that ended                                   |

    then, for each shard

    | at | size | field     | type | meaning                                               |
    |----|------|-----------|------|-------------------------------------------------------|
    |  0 |    4 | shard     | u32  | its number                                            |
    |  4 |    8 | wal_index | u64  | its active WAL file: replay starts no later           |

    then, for each router

    | at | size | field      | type | meaning                                              |
    |----|------|------------|------|------------------------------------------------------|
    |  0 |    4 | router_len | u32  | bytes that follow: a Router body                     |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.documents.flips import is_one_flip
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.xxh3 import xxh3_of
from lamina.formats.wal.cursor import Cursor

HEADER = Layout(
    "<",
    magic="bytes[8]",
    version="u16",
    flags="u16",
    payload_len="u32",
    xxh3="u64",
)
META = Layout(
    "<",
    next_topic_id="u64",
    last_checkpoint_sequence="u64",
    topic_count="u32",
    deleted_topic_count="u32",
    shard_count="u32",
    router_count="u32",
)
TOPIC = Layout(
    "<",
    topic_id="u64",
    epoch="u64",
    evict_floor="u64",
    earliest_sequence="u64",
    delete_below="u64",
    name_len="u16",
    config_len="u32",
    range_count="u32",
)
RANGE = Layout(
    "<",
    from_sequence="u64",
    to_sequence="u64",
)
DELETED_TOPIC = Layout(
    "<",
    topic_id="u64",
    epoch="u64",
)
SHARD = Layout(
    "<",
    shard="u32",
    wal_index="u64",
)
ROUTER = Layout(
    "<",
    router_len="u32",
)
MAGIC = b"LAMSNAP\x00"
VERSION = 1
PAYLOAD_BYTES_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class TopicMeta:
    """One topic. `deleted` are [from, to) ranges of sequences, ascending and apart."""

    topic_id: int
    name: str
    epoch: int
    config: str
    evict_floor: int
    earliest_sequence: int
    delete_below: int
    deleted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that must not come back."""

    topic_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CurrentWal:
    """The active WAL file of a shard."""

    shard: int
    wal_index: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All metadata at one moment; topics and deleted topics ascend by id, shards by number."""

    next_topic_id: int
    last_checkpoint_sequence: int
    topics: tuple[TopicMeta, ...]
    deleted_topics: tuple[DeletedTopic, ...]
    current_wal: tuple[CurrentWal, ...]
    routers: tuple[bytes, ...]


def _ascend(numbers: Sequence[int]) -> bool:
    return all(low < high for low, high in pairwise(numbers))


def _problem(snapshot: Snapshot) -> str | None:
    """Returns what contradicts itself in a snapshot, if anything does."""
    ids = [topic.topic_id for topic in snapshot.topics]
    deleted = [topic.topic_id for topic in snapshot.deleted_topics]
    if not (_ascend(ids) and _ascend(deleted) and set(ids).isdisjoint(deleted)):
        return "has topic ids that do not ascend, or that are deleted and live"
    if max(ids + deleted, default=-1) >= snapshot.next_topic_id:
        return "has a topic id that is not below the next one"
    if len({topic.name for topic in snapshot.topics}) < len(ids):
        return "has a topic name twice"
    if not _ascend([current.shard for current in snapshot.current_wal]):
        return "has shards that do not ascend"
    for topic in snapshot.topics:
        if not topic.name:
            return f"has no name for topic {topic.topic_id}"
        if topic.evict_floor > topic.earliest_sequence:
            return f"has a floor above the earliest sequence of topic {topic.topic_id}"
        if not _ascend([bound for pair in topic.deleted for bound in pair]):
            return f"has deleted ranges of topic {topic.topic_id} that do not ascend"
    return None


def encode(snapshot: Snapshot) -> bytes:
    """Encodes a snapshot as a whole file. Raises InvalidRequest for one that contradicts itself."""
    problem = _problem(snapshot)
    if problem:
        raise InvalidRequest(f"snapshot {problem}")
    meta = META.pack(
        next_topic_id=snapshot.next_topic_id,
        last_checkpoint_sequence=snapshot.last_checkpoint_sequence,
        topic_count=len(snapshot.topics),
        deleted_topic_count=len(snapshot.deleted_topics),
        shard_count=len(snapshot.current_wal),
        router_count=len(snapshot.routers),
    )
    parts = [meta, *map(_encode_topic, snapshot.topics)]
    parts += [DELETED_TOPIC.pack(**asdict(topic)) for topic in snapshot.deleted_topics]
    parts += [SHARD.pack(**asdict(current)) for current in snapshot.current_wal]
    parts += [ROUTER.pack(router_len=len(router)) + router for router in snapshot.routers]
    payload = b"".join(parts)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(f"a snapshot holds at most 4 GiB, not {len(payload)} bytes")
    header = HEADER.pack(
        magic=MAGIC,
        version=VERSION,
        flags=0,
        payload_len=len(payload),
        xxh3=xxh3_of(payload),
    )
    return header + payload


def _encode_topic(topic: TopicMeta) -> bytes:
    name, config = topic.name.encode(), topic.config.encode()
    if len(name) > 0xFFFF:
        raise InvalidRequest(f"a topic name has at most 65535 bytes, not {len(name)}")
    head = TOPIC.pack(
        topic_id=topic.topic_id,
        epoch=topic.epoch,
        evict_floor=topic.evict_floor,
        earliest_sequence=topic.earliest_sequence,
        delete_below=topic.delete_below,
        name_len=len(name),
        config_len=len(config),
        range_count=len(topic.deleted),
    )
    return head + name + config + np.array(topic.deleted, dtype="<u8").tobytes()


def decode(data: bytes) -> Snapshot:
    """Decodes a whole file.

    Raises NewerFormat for an unknown version or flags, CorruptData for everything else that is not
    exactly what `encode` makes.
    """
    cursor = Cursor(_payload(data), "snapshot", origin=HEADER.size)
    meta = cursor.fields(META)
    topics = tuple(_decode_topic(cursor) for _ in range(meta["topic_count"]))
    deleted = cursor.many(meta["deleted_topic_count"], DELETED_TOPIC)
    shards = cursor.many(meta["shard_count"], SHARD)
    routers = tuple(
        cursor.take(cursor.fields(ROUTER)["router_len"]) for _ in range(meta["router_count"])
    )
    cursor.finish()
    snapshot = Snapshot(
        next_topic_id=meta["next_topic_id"],
        last_checkpoint_sequence=meta["last_checkpoint_sequence"],
        topics=topics,
        deleted_topics=tuple(DeletedTopic(**topic) for topic in deleted),
        current_wal=tuple(CurrentWal(**shard) for shard in shards),
        routers=routers,
    )
    problem = _problem(snapshot)
    if problem:
        cursor.fail(problem)
    return snapshot


def _payload(data: bytes) -> bytes:
    header = Cursor(data, "snapshot").fields(HEADER)
    if header["magic"] != MAGIC:
        raise CorruptData("no snapshot", expected=MAGIC.hex(), found=header["magic"].hex())
    payload = data[HEADER.size :]
    if header["payload_len"] != len(payload):
        raise CorruptData(
            "snapshot of a wrong length",
            position=HEADER.at("payload_len"),
            expected=f"{header['payload_len']} bytes",
            found=f"{len(payload)}",
        )
    checksum = xxh3_of(payload)
    if header["xxh3"] != checksum:
        raise CorruptData(
            "snapshot with a bad checksum",
            position=HEADER.at("xxh3"),
            expected=f"{header['xxh3']:#018x}",
            found=f"{checksum:#018x}",
        )
    _check_version(header)
    return payload


def _check_version(header: dict[str, Any]) -> None:
    """Refuses another version or flags, which no checksum covers: one flipped bit is damage."""
    version, flags = header["version"], header["flags"]
    if (version, flags) == (VERSION, 0):
        return
    found = version.to_bytes(2, "big") + flags.to_bytes(2, "big")
    is_flipped = is_one_flip(found, VERSION.to_bytes(2, "big") + bytes(2))
    kind = CorruptData if is_flipped else NewerFormat
    raise kind(
        "one bit of the version or flags is flipped"
        if is_flipped
        else "snapshot of an unknown version",
        position=HEADER.at("version"),
        expected=f"version {VERSION}, flags 0",
        found=f"version {version}, flags {flags}",
    )


def _decode_topic(cursor: Cursor) -> TopicMeta:
    head = cursor.fields(TOPIC)
    name = cursor.text(head["name_len"])
    config = cursor.text(head["config_len"])
    bounds = cursor.numbers(2 * head["range_count"]).tolist()
    return TopicMeta(
        topic_id=head["topic_id"],
        name=name,
        epoch=head["epoch"],
        config=config,
        evict_floor=head["evict_floor"],
        earliest_sequence=head["earliest_sequence"],
        delete_below=head["delete_below"],
        deleted=tuple(zip(bounds[::2], bounds[1::2], strict=True)),
    )
