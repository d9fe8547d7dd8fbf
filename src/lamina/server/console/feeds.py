"""What the console's pages show, as JSON: topics, groups, writers, archive, reports, queries.

Each feed is a function of the store, the history and what was asked, for one caller. What the
caller's key does not cover is not in it.

Rules.
1. Lists come in pages: a thousand topics cost a page what fifty cost.
2. Nothing here reads records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lamina.config import TopicSettings
from lamina.errors import LaminaError
from lamina.server import telling
from lamina.server.console import asked, attendance
from lamina.server.console.history import TREND, measures
from lamina.server.console.looks import View, page_of
from lamina.wire.values import to_plain

ROWS_MAX = 500
SPARK = "spark-"
"""Groups of this prefix are the positions of Spark queries."""


# ---------------------------------------------------------------------- topics


def topics(view: View) -> dict[str, Any]:
    """Lists topics: searched, sorted and cut into pages here, not in the browser."""
    rings = view.history.rings
    search = asked.text(view.given, "search", "").lower()
    order = asked.one_of(view.given, "sort", ("name", "records", "size_bytes", "rate"))
    rows: list[dict[str, Any]] = []
    for name, parts in view.store.extents().items():
        if not view.may_see(name) or search not in name.lower():
            continue
        rows.append(
            {
                "name": name,
                "partitions": len(parts),
                "records": sum(
                    part.durable_offset - part.earliest_offset
                    for part in parts  # archived ones count, too
                ),
                "size_bytes": sum(part.size_bytes + part.archived_bytes for part in parts),
                "segments": sum(part.segments + part.archived_segments for part in parts),
                "rate": rings.last(("topic", name, "records")),
                "bytes_rate": rings.last(("topic", name, "bytes")),
            }
        )
    totals = {key: sum(row[key] or 0 for row in rows) for key in ("records", "size_bytes", "rate")}
    if order != "name":
        rows.sort(key=lambda row: (-(row[order] or 0), row["name"]))
    shown, about = page_of(rows, view.given)
    for row in shown:
        row["format"] = view.store.format_of(row["name"])[0]
        row["trend"] = rings.series(("topic", row["name"], "records"), TREND)
    return {"rows": shown, "totals": totals | {"topics": len(rows)}, **about}


def topic(view: View) -> dict[str, Any]:
    """Describes one topic: partitions, settings with their meaning, rates."""
    name = view.topic()
    info = view.store.describe_topic(name)
    about = {row["key"]: row for row in TopicSettings.explained()}
    return {
        "name": info.name,
        "format": info.format,
        "created_ms": info.created_ms,
        "partitions": [to_plain(part) for part in info.partitions],
        "settings": [
            {
                "key": key,
                "value": value,
                "changed": value != about[key]["default"],
                "unit": about[key]["unit"],
                "consequence": about[key]["consequence"],
            }
            for key, value in info.settings.items()
        ],
        "series": view.drawn({each: ("topic", name, each) for each in ("records", "bytes")}),
    }


def retention(view: View) -> dict[str, Any]:
    """Returns for each segment, oldest first, why it stays or goes."""
    name, partition = view.topic(), asked.number(view.given, "partition", 0)
    decisions = view.store.explain_retention(name, partition)
    settings = view.store.describe_topic(name).settings
    return {
        "rows": [to_plain(each) for each in decisions[:ROWS_MAX]],
        "total": len(decisions),
        "going": sum(each.goes for each in decisions),
        "settings": {key: value for key, value in settings.items() if "retention" in key},
        "now_ms": time.time_ns() // 1_000_000,
    }


# ---------------------------------------------------------------------- groups


def groups(view: View) -> dict[str, Any]:
    """Lists consumer groups, the one furthest behind first."""
    search = asked.text(view.given, "search", "").lower()
    wanted = asked.text(view.given, "topic", "")
    found = [
        (topic, name)
        for topic, name in view.groups(wanted or None)
        if search in f"{topic} {name}".lower()
    ]
    rings = view.history.rings
    found.sort(key=lambda each: (-(rings.last(("group", *each, "records")) or 0), each))
    shown, about = page_of(found, view.given)
    return {"rows": _group_rows(view, shown), **about}


def _group_rows(view: View, names: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    rows = []
    members = attendance.counts(view)
    for topic_name, name in names:
        try:
            lags = view.store.describe_group(topic_name, name).partitions
        except LaminaError:  # deleted in the meantime
            continue
        rows.append(
            {
                "topic": topic_name,
                "group": name,
                "partitions": len(lags),
                "records": sum(lag.records for lag in lags),
                "bytes": sum(lag.bytes for lag in lags),
                "seconds": max((lag.seconds for lag in lags), default=0.0),
                "inflight": sum(lag.inflight for lag in lags),
                "members": members(topic_name, name),
                "trend": view.history.rings.series(("group", topic_name, name, "records"), TREND),
            }
        )
    return rows


def group(view: View) -> dict[str, Any]:
    """Describes one group: each partition, its lag over time, and the members of a classic one."""
    name, group_name = view.topic(), asked.text(view.given, "group")
    telling.require_group(view.caller, view.store, name, group_name)
    info = view.store.describe_group(name, group_name)
    key = ("group", name, group_name)
    return {
        "topic": name,
        "group": group_name,
        "partitions": [to_plain(lag) for lag in info.partitions],
        "members": attendance.of_group(view, name, group_name)[:ROWS_MAX],
        "series": view.drawn({each: (*key, each) for each in ("records", "seconds")}),
    }


# ---------------------------------------------------------------------- the broker itself

_WRITER_SERIES = (
    *("groups", "records", "bytes", "group_p50", "group_p99", "fsync_p50_us", "fsync_p99_us"),
    *("depth", "unsynced"),
)


def writers(view: View) -> dict[str, Any]:
    """Returns how appends are grouped and synced: over time, and per writer now."""
    search = asked.text(view.given, "search", "").lower()
    history = view.history
    rows: list[dict[str, Any]] = []
    for each in view.store.writers():
        hidden = view.caller.prefix if each.topic is None else not view.may_see(each.topic)
        if hidden or search not in each.name.lower():
            continue
        row: dict[str, Any] = {
            "name": each.name,
            "depth": each.depth,
            "written": each.written_offset,
            "durable": each.durable_offset,
            "unsynced": each.unsynced_records,
            "failure": each.failure,
            "total_groups": each.pulse.groups,
        }
        pulse = history.last_pulses.get(each.name)
        if pulse is not None:
            row |= measures(pulse, history.interval_s)
        rows.append(row)
    rows.sort(key=lambda row: (-row.get("records", 0), -row["total_groups"], row["name"]))
    shown, about = page_of(rows, view.given)
    return {"rows": shown, "series": _shared(view, "writer", _WRITER_SERIES), **about}


def _shared(view: View, of: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """Series that sum over all topics: for a key that is for some, nothing but their times."""
    found = view.drawn({name: (of, name) for name in names})
    if view.caller.prefix:
        found |= {name: [None] * len(found["times"]) for name in names}
    return found


def tier(view: View) -> dict[str, Any]:
    """Returns what is archived and how far the archive is behind."""
    rows = [to_plain(each) for each in view.store.tier_status() if view.may_see(each.topic)]
    rows.sort(key=lambda row: (-row["records_behind"], row["topic"], row["partition"]))
    shown, about = page_of(rows, view.given)
    store_tier = view.store.tier
    return {
        "url": store_tier.objects.url if store_tier is not None else None,
        "rows": shown,
        "totals": {
            key: sum(row[key] for row in rows)
            for key in ("objects", "size_bytes", "records_behind", "bytes_behind")
        },
        "series": _shared(view, "tier", ("records", "bytes", "seconds")),
        **about,
    }


def reports(view: View) -> dict[str, Any]:
    """Returns what the last recovery did, and which offsets are missing and why."""
    report = view.store.recovery_report
    gaps = []
    for name, parts in view.store.extents().items():
        if view.may_see(name):
            for part in parts:
                for gap in view.store.gaps(name, part.partition):
                    gaps.append({"topic": name, "partition": part.partition, **to_plain(gap)})
    gaps.sort(key=lambda gap: (gap["reason"] != "lost", -gap["at_ms"]))
    failures = view.store.failures()
    whole = not view.caller.prefix  # the report speaks of files of every topic
    inside = view.store.path + "/"
    events = [to_plain(each) for each in report.events[:ROWS_MAX]] if whole else []
    for event in events:
        event["path"] = event["path"].removeprefix(inside)
        event["kept_in"] = event["kept_in"] and event["kept_in"].removeprefix(inside)
    return {
        "recovery": {
            "milliseconds": report.milliseconds,
            "events": events,
            "total": len(report.events) if whole else 0,
        },
        "gaps": gaps[:ROWS_MAX],
        "gaps_total": len(gaps),
        "failures": [{"name": name, "why": why} for name, why in sorted(failures.items()) if whole],
    }


def queries(view: View) -> dict[str, Any]:
    """Returns Spark queries: readers with their lag, and writers."""
    readers = [each for each in view.groups() if each[1].startswith(SPARK)]
    shown, about = page_of(readers, view.given)
    sinks = [to_plain(each) for each in view.store.sinks()] if not view.caller.prefix else []
    return {"readers": _group_rows(view, shown), "writers": sinks[:ROWS_MAX], **about}


FEEDS = {
    "topics": topics,
    "topic": topic,
    "retention": retention,
    "groups": groups,
    "group": group,
    "members": attendance.members,
    "clients": attendance.clients,
    "writers": writers,
    "tier": tier,
    "reports": reports,
    "queries": queries,
}
"""Every feed by its name in the path."""
