"""The options of the Spark source and sink: read once, checked, and turned into values.

The names, values, precedence and defaults are those of Spark's Kafka source, without its `kafka.`
family; `path` or `server` takes the place of its servers. Spark hands options over as text, in any
case of letters.

Rules.
1. An unknown option is an error with a hint: a typing mistake must not read a whole topic.
2. Offsets -2 and -1 mean earliest and latest, here and in the JSON of users; nowhere else.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.archive.location import remembered
from lamina.config import ARCHIVE_VARIABLE
from lamina.errors import InvalidRequest
from lamina.spark.access import ArchiveAccess, ServerAccess, Where
from lamina.storage import machine, paths
from lamina.storage.files import LocalFiles

EARLIEST, LATEST = -2, -1
MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

SOURCE_OPTIONS = (
    "path",
    "server",
    "apiKey",
    "archive",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "includeHeaders",
    "includeMetadata",
    "columns",
    "keys",
    "schema",
    "schemaVersion",
    "valueFormat",
    "valueSchema",
    "errors",
    "groupIdPrefix",
    "group.id",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
SINK_OPTIONS = (
    *("path", "server", "apiKey", "stagingPath"),
    *("topic", "txnAppId", "txnVersion", "commitTimeoutMs"),
)
OF_ARCHIVE = "archive."
"""Before the options of the object store itself: `archive.endpoint`, `archive.region`, …"""
OF_SPARK = ("checkpointLocation", "queryName")
"""Options of a streaming query itself, which Spark hands to its source and sink too."""

ERRORS = {"raise": "raise", "null": "null", "deadletter": "dead_letter"}
"""What happens to a record that its schema does not fit, and what `store.read` calls it."""

PartitionNumbers = dict[str, dict[int, int]]


class Given:
    """Options as they were given; each is asked for once, by name and kind."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in (*known, *OF_SPARK)}
        for name in self._options:
            if name not in names and not ("archive" in names and name.startswith(OF_ARCHIVE)):
                close = difflib.get_close_matches(name, list(names), n=1)
                hint = f"did you mean {names[close[0]]!r}?" if close else f"known: {known}"
                raise InvalidRequest(f"unknown option {name!r}; {hint}")

    def text(self, name: str) -> str | None:
        """Returns an option as it was given."""
        return self._options.get(name.lower())

    def below(self, prefix: str) -> dict[str, str]:
        """Returns the options whose names begin with a prefix, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self._options.items()
            if name.startswith(prefix)
        }

    def number(self, name: str, *, least: int = 1) -> int | None:
        """Returns a whole number, not below `least`."""
        given = self.text(name)
        if given is None:
            return None
        try:
            number = int(given.strip())
        except ValueError as error:
            raise InvalidRequest(f"{name} must be a whole number, not {given!r}") from error
        if number < least:
            raise InvalidRequest(f"{name} must be at least {least}, not {number}")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        """Returns true or false."""
        given = self.text(name)
        if given is None:
            return default
        if given.strip().lower() not in ("true", "false"):
            raise InvalidRequest(f"{name} must be true or false, not {given!r}")
        return given.strip().lower() == "true"

    def document(self, name: str) -> Any:
        """Returns the value of an option that is JSON."""
        given = self.text(name)
        if given is None:
            return None
        try:
            return json.loads(given)
        except ValueError as error:
            raise InvalidRequest(f"{name} is not JSON: {error}") from error

    def names(self, name: str) -> tuple[str, ...] | None:
        """Returns a list of names separated by commas."""
        given = self.text(name)
        if given is None:
            return None
        return tuple(part.strip() for part in given.split(",") if part.strip())

    def partition_numbers(self, name: str) -> PartitionNumbers:
        """Returns a number for each of some partitions: {"topic": {"0": 23}}."""
        try:
            return {
                topic: {int(partition): int(number) for partition, number in numbers.items()}
                for topic, numbers in (self.document(name) or {}).items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f'{name} must look like {{"topic": {{"0": 23}}}}, not {self.text(name)!r}'
            ) from error


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics and partitions are read: exactly one of three ways to say it."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Given) -> Selection:
        """Reads `subscribe`, `subscribePattern` or `assign`."""
        ways = ("subscribe", "subscribePattern", "assign")
        named = [way for way in ways if given.text(way) is not None]
        if len(named) != 1:
            raise InvalidRequest(f"give exactly one of {', '.join(ways)}, not {named or 'none'}")
        if named == ["assign"]:
            document = given.document("assign")
            try:
                assigned = {name: tuple(map(int, those)) for name, those in document.items()}
            except (AttributeError, TypeError, ValueError) as error:
                raise InvalidRequest('assign must look like {"topic": [0, 1]}') from error
            return cls(assigned=assigned)
        if named == ["subscribe"]:
            return cls(topics=given.names("subscribe") or ())
        pattern = given.text("subscribePattern") or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidRequest(
                f"subscribePattern {pattern!r} is not a Python pattern: {error}"
            ) from error
        return cls(pattern=pattern)


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading starts or ends: a time for some partitions, an offset for the others."""

    default_offset: int
    offsets: PartitionNumbers = field(default_factory=dict)
    default_ms: int | None = None
    times: PartitionNumbers = field(default_factory=dict)

    def time_ms(self, topic: str, partition: int) -> int | None:
        """Returns the time that was given for a partition."""
        return self.times.get(topic, {}).get(partition, self.default_ms)

    def offset(self, topic: str, partition: int) -> int:
        """Returns the offset that was given for a partition, or the default."""
        return self.offsets.get(topic, {}).get(partition, self.default_offset)


