"""`repair`: what is derived is made again, what is damaged is set aside and its loss entered.

Everything is checked as `verify` does it, in the workers; the driver, which has the directory to
itself, then mends what was found.

| what is damaged                | what is done                                                    |
|--------------------------------|-----------------------------------------------------------------|
| an index, a manifest, a list   | made again from the log, or from the objects' headers           |
| records of a segment           | damaged bytes copied to `quarantine/`; the records taken from   |
|                                | the archive; what it has not either is entered as lost; the     |
|                                | segment is written again without the damage                     |
| records of the WAL             | what is sound is copied into segments, the files are freed      |
| an archived object             | copied to `quarantine/` and made again, of its sound blocks and |
|                                | local records; what is in neither is entered as lost            |
| anything else                  | left as it is, and named: the job has failed                    |

Rules.
1. Every damaged byte is copied before it goes, and no sound record goes with it.
2. Nothing is entered as lost that any tier still has; what was, and is found, is lost no more.
3. Opening the directory recovers it first, as every open does.
4. What was repaired is sound: `verify` finds nothing afterwards but what was left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from lamina.api import Gap
from lamina.archive.archiver import Archiver
from lamina.archive.encode import Naming, encode_object
from lamina.archive.object_list import Shelf
from lamina.archive.open_archive import Archive
from lamina.archive.tier import policy_of
from lamina.errors import CorruptData, ObjectMissing, RecordsMissing
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED, LOST
from lamina.formats.ranges import Ranges, Span
from lamina.formats.scan import Limit
from lamina.formats.wal import index as wal_index
from lamina.inspect.findings import NOTE, Finding, files_below
from lamina.inspect.segment_check import check_segment
from lamina.log.batch_offsets import after, first_of, runs
from lamina.log.gap_walk import records_over, scan_over
from lamina.log.partition import Partition
from lamina.log.sealed import Archivable
from lamina.log.sound_copies import archived
from lamina.spark.jobs import held_store, verify
from lamina.spark.jobs.archive import UNLIMITED
from lamina.spark.jobs.job import Progress, Silent, Summary
from lamina.storage import machine, paths
from lamina.storage.files import LocalFiles
from lamina.storage.paths import SegmentFile
from lamina.store import mend as mending
from lamina.store.directory_check import belonging
from lamina.store.store import Store
from lamina.wal import segment_mend as wal_mending
from lamina.wal import segments as wal_segments
from lamina.wal.wal_partition import WalPartition

BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)
LEFT = "left as it is"
NAMED_MAX = 20


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
    with held_store.held(target, archive) as store:
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
        rows += mending.reclaim()
        opened = [event for event in store.recovery_report.events if event.kind != "note"]
    if not isinstance(target, Store):
        rows += _still_wrong(paths.absolute(target))
    left = sum(row["repair"] == LEFT for row in rows)
    totals = {"files": len(found), "damaged": len(rows), "left": left, "recovered": len(opened)}
    return Summary("repair", False, rows, totals, has_failed=left > 0)


def _planned(
    spark: SparkSession, target: Store | str, archive: Archive, progress: Progress
) -> Summary:
    """Returns what is damaged, without opening anything for writing."""
    is_open = isinstance(target, Store)
    data = target.path if isinstance(target, Store) else target
    objects = target.tier.objects if isinstance(target, Store) and target.tier else archive
    found = verify.run(spark, data, objects if is_open else archive, progress=progress)
    damages = [Finding(**row) for row in found.rows if row["severity"] != NOTE]
    rows = _rows(damages, _would)
    left = sum(row["repair"] == LEFT for row in rows)
    totals = {"files": found.totals["files"], "damaged": len(rows), "left": left}
    return Summary("repair", True, rows, totals)


def _still_wrong(data: str) -> list[dict[str, object]]:
    """Names what does not belong together after everything was mended: nobody knows what to do."""
    found = belonging(LocalFiles(), data, files_below(data)[0])
    return _rows([each for each in found if each.severity != NOTE], lambda _: LEFT)


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
        parts = paths.relative(path, self.store.path).split(paths.SEPARATOR)
        if parts[0] == paths.TOPICS and len(parts) >= 4:
            name = f"{parts[1]}/{parts[2]}"
            partition = next((p for p in self.store.segmented() if p.place.name == name), None)
            return LEFT if partition is None else self._segmented(partition, parts[3:])
        if parts[0] == paths.WAL:
            self.store.purge_wal()
            return "what is sound is copied into segments, and the file freed"
        if parts[0] == paths.SEGMENTS and len(parts) == 3:
            for topic in self.store.wal_partitions():
                if topic.topic_id == paths.wal_topic_id(parts[1]):
                    return self._wal(topic, parts[2])
        return LEFT

    def reclaim(self) -> list[dict[str, object]]:
        """Takes back that records are lost which the archive has; a row for each partition."""
        rows, every = list[dict[str, object]](), list[Archivable](self.store.segmented())
        for each in [*every, *self.store.wal_partitions()]:
            lost = [gap for gap in each.ledger.gaps if gap.reason == LOST]
            if not lost or self.store.tier is None or not each.settings.is_archived:
                continue
            self._ask_for_copies(each)
            found = [
                (first_of(run), after(run))
                for gap in lost
                for run in archived(each.cold, (gap.first, gap.end))
            ]
            if found:
                now_ms = each.place.now_ms()
                each.turn(LOST, [Gap(*span, ARCHIVED, now_ms) for span in found])
                ranges = ", ".join(f"{first} to {end}" for first, end in found[:NAMED_MAX])
                rows.append(
                    {
                        "path": each.place.ledger_path,
                        "position": 0,
                        "problem": "records are called lost that the archive has",
                        "spots": len(found),
                        "repair": f"taken back: {ranges}",
                    }
                )
        return rows

    # ------------------------------------------------------------------ segments

    def _segmented(self, partition: Partition, below: Sequence[str]) -> str:
        if below[-1] == paths.MANIFEST:
            partition.exclusively(partition.save_manifest)
            return "the manifest is made again"
        file = paths.segment_file(below[-1])
        if file is not None and file.base_offset == partition.active.base_offset:
            partition.exclusively(partition.roll)
        held = [
            each
            for each in partition.layout.sealed
            if file and each.base_offset == file.base_offset
        ]
        if file is None or not held:
            return LEFT
        if file.suffix != "log":
            return self._index(partition, held[0].path("log"), file)
        self._ask_for_copies(partition)
        staging = paths.join(self.store.path, paths.ERASING, "mending")
        machine.remove_tree(staging)  # of a run that was cut off
        mend = partial(mending.mend, partition, file.base_offset, staging)
        mended = partition.exclusively(mend)
        partition.exclusively(partition.save_manifest)
        machine.remove_tree(staging)
        return f"set aside; {mended}"

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
        path = paths.beside(log, file.suffix)
        partition.place.files.replace(path, headers[row] + checked.index.all_bytes()[row])
        return "the index is made again from the log"

    def _wal(self, topic: WalPartition, name: str) -> str:
        file = paths.wal_segment_file(name)
        for segment in topic.layout.segments:
            if file is None or segment.first_sequence != file.first_sequence:
                continue
            files = topic.sources.files
            found = wal_segments.walk(files, segment, segment.data_bytes)
            if file.suffix == "idx":
                pairs = topic.flagged().pairs()
                entries = wal_index.mark_deleted(found.entries, segment.first_sequence, pairs)
                topic.exclusively(partial(wal_segments.save_entries, files, segment, entries))
                return "the index is made again from the segment"
            self._ask_for_copies(topic)
            mended = topic.exclusively(partial(wal_mending.mend, topic, segment))
            return f"set aside; {mended}"
        return LEFT

    def _ask_for_copies(self, partition: Archivable) -> None:
        """Loads the archive's list: what it holds is not lost. Raises ArchiveUnavailable."""
        if self.store.tier is not None and partition.settings.is_archived:
            self.store.tier.attach(partition)
            if partition.cold is not None and not partition.cold.is_loaded:
                partition.cold.load()

    # ------------------------------------------------------------------ objects

    def _object(self, key: str) -> str:
        tier = self.store.tier
        assert tier is not None, "objects are in an archive"
        parts = key.split("/")
        name = "/".join(parts[1:3])
        partition = next((each for each in tier.archived() if each.place.name == name), None)
        if partition is None and parts[-1] in (paths.TOPIC_SETTINGS, paths.TOPIC_SCHEMAS):
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
                _set_aside(partition, archiver.shelf, key)
                archiver.shelf.objects.delete(key)
                return "set aside: no list names it, and nobody reads it"
            return self._listed(partition, archiver, listed[0])

    def _listed(self, partition: Archivable, archiver: Archiver, entry: ArchivedObject) -> str:
        """Puts an object of all that any tier still has of a damaged one in its place."""
        shelf, key = archiver.shelf, archiver.shelf.key_of(entry)
        _set_aside(partition, shelf, key)
        naming = Naming(shelf.about.name, shelf.partition, partition.place.now_ms())
        found = _Gathered(partition, entry)
        encoded = encode_object(
            lambda _: found.records(),
            (entry.base_offset, entry.next_offset),
            naming,
            policy_of(partition.settings).compression,
            target_bytes=UNLIMITED,
        )
        lost = found.missing()
        now_ms = partition.place.now_ms()
        partition.enter_gaps([Gap(first, end, LOST, now_ms, key) for first, end in lost])
        self.store.tier.metadata.save(shelf, partition.published)  # type: ignore[union-attr]
        new: tuple[ArchivedObject, ...] = ()
        if encoded is not None:
            named = replace(encoded.entry, generation=shelf.next_generation())
            new = (archiver.store(replace(encoded, entry=named)),)
        shelf.exchange((entry,), new)
        shelf.objects.delete(key)
        if not lost:
            return "set aside, and made again; no record was lost"
        ranges = ", ".join(f"{first} to {end}" for first, end in lost)
        return f"set aside, and made again of what is sound; entered as lost: {ranges}"


