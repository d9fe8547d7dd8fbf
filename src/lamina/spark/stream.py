"""`spark.readStream.format("lamina")`: offsets, admission and planning of micro-batches.

The offset in Spark's checkpoint is `{"orders": {"0": 23}, "@epoch": {"orders": 1}, "@group": "…"}`:
readable, with the epoch of each topic beside it, and the name under which the query publishes its
position (no topic's name has an `@`). So a query that is started again keeps its name.

Spark writes where a query started nowhere: batch 0 has an end in the checkpoint, and whoever runs
it again asks for the initial offset again. So what was started at the log's end (`latest`, or a
time that has no record yet) is named in the initial offset, `"@latest": {"orders": [0]}`, and batch
0 takes nothing of it: its end is the start, kept by the checkpoint before a record is read, and
batch 1 goes on from there, whatever was appended since and however often batch 0 is repeated.

Rules.
1. `latestOffset` costs a few system calls when the log has not changed, and an object store or a
   server is asked no more often than their logs say: an idle query asks fifty times a second.
2. Offsets never go back, whatever a look at the directory shows just then.
3. A topic that was created again is another topic: the query stops and says so.
4. A position is published when Spark's commit log has it: as the start of the next batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lamina.errors import InvalidRequest, RecordsMissing, Unavailable
from lamina.spark import plan as planning
from lamina.spark.admission import shares
from lamina.spark.columns import Projection
from lamina.spark.gaps import LOGGER
from lamina.spark.options import SourceOptions
from lamina.spark.pieces.task import Task, read_task
from lamina.spark.plan import Log, Range
from lamina.spark.query_positions import Positions
from lamina.spark.typed_projection import TypedProjection, projection_of, versions_now

EPOCHS, GROUP, AT_LATEST = "@epoch", "@group", "@latest"
LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a query stands: one past the last offset of each partition, and the topics' epochs.

    `group` is the name of the query; empty before it has one. `at_latest` is only in an initial
    offset: the partitions that start where the log ended just then; None in all others.
    """

    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    group: str = ""
    at_latest: frozenset[tuple[str, int]] | None = None

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Offsets:
        """Reads what `to_json` gives."""
        epochs = {topic: int(epoch) for topic, epoch in document.get(EPOCHS, {}).items()}
        ends = {
            (topic, int(partition)): int(end)
            for topic, partitions in document.items()
            if topic not in (EPOCHS, GROUP, AT_LATEST)
            for partition, end in partitions.items()
        }
        started = document.get(AT_LATEST)
        at_latest = None
        if started is not None:
            pairs = ((topic, number) for topic, numbers in started.items() for number in numbers)
            at_latest = frozenset(pairs)
        return cls(ends, epochs, document.get(GROUP, ""), at_latest)

    def to_json(self) -> dict[str, Any]:
        """Returns a document that is equal, as text too, for equal offsets."""
        document: dict[str, Any] = {}
        for (topic, partition), end in sorted(self.ends.items()):
            document.setdefault(topic, {})[str(partition)] = end
        more: dict[str, Any] = {GROUP: self.group} if self.group else {}
        if self.at_latest is not None:
            started: dict[str, list[int]] = {}
            for topic, partition in sorted(self.at_latest):
                started.setdefault(topic, []).append(partition)
            more[AT_LATEST] = started
        return document | {EPOCHS: dict(sorted(self.epochs.items()))} | more


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of a log; lives in a process beside the driver."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        log: Log,
    ) -> None:
        self._options = options
        self._projection: Projection | TypedProjection
        if options.typing is None:
            self._projection = Projection(schema, options.keys)
        else:
            log.look()
            self._projection = projection_of(options, schema, log)
        self._columns = schema.fieldNames()
        self._log = log
        self._group = options.group or f"{options.group_prefix}-{uuid.uuid4()}"
        self._positions = Positions(options.where)
        self._published: Offsets | None = None
        self._latest: Offsets | None = None
        self._token: object = None
        self._looked_s = 0.0
        self._target: Offsets | None = None
        self._triggered_s = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the log behind: an executor only reads what it is handed."""
        return self.__dict__ | {"_log": None, "_latest": None, "_positions": None}

    # ------------------------------------------------------------------ where the log ends

    def _just_now(self) -> Offsets:
        """Returns where the log ended within the last moment: enough for what is only shown."""
        now_s = time.monotonic()
        if self._latest is not None and now_s - self._looked_s < LOOK_AGAIN_S:
            return self._latest
        return self._now()

    def _now(self) -> Offsets:
        """Returns where the log ends.

        A batch must not go by an earlier look, however short ago: `processAllAvailable` promises
        whatever was appended before it was called.
        """
        for attempt in range(self._options.retries + 1):
            try:
                return self._look()
            except (OSError, Unavailable):
                if attempt == self._options.retries:
                    raise
                time.sleep(self._options.retry_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    def _look(self) -> Offsets:
        self._looked_s = time.monotonic()
        token = self._log.look()
        if self._latest is None or token != self._token:
            topics = self._log.topics()
            ends = {
                (topic, partition): self._log.extent(topic, partition)[1]
                for topic, partition in self._selected()
            }
            epochs = {topic: topics[topic].epoch for topic, _ in ends}
            self._latest, self._token = Offsets(ends, epochs), token
        return self._latest

    def _selected(self) -> list[tuple[str, int]]:
        return planning.selected(self._log.topics(), self._options.selection)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns where a query without a checkpoint starts."""
        latest = self._now()
        starts = {
            place: planning.start_of(self._log, self._options, *place) for place in latest.ends
        }
        ends = {place: start.offset for place, start in starts.items()}
        at_latest = frozenset(place for place, start in starts.items() if start.is_latest)
        return Offsets(ends, latest.epochs, self._group, at_latest).to_json()

    def _begun(self, document: dict[str, Any]) -> Offsets:
        """Reads where the query stands, and takes its name from there, unless one is given."""
        begun = Offsets.from_json(document)
        self._group = self._options.group or begun.group or self._group
        return begun

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns where the log ends, for the lag in the query's progress."""
        latest = self._just_now()
        return Offsets(latest.ends, latest.epochs, self._group).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Takes the end as it is now as the target of the whole query."""
        self._target = self._now()

    # ------------------------------------------------------------------ admission

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns a limit that tells Spark's own triggers from the options' limits."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Returns where the next micro-batch ends; `start` itself while there is nothing to do."""
        begun = self._begun(start)
        self._publish_start(begun)
        latest = self._now() if self._target is None else self._target
        self._refuse_other_topics(begun)
        ranges = self._waiting(begun, latest)
        if not isinstance(limit, ReadAllAvailable):
            ranges = self._admitted(ranges)
        if not ranges:
            return start if begun.at_latest is None else replace(begun, at_latest=None).to_json()
        self._triggered_s = time.monotonic()
        ends = begun.ends | {(each.topic, each.partition): each.end for each in ranges}
        ends = {place: end for place, end in ends.items() if place[0] in latest.epochs}
        epochs = {topic: latest.epochs[topic] for topic, _ in ends}
        return Offsets(ends, epochs, self._group).to_json()

    def _publish_start(self, begun: Offsets) -> None:
        """Publishes where a batch starts: Spark has committed all below it, unless it is the first.

        Spark calls `commit` for a batch when it plans the next one, so never for a query's last
        one; but it asks for more after every batch. A position is tried once here: an idle query
        asks fifty times a second.
        """
        if begun.at_latest is None and begun != self._published:
            self._published = begun
            self._positions.publish(self._group, begun.ends, begun.epochs)

    def _waiting(self, begun: Offsets, latest: Offsets) -> list[Range]:
        """Returns what is new; a partition that was not there yet is read from its start.

        Batch 0 takes nothing of what starts at the end: see the module.
        """
        ranges = []
        for (topic, partition), end in latest.ends.items():
            if begun.at_latest is not None and (topic, partition) in begun.at_latest:
                continue
            start = begun.ends.get((topic, partition))
            if start is None:
                start = self._log.extent(topic, partition)[0]
            if start < end:
                ranges.append(Range(topic, partition, start, end))
        return ranges

    def _admitted(self, ranges: list[Range]) -> list[Range]:
        """Takes as much of what is new as the options allow, or nothing while it is too little."""
        options = self._options
        waiting = {each: each.end - each.start for each in ranges}
        if options.min_offsets is not None and self._target is None:
            waited_ms = (time.monotonic() - self._triggered_s) * 1000
            if sum(waiting.values()) < options.min_offsets and waited_ms < options.max_delay_ms:
                return []
        ends = {each: each.end for each in ranges}
        if options.max_offsets is not None:
            taken = shares(waiting, options.max_offsets)
            ends = {each: each.start + taken[each] for each in ranges}
        if options.max_bytes is not None:
            sizes = {each: planning.size_bytes(self._log, each) for each in ranges}
            for each, share in shares(sizes, options.max_bytes).items():
                if share < sizes[each]:
                    reached = planning.offset_within(self._log, each, max(share, 1))
                    ends[each] = min(ends[each], reached)
        return [
            Range(each.topic, each.partition, each.start, end)
            for each, end in ends.items()
            if each.start < end
        ]

    def _refuse_other_topics(self, begun: Offsets) -> None:
        """Stops when a topic of the checkpoint is gone, or is another one of the same name."""
        topics = self._log.topics()
        for name, epoch in begun.epochs.items():
            if name in topics and topics[name].epoch != epoch:
                raise InvalidRequest(
                    f"topic {name!r} was deleted and created again: the query read epoch {epoch},"
                    f" now it is {topics[name].epoch}, and offsets mean other records; start the"
                    " query with a new checkpoint"
                )
            if name not in topics and self._options.fail_on_data_loss:
                first = min(end for (topic, _), end in begun.ends.items() if topic == name)
                raise RecordsMissing(
                    f"topic {name!r} was deleted; subscribe to other topics with a new"
                    " checkpoint, or set failOnDataLoss to false to go on without it",
                    first=first,
                    end=first,
                    reason="deleted",
                )

    # ------------------------------------------------------------------ micro-batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plans a micro-batch; the same offsets give the same rows, also after a restart."""
        begun, ended = self._begun(start), Offsets.from_json(end)
        self._now()
        self._refuse_other_topics(begun)
        self._refuse_other_topics(ended)
        ranges = []
        for (topic, partition), last in ended.ends.items():
            if topic not in self._log.topics():
                continue
            earliest, known = self._log.extent(topic, partition)
            if last > known:
                raise Unavailable(
                    f"{topic}/{partition}: the query goes up to {last}, but the log shows only"
                    f" {known} just now; start the query again when its writer has recovered"
                )
            first = begun.ends.get((topic, partition), earliest)
            ranges.append(Range(topic, partition, first, last))
        plan = planning.plan(self._log, ranges, self._options, self._columns)
        versions = versions_now(self._log, self._options)  # no record of the batch has a newer one
        LOGGER.info("%s: %s", self._options.where.name, plan)
        return [Task(pieces, versions) for pieces in plan.tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task; runs on an executor."""
        return read_task(partition, self._projection, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Is told that everything below the offsets is processed; publishes the position."""
        ended = self._begun(end)
        self._positions.publish(self._group, ended.ends, ended.epochs)

    def stop(self) -> None:
        """Holds nothing that must be given back."""
