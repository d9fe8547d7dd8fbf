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

NO_LIMIT = -1
ANY_TEXT: tuple[Any, ...] = ()
"""What a setting allows that is a name or a path."""
_MS_PER_DAY = 86_400_000
_Settings = TypeVar("_Settings", bound="Settings")


def _setting(
    default: Any,
    key: str,
    unit: str,
    consequence: str,
    *,
    allowed: tuple[Any, ...],
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
    if allowed is ANY_TEXT or not isinstance(allowed[0], int) or isinstance(value, int):
        return value
    try:
        return int(str(value))
    except ValueError as error:
        raise InvalidRequest(f"{key} must be a whole number, not {value!r}") from error


def _check(key: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if allowed is ANY_TEXT:
        if not isinstance(value, str):
            raise InvalidRequest(f"{key} must be text, not {value!r}")
    elif isinstance(allowed[0], int):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(Settings):
    """Where a server listens, whom it lets in, and how much it takes on at once."""

    kind: ClassVar[str] = "server setting"

    host: str = _setting(
        "127.0.0.1",
        "host",
        "address",
        "where to listen; beyond loopback only with a key file",
        allowed=ANY_TEXT,
    )
    flight_port: int = _setting(
        9300,
        "flight.port",
        "port, 0 for any",
        "Arrow Flight: `lamina.connect`, Spark",
        allowed=(0, 65_535),
    )
    http_port: int = _setting(
        9301, "http.port", "port, 0 for any", "JSON, health, metrics", allowed=(0, 65_535)
    )
    keys_file: str = _setting(
        "",
        "keys.file",
        "path, empty for none",
        "API keys (made by `lamina key create`); with one, every call needs a key",
        allowed=ANY_TEXT,
    )
    tls_certificate: str = _setting(
        "",
        "tls.certificate",
        "path, empty for none",
        "a PEM chain; with it both ports speak TLS only",
        allowed=ANY_TEXT,
    )
    tls_key: str = _setting(
        "", "tls.key", "path, empty for none", "the certificate's PEM key", allowed=ANY_TEXT
    )
    connections: int = _setting(
        2048,
        "max.connections",
        "streams and HTTP connections, each",
        "further ones are told to come back",
        allowed=(1, 1 << 20),
    )
    request_bytes: int = _setting(
        32 << 20,
        "max.request.bytes",
        "bytes",
        "a larger append or body is refused",
        allowed=(1 << 10, 1 << 30),
    )
    inflight_bytes: int = _setting(
        256 << 20,
        "max.inflight.bytes",
        "bytes of all appends and fetches at work",
        "what comes beyond is told to come back",
        allowed=(1 << 10, 1 << 40),
    )
    wait_ms: int = _setting(
        30_000,
        "max.wait.ms",
        "ms",
        "the longest that one long poll waits; clients ask again",
        allowed=(1, 600_000),
    )
    waiting: int = _setting(
        256,
        "max.waiting",
        "HTTP long polls and watches",
        "further ones are told to come back",
        allowed=(1, 1 << 16),
    )
    rate_requests: int = _setting(
        NO_LIMIT,
        "rate.requests",
        "requests a second and key, -1 for any",
        "what comes faster is told to come back",
        allowed=_ANY_SIZE_OR_NONE,
    )
    idle_ms: int = _setting(
        15_000,
        "idle.ms",
        "ms",
        "an HTTP connection that sends no whole request for so long is closed",
        allowed=(100, 3_600_000),
    )
    drain_ms: int = _setting(
        10_000,
        "drain.ms",
        "ms",
        "how long a stop waits for calls at work; accepted appends are answered in any case",
        allowed=(0, 3_600_000),
    )
