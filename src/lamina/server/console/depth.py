"""Zooming into a partition: its layers, a layer's blocks, a block's records, a record's bytes.

Each step asks for a window of offsets and gets at most so many parts; neighbours are joined to fit
and parted again by the next step. A time leads to an offset through the indexes.

Rule: no step reads more records than it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from lamina.api import Layer, Window
from lamina.errors import InvalidRequest, RecordsMissing
from lamina.log.gap_walk import fetch_over, scan_over
from lamina.server.console import asked, shown
from lamina.server.console.looks import View
from lamina.wire.values import to_plain

LAYERS_MAX = 60
BLOCKS_MAX = 48
RECORDS_MAX = 200


def _place(view: View) -> tuple[str, int]:
    return view.topic(), asked.number(view.given, "partition", 0)


def layers(view: View) -> dict[str, Any]:
    """Returns the layers within a window, and the whole partition's outline."""
    topic, partition = _place(view)
    store = view.store
    every = [_inside(each, store.path) for each in store.layers(topic, partition)]
    first = asked.number(view.given, "first", 0)
    end = asked.number(view.given, "end", 1 << 62)
    within = [each for each in every if each.next_offset > first and each.base_offset < end]
    return {
        "earliest": store.earliest_offset(topic, partition),
        "durable": store.latest_offset(topic, partition),
        "written": store.latest_offset(topic, partition, isolation="written"),
        "format": store.format_of(topic)[0],
        "count": len(every),
        "totals": _totals(every),
        "outline": _joined(every, LAYERS_MAX),
        "layers": _joined(within, LAYERS_MAX),
    }


def _inside(layer: Layer, data: str) -> Layer:
    """Returns where a layer lies below the data directory, whose own path stays private."""
    return replace(layer, where=layer.where.removeprefix(f"{data}/"))


def _totals(every: Sequence[Layer]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for layer in every:
        total = found.setdefault(layer.state, {"layers": 0, "records": 0, "size_bytes": 0})
        total["layers"] += 1
        total["records"] += layer.next_offset - layer.base_offset
        total["size_bytes"] += layer.size_bytes
    return found


def _joined(parts: Sequence[Layer], limit: int) -> list[dict[str, Any]]:
    """Joins neighbours of one state so that about `limit` bands are left."""
    step = max(1, -(-len(parts) // limit))
    rows = []
    for _, run in groupby(parts, key=lambda layer: (layer.state, layer.archived)):
        same = list(run)
        for start in range(0, len(same), step):
            rows.append(_band(same[start : start + step]))
    return rows


def _band(layers_of_band: Sequence[Layer]) -> dict[str, Any]:
    first, last = layers_of_band[0], layers_of_band[-1]
    oldest = [each.oldest_ms for each in layers_of_band if each.oldest_ms is not None]
    newest = [each.newest_ms for each in layers_of_band if each.newest_ms is not None]
    row: dict[str, Any] = to_plain(first)
    return row | {
        "next_offset": last.next_offset,
        "size_bytes": sum(each.size_bytes for each in layers_of_band),
        "oldest_ms": min(oldest, default=None),
        "newest_ms": max(newest, default=None),
        "blocks": sum(each.blocks for each in layers_of_band),
        "joined": len(layers_of_band),
    }


def blocks(view: View) -> dict[str, Any]:
    """Returns the blocks of one layer within a window."""
    topic, partition = _place(view)
    window = Window(
        asked.number(view.given, "first", 0), asked.number(view.given, "end", 1 << 62), BLOCKS_MAX
    )
    base = asked.number(view.given, "base")
    found = view.store.blocks(topic, partition, base, window)
    return {"blocks": [to_plain(each) for each in found]}


def records(view: View) -> dict[str, Any]:
    """Returns the beginnings of some records from an offset on, and a gap as such."""
    topic, partition = _place(view)
    start = asked.number(view.given, "start")
    limit = min(asked.number(view.given, "limit", RECORDS_MAX), RECORDS_MAX)
    end = asked.optional_number(view.given, "end")
    stop = start + limit if end is None else min(end, start + limit)
    rows: list[dict[str, Any]] = []
    gap = None
    scan = partial(view.store.scan, topic, partition, end=stop, max_bytes=1 << 20)
    for step in scan_over(scan, start):
        if isinstance(step, RecordsMissing):
            gap = _as_gap(step)
            break
        rows += shown.previews(step, partition)
        if len(rows) >= limit:
            break
    return {"rows": rows, "gap": gap}


def _as_gap(missing: RecordsMissing) -> dict[str, Any]:
    return {"first": missing.first, "end": missing.end, "reason": missing.reason}


def record(view: View) -> dict[str, Any]:
    """Returns one record with all of its fields, and its bytes where it lies in a local file."""
    topic, partition = _place(view)
    offset = asked.number(view.given, "offset")
    store = view.store
    batch, _ = fetch_over(partial(store.fetch, topic, partition, max_records=1), offset)
    if isinstance(batch, RecordsMissing):
        return {"record": None, "gap": _as_gap(batch)}
    if not batch.num_rows:
        raise InvalidRequest(f"there is no record at offset {offset} yet")
    found = shown.whole(batch)
    raw = store.raw_record(topic, partition, found["offset"])
    layer = next(
        (
            each
            for each in store.layers(topic, partition)
            if each.base_offset <= found["offset"] < each.next_offset
        ),
        None,
    )
    return {
        "record": found,
        "gap": None,
        "earliest": store.earliest_offset(topic, partition),
        "durable": store.latest_offset(topic, partition),
        "layer": to_plain(_inside(layer, store.path)) if layer is not None else None,
        "raw": None
        if raw is None
        else {
            "path": raw.path.removeprefix(f"{store.path}/"),
            "position": raw.position,
            **(shown.as_sent(raw.data) or {}),
        },
    }


def find(view: View) -> dict[str, Any]:
    """Finds the first record at a time or later; `offset` is null where there is none yet."""
    topic, partition = _place(view)
    time_ms = asked.number(view.given, "time_ms")
    return {"offset": view.store.offset_for_time(topic, partition, time_ms)}


DEPTHS = {
    "layers": layers,
    "blocks": blocks,
    "records": records,
    "record": record,
    "find": find,
}
"""Every step by its name in the path."""
