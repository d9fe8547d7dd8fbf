"""`verify`: every checksum of a directory and of its archive, looked at where the bytes are.

Reads only. Beside a live writer a record that is being written is no finding: what looks damaged
in a file that grows is looked at again, and only what stays the same is reported. A file that
retention took in the meantime is no finding either.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame, SparkSession

from lamina.archive.encode import examine
from lamina.archive.open_archive import Archive, open_archive
from lamina.errors import CorruptData, InvalidRequest, ObjectMissing
from lamina.formats.documents import archive_manifest as manifest_file
from lamina.formats.documents import ledger, topic_file, topic_schemas
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.inspect.documents import recognise
from lamina.inspect.findings import (
    NOTE,
    Finding,
    files_below,
    salvage_file,
    unreadable,
    with_holes,
)
from lamina.inspect.kinds import kind_of
from lamina.inspect.object_files import STRM
from lamina.inspect.segment_check import check_segment
from lamina.log.layers import key_of
from lamina.spark.jobs import bulk_lane
from lamina.spark.jobs.bulk_lane import Descriptor
from lamina.spark.jobs.credentials import Access
from lamina.spark.jobs.job import Progress, Silent, Summary
from lamina.storage import machine, paths
from lamina.storage.files import LocalFiles, wall_clock_ms
from lamina.storage.objects import Objects
from lamina.store.directory_check import belonging, explained
from lamina.store.opening import Boot

FINDINGS = "path string, position long, problem string, resumes_at long, severity string"
LOOKS = 4
PAUSE_S = 0.05
TASK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Look:
    """What to look at: a segment with its indexes, another file, or an object of the archive."""

    kind: str
    is_growing: bool = False
    entry: ArchivedObject | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look gave; `is_ours` is False for a file that Lamina did not write."""

    findings: tuple[Finding, ...]
    is_ours: bool = True
    records: int = 0
    is_missing: bool = False


def run(
    spark: SparkSession,
    data: str | None = None,
    archive: Archive = None,
    *,
    dry_run: bool = False,
    progress: Progress = Silent(),
) -> Summary:
    """Checks a data directory, its archive, or both; the summary's rows are the findings."""
    if data is None and archive is None:
        raise InvalidRequest("say what to verify: a data directory, an archive, or both")
    objects = open_archive(archive, data=None if data is None else paths.absolute(data))
    found: list[Descriptor[Look]] = []
    findings: list[Finding] = []
    if data is not None:
        local, unread = local_files(data)
        found += local
        findings += unread
    if objects is not None:
        cold, wrong = archived_objects(objects)
        found += cold
        findings += wrong
    elif data is not None and archive is None:
        findings += _out_of_sight(data)
    size_bytes = sum(each.size_bytes for each in found)
    totals = {"files": len(found), "bytes": size_bytes}
    if dry_run:
        progress.expect(size_bytes, "bytes")
        return Summary("verify", True, [], totals)
    seen = looked_at(spark, found, objects, progress)
    findings += [finding for each in seen for finding in each.findings]
    findings += still_missing(objects, found, seen)
    if data is not None:
        files = LocalFiles()
        findings = explained(files, data, findings)
        findings += belonging(files, data, files_below(data)[0])
    damaged = sum(each.severity != NOTE for each in findings)
    totals |= {
        "records": sum(each.records for each in seen),
        "skipped": sum(not each.is_ours for each in seen),
        "findings": damaged,
        "notes": len(findings) - damaged,
    }
    rows = [_row(each) for each in sorted(findings, key=lambda each: (each.path, each.position))]
    return Summary("verify", False, rows, totals, has_failed=damaged > 0)


def _row(finding: Finding) -> dict[str, object]:
    row = asdict(finding)
    del row["offsets"]
    return row


def frame_of(spark: SparkSession, summary: Summary) -> DataFrame:
    """Returns the findings as a DataFrame, to be filtered, joined or written somewhere."""
    rows = [tuple(row.values()) for row in summary.rows]
    return spark.createDataFrame(rows, FINDINGS)


def looked_at(
    spark: SparkSession,
    found: Sequence[Descriptor[Look]],
    objects: Objects | None,
    progress: Progress,
) -> list[Seen]:
    """Looks at everything, in the workers."""
    access = Access.of(objects) if objects is not None else None
    size_bytes = sum(each.size_bytes for each in found)
    task_bytes = bulk_lane.task_bytes_for(spark, size_bytes, TASK_BYTES, tasks_per_core=1)

    def look(each: Descriptor[Look]) -> Seen:
        return look_at(each, access)

    return bulk_lane.run(spark, bulk_lane.pack(found, task_bytes), look, progress)


# ---------------------------------------------------------------- planning


def _out_of_sight(data: str) -> Iterator[Finding]:
    """Yields what is archived where nobody says: it was not looked at, and may be sound or not."""
    names, _ = files_below(paths.absolute(data))
    for name in names:
        if paths.base_name(name) == paths.LEDGER:
            with contextlib.suppress(CorruptData, OSError):  # those are findings of their own
                for gap in ledger.decode(LocalFiles().read(name)).archived():
                    where = f"offsets {gap.first} to {gap.end} are archived, and nobody says where"
                    yield Finding(name, 0, f"{where}: not looked at; name the archive")


