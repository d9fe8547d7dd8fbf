"""`repair`: what is derived is made again, what is damaged is set aside and its loss entered.

Everything is checked as `verify` does it, in the workers; the driver, which has the directory to
itself, then mends what was found.

| what is damaged                | what is done                                                    |
|--------------------------------|-----------------------------------------------------------------|
| an index, a manifest, a list   | made again from the log, or from the objects' headers           |
| records of a sealed segment    | bytes copied to `quarantine/`, offsets entered as lost          |
| an archived object             | made again from local records; without those, entered as lost   |
| anything else                  | left as it is, and named: the job has failed                    |

Rules.
1. Nothing is deleted, and nothing beside a damaged spot is touched: what follows it is served.
2. Opening the directory recovers it first, as every open does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from lamina.engine.checking import check_segment
from lamina.engine.findings import Finding
from lamina.engine.partition import Partition
from lamina.engine.store import Store
from lamina.engine.tier.archiver import Archiver
from lamina.engine.tier.opening import Archive
from lamina.engine.tier.service import policy_of
from lamina.engine.wal import segments as wal_segments
from lamina.engine.wal.partition import WalPartition
from lamina.errors import CorruptData, RecordsMissing
from lamina.formats.archive import ArchivedObject
from lamina.formats.ledger import Gap
from lamina.formats.scan import Limit
from lamina.formats.wal import index as wal_index
from lamina.spark.jobs import holding, verify
from lamina.spark.jobs.access import Access
from lamina.spark.jobs.archive import Span, Uploading
from lamina.spark.jobs.bulk_lane import Descriptor
from lamina.spark.jobs.job import Progress, Silent, Summary
from lamina.storage import paths
from lamina.storage.paths import SegmentFile

BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)
LEFT = "left as it is"


def run(
    spark: SparkSession,
    target: Store | str,
    archive: Archive = None,
    *,
    dry_run: bool = False,
    progress: Progress = Silent(),
) -> Summary:
    """Checks everything and mends what can be; the rows say what was found and what was done.

    `target` is a store that this process has open, or a directory that nobody has.
    """
    if dry_run:
        return _planned(spark, target, archive, progress)
    with holding.held(target, archive) as store:
        objects = store.tier.objects if store.tier is not None else None
        found, findings = verify.local_files(store.path)
        if objects is not None:
            cold, wrong = verify.archived_objects(objects)
            found, findings = [*found, *cold], [*findings, *wrong]
        seen = verify.looked_at(spark, found, objects, progress)
        findings += [finding for each in seen for finding in each.findings]
        findings += verify.still_missing(objects, found, seen)
        mending = _Mending(store)
        rows = _rows(findings, mending.mend)
        opened = [event for event in store.recovery_report.events if event.kind != "note"]
    left = sum(row["repair"] == LEFT for row in rows)
    totals = {"files": len(found), "damaged": len(rows), "left": left, "recovered": len(opened)}
    return Summary("repair", False, rows, totals, has_failed=left > 0)


def _planned(
    spark: SparkSession, target: Store | str, archive: Archive, progress: Progress
) -> Summary:
    """Says what is damaged, without opening anything for writing."""
    is_open = isinstance(target, Store)
    data = target.path if isinstance(target, Store) else target
    objects = target.tier.objects if isinstance(target, Store) and target.tier else archive
    found = verify.run(spark, data, objects if is_open else archive, progress=progress)
    rows = _rows([Finding(**row) for row in found.rows], _would)
    left = sum(row["repair"] == LEFT for row in rows)
    totals = {"files": found.totals["files"], "damaged": len(rows), "left": left}
    return Summary("repair", True, rows, totals)


def _rows(findings: Sequence[Finding], mend: Callable[[str], str]) -> list[dict[str, object]]:
    """A row for each damaged file or object, with what is done about it."""
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(finding.path, []).append(finding)
    return [
        {
            "path": path,
            "position": spots[0].position,
            "problem": spots[0].problem,
            "spots": len(spots),
            "repair": mend(path),
        }
        for path, spots in sorted(by_path.items())
    ]


def _would(path: str) -> str:
    """What a run would do, as far as the name tells."""
    suffix = path.rpartition(".")[2]
    if suffix in ("idx", "timeidx", "tidx", "bin", "json"):
        return "to be made again"
    if suffix == "seg":
        return "to be made again from local records, or entered as lost"
    return "to be set aside, and entered as lost" if suffix in ("log", "data") else LEFT


@dataclass(slots=True)
class _Mending:
    """Mends one path after the other."""

    store: Store

    def mend(self, path: str) -> str:
        """Does what can be done for a path; says in words what that was."""
        tier = self.store.tier
        if tier is not None and path.startswith(f"{tier.objects.url}/"):
            return self._object(path.removeprefix(f"{tier.objects.url}/"))
        parts = os.path.relpath(path, self.store.path).split(os.sep)
        if parts[0] == paths.TOPICS and len(parts) >= 4:
            name = f"{parts[1]}/{parts[2]}"
            partition = next((p for p in self.store.segmented() if p.place.name == name), None)
            return LEFT if partition is None else self._segmented(partition, parts[3:])
        if parts[0] == paths.SEGMENTS and len(parts) == 3:
            for topic in self.store.wal_partitions():
                if topic.topic_id == paths.wal_topic_id(parts[1]):
                    return self._wal(topic, parts[2])
        return LEFT

    # ------------------------------------------------------------------ segments

    def _segmented(self, partition: Partition, below: Sequence[str]) -> str:
        if below[-1] == paths.MANIFEST:
            partition.exclusively(partition.save_manifest)
            return "the manifest is made again"
        file = paths.segment_file(below[-1])
        held = [
            each
            for each in partition.layout.sealed
            if file and each.base_offset == file.base_offset
        ]
        if file is None or not held:
            return LEFT
        if file.suffix != "log":
            return self._index(partition, held[0].path("log"), file)
        before = {gap.first for gap in partition.ledger.missing()}
        _read_through(partition, held[0].base_offset, held[0].next_offset)
        lost = [gap for gap in partition.ledger.missing() if gap.first not in before]
        ranges = ", ".join(f"{gap.first} to {gap.end}" for gap in lost) or "no new offset"
        return f"set aside, and entered as lost: {ranges}"

    def _index(self, partition: Partition, log: str, file: SegmentFile) -> str:
        checked = check_segment(log)
        if checked is None:
            return LEFT
        codec = partition.codec
        data = partition.place.files.read(log)[: codec.header_bytes]
        try:
            created_ms = codec.check_log_header(data, file.base_offset) or 0
        except CorruptData:
            created_ms = 0
        headers = codec.index_headers(file.base_offset, created_ms)
        row = 0 if file.suffix == "idx" else 1
        path = f"{os.path.splitext(log)[0]}.{file.suffix}"
        partition.place.files.replace(path, headers[row] + checked.index.all_bytes()[row])
        return "the index is made again from the log"

    def _wal(self, topic: WalPartition, name: str) -> str:
        file = paths.wal_segment_file(name)
        for segment in topic.layers.segments:
            if file is None or segment.first_sequence != file.first_sequence:
                continue
            files = topic.sources.files
            found = wal_segments.walk(files, segment, segment.data_bytes)
            if file.suffix == "idx":
                pairs = topic.flagged().pairs()
                entries = wal_index.mark_deleted(found.entries, segment.first_sequence, pairs)
                topic.exclusively(partial(wal_segments.save_entries, files, segment, entries))
                return "the index is made again from the segment"
            topic.exclusively(partial(topic.note_damage, segment, found))
            return "entered as lost; what follows is served"
        return LEFT

    # ------------------------------------------------------------------ objects

    def _object(self, key: str) -> str:
        tier = self.store.tier
        assert tier is not None, "objects are in an archive"
        parts = key.split("/")
        name = "/".join(parts[1:3])
        partition = next((each for each in tier.archived() if each.place.name == name), None)
        if partition is None and parts[-1] == paths.TOPIC_SETTINGS:
            partition = next((p for p in tier.archived() if p.place.topic == parts[1]), None)
        if partition is None:
            return LEFT
        with tier.hold(partition) as archiver:
            parsed = paths.object_key(key)
            if parsed is None:
                tier.metadata.forget(partition.place.topic, partition.place.partition)
                tier.metadata.save(archiver.shelf, partition.published)
                return "made again"
            listed = [e for e in archiver.shelf.manifest.objects if archiver.shelf.key_of(e) == key]
            if not listed:
                return "not listed: nobody reads it"
            return self._listed(partition, archiver, listed[0])

    def _listed(self, partition: Partition, archiver: Archiver, entry: ArchivedObject) -> str:
        shelf = archiver.shelf
        if partition.layout.earliest_offset <= entry.base_offset:
            span = Span(
                shelf.about,
                shelf.partition,
                entry.base_offset,
                entry.next_offset,
                entry.next_offset,
                shelf.writer,
                shelf.manifest.fencing_epoch,
                policy_of(partition.settings).compression,
                partition.place.now_ms(),
            )
            work = Uploading(self.store.path, Access.of(shelf.objects))
            made = work(
                Descriptor(shelf.key_of(entry), shelf.name, span.first, entry.size_bytes, span)
            )
            if made is not None:
                shelf.exchange((entry,), (made,))
                return "made again from the local records"
        lost = list(_unreadable(partition, entry))
        now_ms = partition.place.now_ms()
        partition.enter_gaps(
            [Gap(first, end, "lost", now_ms, shelf.key_of(entry)) for first, end in lost]
        )
        ranges = ", ".join(f"{first} to {end}" for first, end in lost) or "nothing is lost"
        return f"entered as lost: {ranges}"


def _read_through(partition: Partition, start: int, end: int) -> None:
    """Reads a segment: what is damaged is set aside and entered by the reader itself."""
    while start < end:
        try:
            for batch in partition.scan(start, BATCH, end=end):
                start = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1
            return
        except RecordsMissing as missing:
            start = missing.end


def _unreadable(partition: Partition, entry: ArchivedObject) -> list[tuple[int, int]]:
    """The ranges of an object that nobody can read any more and nothing explains yet."""
    found: list[tuple[int, int]] = []
    start, cold = entry.base_offset, partition.cold
    assert cold is not None, "the partition is archived"
    while start < entry.next_offset:
        try:
            for batch in cold.scan(start, entry.next_offset, BATCH):
                start = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1
            return found
        except RecordsMissing as missing:
            if partition.ledger.at(missing.first) is None or (
                partition.ledger.between(missing.first, missing.end)[0].reason == "archived"
            ):
                found.append((missing.first, missing.end))
            start = missing.end
    return found
