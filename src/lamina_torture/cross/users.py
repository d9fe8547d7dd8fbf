"""Everybody who uses a directory or an archive: what each does, and what of the product it covers.

`covers` names what a user exercises: a method of a store, a group, a consumer or a producer
(`Store.scan`), a command (`lamina verify`), a route (`GET /metrics`), an action of the console. A
test compares all of them with the product: whatever it has is covered by a user, or named in
`NOT_USERS` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamina.wire.operations import OPERATIONS
from lamina_torture.cross import (
    beside,
    changers,
    commands,
    doors,
    kafka_door,
    lookers,
    readers,
    sparks,
)
from lamina_torture.cross.axes import Cell
from lamina_torture.cross.ground import Ground, Saw


@dataclass(frozen=True)
class User:
    """Who uses a damaged directory, and how."""

    name: str
    run: Callable[[Ground], Saw]
    covers: tuple[str, ...]
    tiers: tuple[str, ...] = ()
    """The tiers that it can meet; all without any."""
    needs_archive: bool = False
    formats: tuple[str, ...] = ()


_STORE = "Store."
_READ_ONLY = "ReadOnlyStore."
_ARCHIVE = "ArchiveStore."
_REPLICA = "ReplicaStore."
_REMOTE = "RemoteStore."
_GROUP = "Group."
_IN_EVERY_STORE = (
    "topics", "describe_topic", "format_of", "segments", "gaps", "earliest_offset",
    "latest_offset", "routers",
)  # fmt: skip
_LOOKED_AT = (*_IN_EVERY_STORE, "groups", "tier_status", "describe_group")
_IN_ARCHIVE = ("object", "shelf")
_BESIDE = ("metadata", "shelf")
_CARRIED = ("keratin", "frame")


def _of(kind: str, *names: str) -> tuple[str, ...]:
    return tuple(kind + name for name in names)


def _gets() -> tuple[str, ...]:
    return tuple(f"GET {each.path}" for each in OPERATIONS.values() if each.verb == "GET")


USERS: dict[str, User] = {
    user.name: user
    for user in (
        User("scan", readers.scan, _of(_STORE, "scan", "close")),
        User("fetch", readers.fetch, _of(_STORE, "fetch")),
        User("diff", readers.diff, _of(_STORE, "diff")),
        User("group", readers.group, (*_of(_STORE, "group"), *_of(_GROUP, "poll", "ack"))),
        User("old-group", readers.old_group, _of(_STORE, "groups", "describe_group")),
        User("consumer", readers.consumer, _of("Consumer.", "subscribe", "consume", "close",
             "position", "committed", "commit", "get_watermark_offsets", "offsets_for_times")),
        User("read-only", readers.read_only, _of(_READ_ONLY, "scan", "close")),
        User("read-only-fetch", readers.read_only_fetch, _of(_READ_ONLY, "fetch")),
        User("read-only-diff", readers.read_only_diff, _of(_READ_ONLY, "diff")),
        User("archive-scan", readers.archive_scan, _of(_ARCHIVE, "scan", "close"),
             _IN_ARCHIVE, True),
        User("archive-fetch", readers.archive_fetch, _of(_ARCHIVE, "fetch", "diff"),
             _IN_ARCHIVE, True),
        User("typed-read", beside.typed_read, _of(_STORE, "read", "schema", "schemas"), _BESIDE),
        User("typed-read-only", beside.typed_read_only,
             _of(_READ_ONLY, "read", "schema", "schemas"), _BESIDE),
        User("transactions", beside.transactions, (), _BESIDE),
        User("replica-scan", readers.replica_scan, _of(_REPLICA, "scan", "poll", "close"),
             _IN_ARCHIVE, True, _CARRIED),
        User("replica-fetch", readers.replica_fetch, _of(_REPLICA, "fetch", "diff"),
             _IN_ARCHIVE, True, _CARRIED),
        User("describe-replica", lookers.describe_replica, _of(_REPLICA, *_IN_EVERY_STORE,
             "offset_for_time", "status", "replica_lag_ms"), _IN_ARCHIVE, True, _CARRIED),
        User("describe", lookers.describe, _of(_STORE, *_LOOKED_AT, "extents", "writers", "sinks",
             "failures", "segmented", "wal_partitions", "producer_position", "raw_record",
             "explain_retention", "layers", "blocks")),
        User("describe-read-only", lookers.describe_read_only, _of(_READ_ONLY, *_LOOKED_AT)),
        User("describe-archive", lookers.describe_archive, _of(_ARCHIVE, *_IN_EVERY_STORE),
             _IN_ARCHIVE, True),
        User("offset-for-time", lookers.offset_for_time, _of(_STORE, "offset_for_time")),
        User("offset-for-time-read-only", lookers.offset_for_time_read_only,
             (*_of(_READ_ONLY, "offset_for_time"), *_of(_ARCHIVE, "offset_for_time"))),
        User("append", changers.append, _of(_STORE, "append", "append_async", "append_batch")),
        User("roll", changers.roll, _of(_STORE, "roll", "flush", "purge_wal")),
        User("maintain", changers.maintain, _of(_STORE, "maintain")),
        User("retention", changers.retention, _of(_STORE, "apply_retention")),
        User("trim", changers.trim, _of(_STORE, "trim")),
        User("delete-records", changers.delete_records, _of(_STORE, "delete_records")),
        User("delete", changers.delete, _of(_STORE, "delete"), formats=("wal",)),
        User("archive", changers.archive, _of(_STORE, "archive"), needs_archive=True),
        User("delete-topic", changers.delete_topic, _of(_STORE, "delete_topic")),
        User("group-changes", changers.groups, (*_of(_STORE, "reset_group", "delete_group"),
             *_of(_GROUP, "extend", "release", "reject", "commit", "committed", "lag",
             "describe"))),
        User("classic-group", changers.classic_group, (*_of(_READ_ONLY, "committed_offsets"),
             *_of(_STORE, "commit_offsets", "committed_offsets", "describe_members",
             "new_producer_id"))),
        User("alter", changers.alter, _of(_STORE, "alter_topic", "create_topic", "create_router",
             "alter_router", "delete_router", "add_partitions")),
        User("flight-scan", doors.remote_scan, ("lamina serve", *_of(_REMOTE, "scan", "close"))),
        User("flight-fetch", doors.remote_fetch, _of(_REMOTE, "fetch")),
        User("flight-diff", doors.remote_diff, _of(_REMOTE, "diff")),
        User("flight-group", doors.remote_group,
             (*_of(_REMOTE, "group"), *_of("RemoteGroup.", "poll", "ack"))),
        User("flight-consumer", doors.remote_consumer, _of("Consumer.", "subscribe", "consume")),
        User("flight-describe", doors.remote_describe, _of(_REMOTE, *_LOOKED_AT, "failures",
             "explain_retention", "offset_for_time", "producer_position")),
        User("flight-change", doors.remote_change, _of(_REMOTE, "append", "append_async", "flush",
             "maintain", "roll", "apply_retention", "alter_topic", "create_topic", "reset_group",
             "archive")),
        User("http-fetch", doors.http_fetch,
             ("GET /v1/topics/{topic}/partitions/{partition}/records",)),
        User("http-pages", doors.http_pages, ("GET /health", "GET /ready", "GET /openapi.json",
             "GET /docs", "GET /", "POST /v1/topics/{topic}/groups/{group}/poll", *_gets())),
        User("kafka-fetch", kafka_door.fetch, ("kafka Fetch", "kafka ListOffsets")),
        User("metrics", doors.metrics, ("GET /metrics",)),
        User("console", doors.console, ("GET /console", "GET /console/session",
             "GET /console/feed/jobs", "GET /console/feed/{name}")),
        User("console-do", doors.console_do, ("POST /console/do/{name}", "action alter_topic",
             "action plan_trim", "action roll", "action archive", "action seek_group",
             "action create_topic")),
        User("tail", doors.tail, ("GET /console/tail",
             "GET /v1/topics/{topic}/partitions/{partition}/watch")),
        User("consume", commands.consume, ("lamina topic consume",)),
        User("cat", commands.cat, ("lamina cat",)),
        User("sql", commands.sql, ("lamina sql",)),
        User("produce", commands.produce, ("lamina topic produce",)),
        User("looks", commands.looks, ("lamina topic list", "lamina topic describe",
             "lamina topic delete", "lamina segment list", "lamina group list",
             "lamina group describe", "lamina router list", "lamina schema list",
             "lamina schema show")),
        User("changes", commands.changes, ("lamina topic alter", "lamina topic create",
             "lamina topic add-partitions",
             "lamina group seek", "lamina group delete", "lamina router create",
             "lamina router alter", "lamina router delete", "lamina schema set")),
        User("topic-trim", commands.topic_trim, ("lamina topic trim",)),
        User("topic-delete-records", commands.topic_delete_records,
             ("lamina topic delete-records",)),
        User("topic-retention", commands.topic_retention, ("lamina topic retention",)),
        User("verify", commands.verify, ("lamina verify", "lamina segment verify")),
        User("doctor", commands.doctor, ("lamina doctor",)),
        User("dump", commands.dump, ("lamina dump", "lamina segment dump")),
        User("tier-looks", commands.tier_looks, ("lamina tier show", "lamina tier status"),
             needs_archive=True),
        User("tier-archive", commands.tier_archive, ("lamina tier archive",), needs_archive=True),
        User("rebuild", commands.rebuild, ("lamina tier rebuild",), _IN_ARCHIVE, True),
        User("orphans", commands.orphans, ("lamina tier orphans",), _IN_ARCHIVE, True),
        User("restore", commands.restore, ("lamina tier restore",), _IN_ARCHIVE, True),
    )
}  # fmt: skip
"""Every user in this process, by name."""

SPARK_USERS: dict[str, User] = {
    user.name: user
    for user in (
        User("spark-read", sparks.spark_read, ("Spark source",)),
        User("export", sparks.export, ("lamina pipeline export",)),
        User("profile", sparks.profile, ("lamina pipeline profile",)),
        User("job-verify", sparks.job_verify, ("lamina pipeline verify",)),
        User("repair", sparks.repair, ("lamina pipeline repair",)),
        User("erase", sparks.erase, ("lamina pipeline erase",)),
        User("job-archive", sparks.job_archive, ("lamina pipeline archive",), needs_archive=True),
        User("compact", sparks.compact, ("lamina pipeline compact",), needs_archive=True),
        User("convert", sparks.convert, ("lamina pipeline convert", "lamina pipeline replay")),
    )
}
"""Every user on Spark, by name."""


def unmet(user: User, cell: Cell) -> str | None:
    """Returns why a user cannot meet the damage of a cell, or None."""
    if user.formats and cell.format not in user.formats:
        return f"only {', '.join(user.formats)} topics can be asked for it"
    if user.tiers and cell.tier not in user.tiers:
        return "it does not look there"
    return None