def local_files(data: str) -> tuple[list[Descriptor[Look]], list[Finding]]:
    """Lists a directory: a segment is one thing with its indexes, everything else a file."""
    boot = Boot(LocalFiles(), paths.absolute(data), wall_clock_ms)
    boot.require_directory()
    is_live = boot.files.is_locked(boot.path(paths.LOCK))
    names, unread = files_below(boot.data)
    last = _last_files(names)
    there = set(names)
    found = []
    for name in names:
        suffix = paths.suffix_of(name)
        if suffix in paths.INDEX_SUFFIXES and paths.beside(name, "log") in there:
            continue
        segment = paths.segment_file(paths.base_name(name))
        kind = "segment" if segment is not None and suffix == "log" else "file"
        indexes = paths.INDEX_SUFFIXES if kind == "segment" else ()
        size = _size(name) + sum(_size(paths.beside(name, each)) for each in indexes)
        grows = is_live and (name in last or suffix in ("delta", "idx", "data"))
        base = segment.base_offset if segment is not None else 0
        found.append(
            Descriptor(name, paths.relative(name, boot.data), base, size, Look(kind, grows))
        )
    return found, unread


def _last_files(names: list[str]) -> set[str]:
    """The last log of each directory: what a live writer appends to."""
    logs = [name for name in names if paths.suffix_of(name) == "log"]

    def number(name: str) -> int:
        base = paths.base_name(name)
        segment = paths.segment_file(base)
        return segment.base_offset if segment else paths.wal_file_index(base) or 0

    grouped = itertools.groupby(sorted(logs, key=paths.parent), key=paths.parent)
    return {max(group, key=number) for _, group in grouped}


def _size(path: str) -> int:
    try:
        return machine.size_of(path)
    except OSError:
        return 0


def archived_objects(objects: Objects) -> tuple[list[Descriptor[Look]], list[Finding]]:
    """Lists an archive, and reads its small documents."""
    infos = {info.key: info for info in objects.list(paths.ARCHIVE)}
    listed: dict[str, ArchivedObject] = {}
    findings: list[Finding] = []
    for key in sorted(infos):
        decode = _DOCUMENTS.get(key.rpartition("/")[2])
        if decode is None:
            continue
        try:
            value = decode(objects.read(key).data)
        except ObjectMissing:
            continue
        except CorruptData as error:
            findings.append(Finding(f"{objects.url}/{key}", error.position, str(error)))
            continue
        if isinstance(value, manifest_file.Manifest):
            listed |= _keys_of(value)
    found = []
    for key in sorted({*listed, *(key for key in infos if paths.object_key(key))}):
        parsed = paths.object_key(key)
        base = parsed.base_offset if parsed is not None else 0
        size = infos[key].size_bytes if key in infos else 0
        found.append(Descriptor(key, key, base, size, Look("object", entry=listed.get(key))))
    return found, findings


_DOCUMENTS = {
    paths.ARCHIVE_MANIFEST: manifest_file.decode,
    paths.LEDGER: ledger.decode,
    paths.TOPIC_SETTINGS: topic_file.decode,
    paths.TOPIC_SCHEMAS: topic_schemas.decode,
}


def _keys_of(manifest: manifest_file.Manifest) -> dict[str, ArchivedObject]:
    topic, partition = manifest.topic, manifest.partition
    return {key_of(topic, partition, entry): entry for entry in manifest.objects}


def still_missing(
    objects: Objects | None, found: Sequence[Descriptor[Look]], seen: Sequence[Seen]
) -> Iterator[Finding]:
    """Yields the listed objects that are not there, unless the list has let them go since."""
    missing = [each for each, saw in zip(found, seen, strict=True) if saw.is_missing]
    if objects is None or not missing:
        return
    still = {each.path for each in archived_objects(objects)[0] if each.what.entry is not None}
    for each in missing:
        if each.path in still:
            path = f"{objects.url}/{each.path}"
            yield Finding(path, 0, "the list names this object, and it is not there")


# ---------------------------------------------------------------- in the workers


def look_at(each: Descriptor[Look], access: Access | None) -> Seen:
    """Looks at one thing; what grows is looked at again before anything is said against it."""
    if each.what.kind == "object":
        assert access is not None, "objects are in an archive"
        return _object(each, access.open())
    seen = _file(each)
    for _ in range(LOOKS - 1):
        if not (seen.findings and each.what.is_growing):
            break
        time.sleep(PAUSE_S)
        again = _file(each)
        same = {(finding.path, finding.position) for finding in again.findings}
        kept = tuple(
            finding for finding in seen.findings if (finding.path, finding.position) in same
        )
        seen = Seen(kept, again.is_ours, again.records)
    return seen


def _file(each: Descriptor[Look]) -> Seen:
    try:
        if each.what.kind == "segment":
            checked = check_segment(each.path)
            if checked is not None:
                return Seen(checked.findings, records=checked.records)
        return _any_file(each)
    except InvalidRequest as error:
        if not machine.entry_exists(each.path):
            return Seen(())
        return Seen((unreadable(each.path, str(error).removeprefix(f"{each.path}: ")),))


def _any_file(each: Descriptor[Look]) -> Seen:
    path = each.path
    found = salvage_file(path)
    kind = recognise(path) or kind_of(path, found.data)
    if kind is None:
        return Seen((), is_ours=False)
    return Seen(tuple(with_holes(path, found, kind.verify(path, found.data))))


def _object(each: Descriptor[Look], objects: Objects) -> Seen:
    path = f"{objects.url}/{each.path}"
    entry, key = each.what.entry, paths.object_key(each.path)
    try:
        data = objects.read(each.path).data
    except ObjectMissing:
        return Seen((), is_missing=entry is not None)
    findings = tuple(STRM.verify(path, data))
    if findings or entry is None or key is None:
        return Seen(findings, records=entry.record_count if entry else 0)
    found = examine(data, key.topic, key.partition)
    if _without_marks(found) != _without_marks(entry):
        return Seen((Finding(path, 0, "the object is sound, but not the one that the list names"),))
    return Seen((), records=entry.record_count)


def _without_marks(entry: ArchivedObject) -> dict[str, object]:
    fields = asdict(entry)
    del fields["marks"], fields["generation"], fields["epoch"]
    return fields