def _edge(given: Given, which: str, default: int, refused: int | None) -> Edge:
    """Reads one edge: `…Timestamp` goes before `…OffsetsByTimestamp`, that before `…Offsets`."""
    default_ms = given.number(f"{which}Timestamp", least=0)
    if default_ms is not None:
        return Edge(default, default_ms=default_ms)
    times = given.partition_numbers(f"{which}OffsetsByTimestamp")
    if times:
        return Edge(default, times=times)
    name = f"{which}Offsets"
    words = {"earliest": EARLIEST, "latest": LATEST}
    word = (given.text(name) or "").strip().lower()
    offsets = {} if word in words else given.partition_numbers(name)
    default = words.get(word, default)
    for number in [default, *(each for some in offsets.values() for each in some.values())]:
        if number < EARLIEST or number == refused:
            raise InvalidRequest(f"{name} cannot be {number} here")
    return Edge(default, offsets)


@dataclass(frozen=True, slots=True)
class Typing:
    """How values become columns: by the topic's own schema, or by a format and a schema's text.

    `version` is that of the topic's schema, None for the newest. `errors` is `store.read`'s word.
    """

    version: int | None
    format: str | None
    schema: str
    errors: str

    @classmethod
    def parse(cls, given: Given) -> Typing | None:
        """Reads `schema` or `valueFormat` and what belongs to them; None where neither is given."""
        own, kind = given.text("schema"), given.text("valueFormat")
        if own is None and kind is None:
            for name in ("schemaVersion", "valueSchema", "errors"):
                if given.text(name) is not None:
                    raise InvalidRequest(
                        f"{name} is for typed columns: give schema='topic', or valueFormat too"
                    )
            return None
        if own is not None and (kind is not None or own.strip().lower() != "topic"):
            raise InvalidRequest(
                "schema is 'topic', for the schema that the topic has; for a schema of your own"
                " give valueFormat and valueSchema instead"
            )
        for name, other in (("schemaVersion", kind), ("valueSchema", own)):
            if other is not None and given.text(name) is not None:
                raise InvalidRequest(
                    f"{name} does not go with {'schema' if own else 'valueFormat'}"
                )
        if kind is not None and not given.text("valueSchema"):
            raise InvalidRequest("valueFormat needs valueSchema: the text of the values' schema")
        for name in ("includeHeaders", "includeMetadata"):
            if given.flag(name, default=False):
                raise InvalidRequest(f"{name} does not go with typed columns; name them instead")
        word = (given.text("errors") or "raise").strip().lower().replace("_", "")
        if word not in ERRORS:
            raise InvalidRequest(f"errors is one of {', '.join(ERRORS)}, not {word!r}")
        version = given.number("schemaVersion")
        kind = kind.strip().lower() if kind is not None else None
        return cls(version, kind, given.text("valueSchema") or "", ERRORS[word])


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a reader."""

    where: Where
    selection: Selection
    start: Edge
    end: Edge
    unmatched_time: str
    fail_on_data_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    max_bytes: int | None
    min_partitions: int | None
    max_partition_records: int | None
    max_partition_bytes: int | None
    keys: tuple[bytes, ...] | None
    group: str | None
    group_prefix: str
    retries: int
    retry_ms: int
    typing: Typing | None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Reads and checks the options of a source."""
        given = Given(options, SOURCE_OPTIONS)
        strategy = (given.text("startingOffsetsByTimestampStrategy") or "error").lower()
        if strategy not in ("error", "latest"):
            raise InvalidRequest("startingOffsetsByTimestampStrategy must be error or latest")
        ending = [name for name in SOURCE_OPTIONS if name.startswith("ending") and given.text(name)]
        if streaming and ending:
            raise InvalidRequest(f"{ending[0]} is for batch queries; a stream has no end")
        return cls(
            where=where_of(given),
            selection=Selection.parse(given),
            start=_edge(
                given,
                "starting",
                LATEST if streaming else EARLIEST,
                None if streaming else LATEST,
            ),
            end=_edge(given, "ending", LATEST, EARLIEST),
            unmatched_time=strategy,
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            max_offsets=given.number("maxOffsetsPerTrigger"),
            min_offsets=given.number("minOffsetsPerTrigger"),
            max_delay_ms=_duration_ms(given.text("maxTriggerDelay") or "15m"),
            max_bytes=given.number("maxBytesPerTrigger"),
            min_partitions=given.number("minPartitions"),
            max_partition_records=given.number("maxRecordsPerPartition"),
            max_partition_bytes=given.number("maxBytesPerPartition"),
            keys=_keys(given),
            group=given.text("group.id"),
            group_prefix=given.text("groupIdPrefix") or "spark-lamina-source",
            retries=_or(given.number("fetchOffset.numRetries", least=0), 3),
            retry_ms=_or(given.number("fetchOffset.retryIntervalMs", least=0), 10),
            typing=Typing.parse(given),
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a writer. `version` is None for a stream: its batch id."""

    where: Where
    topic: str | None
    application: str
    version: int | None
    timeout_ms: int
    staging: str | None
    checkpoint: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Reads and checks the options of a sink."""
        given = Given(options, SINK_OPTIONS)
        application = given.text("txnAppId")
        version = given.number("txnVersion", least=0)
        if not application:
            raise InvalidRequest(
                "txnAppId names the writer, so that a repeated write is stored once: give one that"
                " stays the same when this job is run again"
            )
        if streaming and version is not None:
            raise InvalidRequest("txnVersion is for batch writes; a stream uses its batch id")
        if not streaming and version is None:
            raise InvalidRequest(
                "txnVersion numbers the writes of a txnAppId: give one that grows with each new"
                " write and stays the same when one is repeated"
            )
        return cls(
            where=where_of(given),
            topic=given.text("topic"),
            application=application,
            version=version,
            timeout_ms=_or(given.number("commitTimeoutMs"), 60_000),
            staging=given.text("stagingPath"),
            checkpoint=given.text("checkpointLocation"),
        )


def where_of(given: Given) -> Where:
    """Returns where the log is: `path` or `server`, and where its archive is."""
    path, server = given.text("path"), given.text("server")
    if (not path) == (not server):
        raise InvalidRequest(
            "give either the log, .option('path', …) or .load(…), or a running 'server'"
        )
    secrets = given.below(OF_ARCHIVE)
    if path and _is_object_store(path):
        return Where(archive=ArchiveAccess.of(path, secrets))
    archive = _archive_of(given, path)
    if secrets and not archive:
        raise InvalidRequest(f"options {sorted(secrets)} open an archive; say which by 'archive'")
    cold = None
    if archive:
        named = archive if _is_object_store(archive) else paths.absolute(_local(archive))
        cold = ArchiveAccess.of(named, secrets, paths.absolute(_local(path)) if path else None)
    if path:
        return Where(path=_local(path), archive=cold)
    assert server is not None
    return Where(server=ServerAccess(server, given.text("apiKey")), archive=cold)


def _archive_of(given: Given, path: str | None) -> str | None:
    """Returns the archive that is named, or that the directory remembers; an empty name is none."""
    named = given.text("archive")
    if named is None:
        named = machine.ENVIRONMENT.get(ARCHIVE_VARIABLE)
    if named is not None or not path:
        return named or None
    return remembered(LocalFiles(), paths.absolute(_local(path)))


def _is_object_store(name: str) -> bool:
    return "://" in name and not name.startswith("file:")


def _local(name: str) -> str:
    return re.sub(r"^file:/+", "/", name)


def _or(number: int | None, default: int) -> int:
    return default if number is None else number


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)\s*(ms|s|m|h|d)", text.strip())
    if match is None:
        raise InvalidRequest(f"maxTriggerDelay must look like 15m or 500ms, not {text!r}")
    return int(match[1]) * MILLISECONDS[match[2]]


def _keys(given: Given) -> tuple[bytes, ...] | None:
    document = given.document("keys")
    if document is None:
        return None
    if not isinstance(document, list) or not all(isinstance(key, str) for key in document):
        raise InvalidRequest('keys must be a JSON list of texts: ["a", "b"]')
    return tuple(key.encode() for key in document)
