"""`lamina.spark.read(spark, "orders", path="data", where=…)`: a batch read that a filter narrows.

Spark hands a Python source no filter that it could use safely (`lamina.spark`, rule 3). So the
filter is read before the source is asked: what it says about partitions, offsets, times and keys
becomes options, by the same proofs as in every other engine (`engines.bounds`), and the filter
itself is applied by Spark to what is read.

Rules.
1. Options only leave out what no row of the answer needs; the whole filter is always applied.
2. A partition is read as one range: objects of other times are left out at its ends.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from lamina.engines.bounds import Pruner, narrowed
from lamina.errors import InvalidRequest, UnknownTopic
from lamina.spark import plan as planning
from lamina.spark.batch import explain, looked_at
from lamina.spark.filters import RECORD_NAMES, SCHEMA, TYPED_NAMES, Understood, understood
from lamina.spark.options import EARLIEST, LATEST, SourceOptions
from lamina.spark.plan import OBJECT, PRUNED, SEGMENT, Counted, Log, Pruned, Range, kind_of

MADE_HERE = ("subscribe", "subscribepattern", "assign", "columns", "keys")


def read(
    spark: SparkSession,
    topic: str,
    *,
    where: str | Column | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Returns a topic as a frame: typed if the topic has a schema, as it is now.

    `where` is SQL text or a Column. What it says about offset, partition, time and key decides
    what is read at all; Spark applies all of it to that. `columns` are those of the answer.
    `options` are the source's: `path` or `server`, `errors`, `schemaVersion`, ….
    `lamina.spark.explain(frame)` says what was pruned.
    """
    given = CaseInsensitiveDict({name: str(value) for name, value in options.items()})
    for name in options:
        if name.lower() in MADE_HERE or name.lower().startswith(("starting", "ending")):
            raise InvalidRequest(f"{name} is made here of `where` and `columns`: say it by them")
    log = looked_at(SourceOptions.parse({**given, "subscribe": topic}, streaming=False))
    if topic not in log.topics():
        raise UnknownTopic(f"there is no topic {topic!r}; there are {sorted(log.topics())}")
    if "schema" not in given and "valueFormat" not in given and log.schemas(topic):
        given["schema"] = "topic"
    is_typed = "schema" in given or "valueFormat" in given
    found = Understood(columns=frozenset())
    if where is not None:
        every = _loaded(spark, {**given, "subscribe": topic})
        found = understood(every.where(where), TYPED_NAMES if is_typed else RECORD_NAMES)
    ranges = _ranges(log, topic, found)
    made = {**given, **_options(topic, ranges, found, columns)}
    frame = _loaded(spark, made)
    if where is not None:
        frame = frame.where(where)
    if columns is not None:
        frame = frame.select(*columns)
    setattr(frame, PRUNED, _pruned(log, topic, ranges, found, made))
    return frame


def _loaded(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("lamina").options(**options).load()


def _ranges(log: Log, topic: str, found: Understood) -> dict[int, tuple[int, int]]:
    """Returns what a filter leaves of each partition, in offsets as options have them."""
    pruner = Pruner(SCHEMA, found.expression)
    ranges = {}
    for partition in range(log.topics()[topic].partitions):
        bounds = pruner.bounds(partition)
        earliest, end = log.extent(topic, partition)
        if bounds is None:
            continue
        whole = bounds.first <= earliest and bounds.end >= end and bounds.first_us is None
        if whole and not pruner.is_about_time:
            ranges[partition] = EARLIEST, LATEST
            continue
        left = narrowed(bounds, (earliest, end), partial(log.offset_for_time, topic, partition))
        if left is not None and pruner.is_about_time:
            left = _between(log, topic, partition, pruner, left)
        if left is not None:
            first = EARLIEST if left[0] <= earliest else left[0]
            ranges[partition] = first, LATEST if left[1] >= end else left[1]
    return ranges


def _between(
    log: Log, topic: str, partition: int, pruner: Pruner, extent: tuple[int, int]
) -> tuple[int, int] | None:
    """Returns a range without the objects at its ends that no time of the filter lies in."""
    cutters = [each for each in log.cutters(topic, partition) if kind_of(each) == OBJECT]
    left = pruner.ranges(partition, extent, [each.layer.described() for each in cutters])
    return (left[0][0], left[-1][1]) if left else None


def _options(
    topic: str,
    ranges: dict[int, tuple[int, int]],
    found: Understood,
    columns: Sequence[str] | None,
) -> dict[str, str]:
    made = {
        "assign": json.dumps({topic: sorted(ranges)}),
        "startingOffsets": json.dumps({topic: {str(at): ranges[at][0] for at in ranges}}),
        "endingOffsets": json.dumps({topic: {str(at): ranges[at][1] for at in ranges}}),
    }
    if columns is not None and found.columns is not None:
        made["columns"] = ",".join(dict.fromkeys([*columns, *sorted(found.columns)]))
    if found.keys is not None:
        with contextlib.suppress(UnicodeDecodeError):  # such keys have no place in the option
            made["keys"] = json.dumps(sorted(key.decode() for key in found.keys))
    return made


def _pruned(
    log: Log,
    topic: str,
    ranges: dict[int, tuple[int, int]],
    found: Understood,
    options: dict[str, str],
) -> Pruned:
    """Plans what the frame will read, and counts what it will not."""
    plan = explain(**options)
    partitions = range(log.topics()[topic].partitions)
    every = [kind_of(each) for at in partitions for each in log.cutters(topic, at)]
    whole = sum(
        planning.size_bytes(log, Range(topic, at, *log.extent(topic, at))) for at in partitions
    )

    def counted(read: int, all_of_them: int) -> Counted:
        return Counted(read, max(all_of_them - read, 0))

    return Pruned(
        topic,
        counted(len(ranges), len(partitions)),
        counted(plan.segments.read, every.count(SEGMENT)),
        counted(plan.objects.read, every.count(OBJECT)),
        counted(plan.size_bytes, whole),
        ranges,
        len(found.keys) if found.keys is not None and "keys" in options else None,
        plan,
    )
