"""Settings: frozen values with a unit and a consequence each. An unknown key is an error.

Topic settings carry Kafka's names. -1 (`NO_LIMIT`) means "no limit", as it does there. Components
(the file system, the clock, the object store) are never settings: they are arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, TypeVar

from lamina.errors import InvalidRequest

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

SWITCH = ("false", "true")
ARCHIVE_COMPRESSIONS = ("lz4", "zstd", "none")

NO_LIMIT = -1
AS_RETENTION = -2
"""For local retention: the same as the whole partition's."""
_MS_PER_DAY = 86_400_000
_Settings = TypeVar("_Settings", bound="Settings")


def _setting(
    default: Any,
    key: str,
    unit: str,
    consequence: str,
    *,
    allowed: tuple[Any, Any] | tuple[str, ...],
) -> Any:
    return field(
        default=default,
        metadata={"key": key, "unit": unit, "consequence": consequence, "allowed": allowed},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The base of each group of settings: parsing, checking and listing."""

    kind: ClassVar[str] = "setting"

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.metadata["key"], getattr(self, item.name), item.metadata["allowed"])

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Makes settings from text keys; what is not given keeps its default."""
        return cls().updated(given)

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


def _parsed(key: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if allowed == SWITCH and isinstance(value, bool):
        return SWITCH[value]
    if not isinstance(allowed[0], int) or isinstance(value, int):
        return value
    try:
        return int(str(value))
    except ValueError as error:
        raise InvalidRequest(f"{key} must be a whole number, not {value!r}") from error


def _check(key: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if isinstance(allowed[0], int):
        low, high = allowed
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest(f"{key} must be from {low} to {high}, not {value!r}")
    elif value not in allowed:
        raise InvalidRequest(f"{key} must be one of {', '.join(allowed)}, not {value!r}")


_ANY_SIZE = (1, (1 << 63) - 1)
_ANY_SIZE_OR_NONE = (NO_LIMIT, (1 << 63) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(Settings):
    """What a topic may be told when it is created or altered."""

    kind: ClassVar[str] = "topic setting"

    segment_bytes: int = _setting(
        64 << 20,
        "segment.bytes",
        "bytes",
        "a segment is sealed before an append would pass this; smaller means finer retention",
        allowed=(1 << 10, 1 << 30),
    )
    segment_ms: int = _setting(
        7 * _MS_PER_DAY,
        "segment.ms",
        "ms",
        "a segment older than this is sealed, also when nothing is appended",
        allowed=_ANY_SIZE,
    )
    retention_ms: int = _setting(
        NO_LIMIT,
        "retention.ms",
        "ms, -1 for ever",
        "sealed segments whose newest record is older than this are removed",
        allowed=_ANY_SIZE_OR_NONE,
    )
    retention_bytes: int = _setting(
        NO_LIMIT,
        "retention.bytes",
        "bytes a partition, -1 for any",
        "the oldest sealed segments go while the partition is larger than this",
        allowed=_ANY_SIZE_OR_NONE,
    )
    max_message_bytes: int = _setting(
        16 << 20,
        "max.message.bytes",
        "bytes",
        "a record whose key, value and headers together are larger is refused",
        allowed=(1, 16 << 20),
    )
    timestamp_type: str = _setting(
        "CreateTime",
        "message.timestamp.type",
        " or ".join(TIMESTAMP_TYPES),
        "CreateTime keeps the producer's time, LogAppendTime replaces it by the broker's",
        allowed=TIMESTAMP_TYPES,
    )
    remote_storage_enable: str = _setting(
        "false",
        "remote.storage.enable",
        " or ".join(SWITCH),
        "sealed segments are copied to the store's archive, and read from there when they are gone",
        allowed=SWITCH,
    )
    local_retention_ms: int = _setting(
        AS_RETENTION,
        "local.retention.ms",
        "ms, -1 for ever, -2 as retention.ms",
        "archived segments whose newest record is older than this leave the local disk",
        allowed=(AS_RETENTION, (1 << 63) - 1),
    )
    local_retention_bytes: int = _setting(
        AS_RETENTION,
        "local.retention.bytes",
        "bytes a partition, -1 for any, -2 as retention.bytes",
        "the oldest archived segments leave the local disk while there is more than this",
        allowed=(AS_RETENTION, (1 << 63) - 1),
    )
    archive_compression: str = _setting(
        "lz4",
        "archive.compression.type",
        " or ".join(ARCHIVE_COMPRESSIONS),
        "how the blocks of archived objects are compressed; zstd is smaller and slower",
        allowed=ARCHIVE_COMPRESSIONS,
    )
    archive_object_bytes: int = _setting(
        128 << 20,
        "archive.object.bytes",
        "bytes",
        "an archived object is full at about this size; segments are joined or split to reach it",
        allowed=(1 << 10, 256 << 20),
    )
    archive_delay_ms: int = _setting(
        600_000,
        "archive.delay.ms",
        "ms",
        "sealed segments that waited this long are archived, also when the object stays small",
        allowed=(0, (1 << 63) - 1),
    )
    archive_window_ms: int = _setting(
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

    def for_local_copies(self) -> TopicSettings:
        """Returns the settings whose retention is that of local copies of archived records."""
        by_age, by_size = self.local_retention_ms, self.local_retention_bytes
        return replace(
            self,
            retention_ms=self.retention_ms if by_age == AS_RETENTION else by_age,
            retention_bytes=self.retention_bytes if by_size == AS_RETENTION else by_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings(Settings):
    """How appends are gathered into one write and one fsync."""

    kind: ClassVar[str] = "writer setting"

    batch_bytes: int = _setting(
        1 << 20,
        "batch.bytes",
        "bytes",
        "a group commit takes no further request beyond this",
        allowed=(1, 1 << 30),
    )
    batch_records: int = _setting(
        4096,
        "batch.records",
        "records",
        "a group commit takes no further request beyond this",
        allowed=(1, 1 << 24),
    )
    linger_ms: int = _setting(
        5,
        "linger.ms",
        "ms",
        "the longest that a group waits for producers seen lately; a lone request never waits",
        allowed=(0, 1000),
    )
    queue_requests: int = _setting(
        1024,
        "queue.requests",
        "requests",
        "appends beyond this wait, or fail with QueueFull when their time is up",
        allowed=(1, 1 << 20),
    )
    flush_ms: int = _setting(
        1000,
        "flush.ms",
        "ms",
        "written but unsynced records (acks 0 and 1) are made durable at least this often",
        allowed=(1, 1 << 31),
    )
