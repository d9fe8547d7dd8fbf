"""Settings: frozen values with a unit and a consequence each. An unknown key is an error.

Topic settings carry Kafka's names. -1 (`NO_LIMIT`) means "no limit", as it does there. Components
(the file system, the clock, the object store) are never settings: they are arguments.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from lamina.errors import InvalidRequest

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
DURABILITIES = ("memory", "disk", "fsync")
DISCARDS = ("old", "new")
CLEANUP_POLICIES = ("delete", "compact", "compact,delete", "delete,compact")
WAL_ONLY_KEYS = ("durability", "retention.records", "discard")
"""Topic settings that only topics of format wal have."""

SWITCH = ("false", "true")
ARCHIVE_COMPRESSIONS = ("lz4", "zstd", "none")

ARCHIVE_VARIABLE = "LAMINA_ARCHIVE"

NO_LIMIT = -1
AS_RETENTION = -2
"""For local retention: the same as the whole partition's."""
_MS_PER_DAY = 86_400_000


def setting(
    default: Any,
    key: str,
    unit: str,
    consequence: str,
    *,
    allowed: tuple[Any, Any] | tuple[str, ...] | re.Pattern[str],
) -> Any:
    """Declares a setting: its default, Kafka's key, its unit, what it does, what it may be."""
    return field(
        default=default,
        metadata={"key": key, "unit": unit, "consequence": consequence, "allowed": allowed},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The base of each group of settings: parsing, checking and listing."""

    kind: ClassVar[str] = "setting"
    environment: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.metadata["key"], getattr(self, item.name), item.metadata["allowed"])

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Makes settings from text keys; what is not given keeps its default."""
        return cls().updated(given)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Makes settings from the variables that are set; the rest are the defaults."""
        names = cls.environment.items()
        return cls.parse({key: environment[name] for name, key in names if name in environment})

    def updated(self, given: Mapping[str, Any]) -> Self:
        """Returns these settings with some keys changed."""
        names = {item.metadata["key"]: item for item in fields(self)}
        values = {}
        for key, value in given.items():
            if key not in names:
                raise InvalidRequest(_unknown(self.kind, key, list(names)))
            values[names[key].name] = _parsed(key, value, names[key].metadata["allowed"])
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Returns every setting under its key, as `parse` takes it back."""
        return {item.metadata["key"]: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def explained(cls) -> list[dict[str, Any]]:
        """Returns a row for each setting: key, default, unit, consequence."""
        return [
            {
                "key": item.metadata["key"],
                "default": item.default,
                "unit": item.metadata["unit"],
                "consequence": item.metadata["consequence"],
            }
            for item in fields(cls)
        ]


def _unknown(kind: str, key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return f"unknown {kind} {key!r}; {hint}"


def _parsed(key: str, value: Any, allowed: tuple[Any, ...] | re.Pattern[str]) -> Any:
    if allowed == SWITCH and isinstance(value, bool):
        return SWITCH[value]
    if isinstance(allowed, re.Pattern) or not isinstance(allowed[0], int) or isinstance(value, int):
        return value
    try:
        return int(str(value))
    except ValueError as error:
        raise InvalidRequest(f"{key} must be a whole number, not {value!r}") from error


def _check(key: str, value: Any, allowed: tuple[Any, ...] | re.Pattern[str]) -> None:
    if isinstance(allowed, re.Pattern):
        if not isinstance(value, str):
            raise InvalidRequest(f"{key} must be text, not {value!r}")
        if not allowed.fullmatch(value):
            raise InvalidRequest(f"{key} must be like {allowed.pattern}, not {value!r}")
    elif isinstance(allowed[0], int):
        low, high = allowed
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest(f"{key} must be from {low} to {high}, not {value!r}")
    elif value not in allowed:
        raise InvalidRequest(f"{key} must be one of {', '.join(allowed)}, not {value!r}")


ANY_TEXT = re.compile("[^\\0]*")
_ANY_SIZE = (1, (1 << 63) - 1)
ANY_SIZE_OR_NONE = (NO_LIMIT, (1 << 63) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(Settings):
    """What a topic may be told when it is created or altered."""

    kind: ClassVar[str] = "topic setting"

    segment_bytes: int = setting(
        64 << 20,
        "segment.bytes",
        "bytes",
        "a segment is sealed before an append would pass this; smaller means finer retention",
        allowed=(1 << 10, 1 << 30),
    )
    segment_ms: int = setting(
        7 * _MS_PER_DAY,
        "segment.ms",
        "ms",
        "a segment older than this is sealed, also when nothing is appended",
        allowed=_ANY_SIZE,
    )
    retention_ms: int = setting(
        NO_LIMIT,
        "retention.ms",
        "ms, -1 for ever",
        "sealed segments whose newest record is older than this are removed",
        allowed=ANY_SIZE_OR_NONE,
    )
    retention_bytes: int = setting(
        NO_LIMIT,
        "retention.bytes",
        "bytes a partition, -1 for any",
        "the oldest sealed segments go while the partition is larger than this",
        allowed=ANY_SIZE_OR_NONE,
    )
    retention_wait_groups: str = setting(
        "",
        "retention.wait.groups",
        "names, separated by commas",
        "retention keeps a segment until these groups have acked it, within retention.wait.ms",
        allowed=re.compile(r"[^,\s]+(,[^,\s]+)*|"),
    )
    retention_wait_ms: int = setting(
        7 * _MS_PER_DAY,
        "retention.wait.ms",
        "ms, -1 for ever",
        "a segment whose newest record is older than this waits for no group any more",
        allowed=ANY_SIZE_OR_NONE,
    )
    delivery_limit: int = setting(
        5,
        "group.share.delivery.count.limit",
        "deliveries",
        "a record that was delivered so often and not acked goes to the dead-letter topic",
        allowed=(1, 1 << 31),
    )
    lease_ms: int = setting(
        30_000,
        "group.share.record.lock.duration.ms",
        "ms",
        "how long a poll holds records for its consumer, unless it says otherwise",
        allowed=(1, 12 * 3_600_000),
    )
    record_locks_max: int = setting(
        2_000,
        "group.share.partition.max.record.locks",
        "records of a partition and group",
        "Kafka's share consumers are given no more while so many are held",
        allowed=(1, 1 << 20),
    )
    groups_max: int = setting(
        500,
        "max.groups",
        "consumer groups of the topic",
        "a further one is refused until one is deleted; those that are there stay",
        allowed=(1, 1 << 20),
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "producer.id.expiration.ms",
        "ms",
        "an idempotent producer that appended nothing for so long is forgotten: a repeat is stored",
        allowed=(1, 1 << 50),
    )
    max_message_bytes: int = setting(
        16 << 20,
        "max.message.bytes",
        "bytes",
        "a larger record (key, value, headers) is refused, and a larger batch of a Kafka client",
        allowed=(1, 16 << 20),
    )
    cleanup_policy: str = setting(
        "delete",
        "cleanup.policy",
        ", ".join(CLEANUP_POLICIES[:2]) + " or both",
        "compact refuses records without a key and keeps all others, superseded ones too; with"
        " compact alone, retention removes nothing",
        allowed=CLEANUP_POLICIES,
    )
    timestamp_type: str = setting(
        "CreateTime",
        "message.timestamp.type",
        " or ".join(TIMESTAMP_TYPES),
        "CreateTime keeps the producer's time, LogAppendTime replaces it by the broker's",
        allowed=TIMESTAMP_TYPES,
    )
    durability: str = setting(
        "fsync",
        "durability",
        "memory, disk or fsync",
        "what a crash costs a wal topic: memory loses what a killed process had not written yet,"
        " disk loses nothing by a kill but by power loss, fsync loses nothing",
        allowed=DURABILITIES,
    )
    retention_records: int = setting(
        NO_LIMIT,
        "retention.records",
        "records a partition, -1 for any",
        "the oldest sealed segments of a wal topic go while it holds more than this",
        allowed=ANY_SIZE_OR_NONE,
    )
    discard: str = setting(
        "old",
        "discard",
        "old or new",
        "what goes when a wal topic is at a cap: old removes old segments, new refuses appends",
        allowed=DISCARDS,
    )
    remote_storage_enable: str = setting(
        "false",
        "remote.storage.enable",
        " or ".join(SWITCH),
        "sealed segments are copied to the store's archive, and read from there when they are gone",
        allowed=SWITCH,
    )
    local_retention_ms: int = setting(
        AS_RETENTION,
        "local.retention.ms",
        "ms, -1 for ever, -2 as retention.ms",
        "archived segments whose newest record is older than this leave the local disk",
        allowed=(AS_RETENTION, (1 << 63) - 1),
    )
    local_retention_bytes: int = setting(
        AS_RETENTION,
        "local.retention.bytes",
        "bytes a partition, -1 for any, -2 as retention.bytes",
        "the oldest archived segments leave the local disk while there is more than this",
        allowed=(AS_RETENTION, (1 << 63) - 1),
    )
    archive_compression: str = setting(
        "lz4",
        "archive.compression.type",
        " or ".join(ARCHIVE_COMPRESSIONS),
        "how the blocks of archived objects are compressed; zstd is smaller and slower",
        allowed=ARCHIVE_COMPRESSIONS,
    )
    archive_object_bytes: int = setting(
        128 << 20,
        "archive.object.bytes",
        "bytes",
        "an archived object is full at about this size; segments are joined or split to reach it",
        allowed=(1 << 10, 256 << 20),
    )
    archive_delay_ms: int = setting(
        600_000,
        "archive.delay.ms",
        "ms",
        "sealed segments that waited this long are archived, also when the object stays small",
        allowed=(0, (1 << 63) - 1),
    )
    archive_window_ms: int = setting(
        200,
        "archive.window.ms",
        "ms",
        "appends with acks=archived are gathered this long before their segment is sealed",
        allowed=(0, 60_000),
    )

    @property
    def is_archived(self) -> bool:
        """Whether sealed segments go to the archive."""
        return self.remote_storage_enable == "true"

    @property
    def needs_keys(self) -> bool:
        """Whether a record without a key is refused, as Kafka does where it would compact."""
        return self.cleanup_policy != "delete"

    def for_local_copies(self) -> TopicSettings:
        """Returns the settings whose retention is that of local copies of archived records."""
        by_age, by_size = self.local_retention_ms, self.local_retention_bytes
        return replace(
            self,
            retention_ms=self.retention_ms if by_age == AS_RETENTION else by_age,
            retention_bytes=self.retention_bytes if by_size == AS_RETENTION else by_size,
            retention_records=NO_LIMIT,
            discard="old",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings(Settings):
    """How appends are gathered into one write and one fsync."""

    kind: ClassVar[str] = "writer setting"

    batch_bytes: int = setting(
        16 << 20,
        "batch.bytes",
        "bytes",
        "a group commit takes no further request beyond this",
        allowed=(1, 1 << 30),
    )
    batch_records: int = setting(
        65_536,
        "batch.records",
        "records",
        "a group commit takes no further request beyond this",
        allowed=(1, 1 << 24),
    )
    linger_ms: int = setting(
        5,
        "linger.ms",
        "ms",
        "the longest that a group waits for producers seen lately; a lone request never waits",
        allowed=(0, 1000),
    )
    queue_requests: int = setting(
        1024,
        "queue.requests",
        "requests",
        "appends beyond this wait, or fail with QueueFull when their time is up",
        allowed=(1, 1 << 20),
    )
    flush_ms: int = setting(
        1000,
        "flush.ms",
        "ms",
        "written but unsynced records (acks 0 and 1) are made durable at least this often",
        allowed=(1, 1 << 31),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings(Settings):
    """How the shared write-ahead log of a store's wal topics works.

    Each can also be set by the environment variable of document 002, or one named in its manner.
    """

    kind: ClassVar[str] = "write-ahead log setting"
    environment: ClassVar[dict[str, str]] = {
        "TOPICS_WAL_SHARDS": "wal.shards",
        "TOPICS_WAL_BYTES": "wal.bytes",
        "TOPICS_WAL_LINGER_MS": "wal.linger.ms",
        "TOPICS_CHECKPOINT_MS": "wal.checkpoint.ms",
        "TOPICS_CHECKPOINT_MIN_BYTES": "wal.checkpoint.min.bytes",
        "TOPICS_SNAPSHOT_BYTES": "wal.snapshot.bytes",
        "TOPICS_SNAPSHOT_MS": "wal.snapshot.ms",
        "TOPICS_SEGMENT_MAX_EVENTS": "segment.max.events",
        "TOPICS_SEGMENT_MAX_BYTES": "segment.max.bytes",
        "TOPICS_SEGMENT_MAX_AGE_MS": "segment.max.age.ms",
        "TOPICS_COLD_DIR": "cold.dir",
        "TOPICS_HOT_SEGMENTS": "hot.segments",
    }

    shards: int = setting(
        0,
        "wal.shards",
        "shards, 0 for as many as processors, at most 8",
        "more let commits of different topics run beside each other, and share fewer fsyncs",
        allowed=(0, 64),
    )
    wal_bytes: int = setting(
        64 << 20,
        "wal.bytes",
        "bytes",
        "a WAL file is full before a group that would pass this; full ones can be freed",
        allowed=(1 << 10, 1 << 30),
    )
    linger_ms: int = setting(
        10,
        "wal.linger.ms",
        "ms",
        "the longest that a shard's group waits for producers seen lately; a lone one never waits",
        allowed=(0, 1000),
    )
    checkpoint_ms: int = setting(
        5_000,
        "wal.checkpoint.ms",
        "ms",
        "how often the compactor copies new records from the WAL into segments",
        allowed=(0, 1 << 40),
    )
    checkpoint_min_bytes: int = setting(
        64 << 10,
        "wal.checkpoint.min.bytes",
        "bytes",
        "topics with less than this in the WAL wait for its rotation, or for wal.snapshot.ms",
        allowed=(0, 1 << 30),
    )
    snapshot_bytes: int = setting(
        64 << 20,
        "wal.snapshot.bytes",
        "bytes",
        "a metadata snapshot is taken after this much WAL",
        allowed=(1, 1 << 40),
    )
    snapshot_ms: int = setting(
        60_000,
        "wal.snapshot.ms",
        "ms",
        "a metadata snapshot is taken when the last one is this old and anything has changed",
        allowed=(0, 1 << 40),
    )
    segment_events: int = setting(
        10_000,
        "segment.max.events",
        "records",
        "a segment is sealed at this many records",
        allowed=(1, 1 << 22),
    )
    segment_bytes: int = setting(
        64 << 20,
        "segment.max.bytes",
        "bytes",
        "a segment is sealed at this size",
        allowed=(1 << 10, 1 << 30),
    )
    segment_age_ms: int = setting(
        3_600_000,
        "segment.max.age.ms",
        "ms, 0 for never",
        "a segment is sealed at this age, also when nothing is appended",
        allowed=(0, 1 << 40),
    )
    cold_directory: str = setting(
        "",
        "cold.dir",
        "path, empty for none",
        "sealed segments beyond hot.segments move there",
        allowed=ANY_TEXT,
    )
    hot_segments: int = setting(
        4,
        "hot.segments",
        "sealed segments a topic",
        "with a cold directory, the newest this many stay where the WAL is",
        allowed=(0, 1 << 30),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings(Settings):
    """How many descriptors a store keeps. Also set by the environment, or by `lamina.open`."""

    kind: ClassVar[str] = "file setting"
    environment: ClassVar[dict[str, str]] = {"LAMINA_OPEN_FILES_MAX": "open.files.max"}

    open_files: int = setting(
        512,
        "open.files.max",
        "files, at most half of what the process may open",
        "idle files of segments, journals and the WAL beyond this are closed, and opened again",
        allowed=(1, 1 << 20),
    )