def _set_aside(partition: Archivable, shelf: Shelf, key: str) -> None:
    """Keeps a copy of an object's bytes, if it is there, before anything happens to it."""
    with contextlib.suppress(ObjectMissing):
        raw = bytes(shelf.objects.read(key).data)
        partition.place.set_aside(key.rpartition("/")[2], raw, 0)


@dataclass(slots=True)
class _Gathered:
    """What any tier still has of a damaged object's records."""

    partition: Archivable
    entry: ArchivedObject
    spans: list[Span] = field(default_factory=list)

    def records(self) -> Iterator[pa.RecordBatch]:
        """Yields sound blocks of the object and, in place of damaged ones, local records."""
        self.spans.clear()
        start, end, cold = self.entry.base_offset, self.entry.next_offset, self.partition.cold
        assert cold is not None, "the partition is archived"
        for step in scan_over(lambda at: cold.scan(at, end, BATCH), start, end):
            if isinstance(step, RecordsMissing):
                yield from self._local(step.first, min(step.end, end))
            else:
                yield self._noted(step)

    def _local(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        start = max(start, self.partition.local_start)
        local = records_over(lambda at: self.partition.scan(at, BATCH, end=end), start, end)
        yield from map(self._noted, local)  # what is unread is not lost, nor to be entered as lost

    def _noted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.spans += [(first_of(run), after(run)) for run in runs(batch)]
        return batch

    def missing(self) -> list[Span]:
        """Returns what nobody has any more and nothing explains yet."""
        whole = Ranges.between(self.entry.base_offset, self.entry.next_offset)
        known = self.partition.published.ranges_but(ARCHIVED)
        return list(whole.minus(Ranges.of(self.spans)).minus(known).pairs())
