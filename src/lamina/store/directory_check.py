"""Whether the files of a data directory belong together: what no single file can show.

`lamina.inspect` looks into one file at a time. Here topics are compared with their partitions,
segments with each other and the ledger, groups with their logs, and an archive's lists with its
objects. Findings are, for example: a range of offsets that is nowhere and has no reason, or is
there twice, a log of another format, a file with a name that is never read.

Rules.
1. Nothing is changed, and no damage raises: what cannot be read is for the check of that file.
2. What the ledger knows as lost is known: it is reported as a note, not as a finding.
3. Beside a live writer only what a writer never leaves half-way is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from lamina.api import RecoveryReport
from lamina.config import WalSettings
from lamina.errors import CorruptData, InvalidRequest, LaminaError
from lamina.formats.documents import archive_manifest, ledger
from lamina.formats.documents.checkpoint import PartitionCheckpoint
from lamina.formats.documents.ledger import LOST, Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS, Codec
from lamina.formats.ranges import Ranges, Span
from lamina.groups import journal
from lamina.groups.journal import Names
from lamina.inspect.findings import NOTE, Finding, load_file
from lamina.log import manifest_file
from lamina.log.directory import Place
from lamina.log.layers import key_of
from lamina.log.quick_check import CheapCheck
from lamina.log.sealed_segment import SealedSegment, load_entries
from lamina.log.segment import Bound
from lamina.log.segment_files import measure
from lamina.log.segment_index import SegmentIndex
from lamina.log.settling import log_path
from lamina.storage import machine, paths
from lamina.storage.files import Files, wall_clock_ms
from lamina.store.opening import Boot
from lamina.wal.ground import Ground
from lamina.wal.reader import TopicReader
from lamina.wal.segments import ENTRY_BYTES
from lamina.wal.topics_view import WalView

_MAGICS = {b"KLOG": "keratin", b"\x01\x5e\x0b\xb1": "frame", b"STRM": "strm"}


def belonging(files: Files, root: str, names: Iterable[str]) -> list[Finding]:
    """Returns what is wrong with how the files below a directory belong together."""
    root = paths.absolute(root)
    names = [paths.absolute(name) for name in names]
    found = [each for name in names for each in _unread(name)]
    found += [each for name in names for each in _archive_list(files, name, names)]
    boot = Boot(files, root, wall_clock_ms)
    try:
        boot.require_directory()
    except InvalidRequest:
        return found
    except CorruptData as error:
        found.append(Finding(boot.path(paths.BROKER_ID), 0, error.problem))
    return [*found, *_data_directory(boot)]


def explained(files: Files, root: str, findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings with those as notes whose offsets the ledger of their partition knows."""
    boot = Boot(files, paths.absolute(root), wall_clock_ms)
    known: dict[str, Ledger] = {}
    told = []
    for each in findings:
        path = _ledger_of(boot, paths.absolute(each.path)) if each.offsets is not None else None
        if path is not None and path not in known:
            known[path] = _ledger_at(files, path)
        is_known = path is not None and _covers(known[path], *(each.offsets or (0, 0)))
        told.append(_as_known(each) if is_known else each)
    return told


def _as_known(finding: Finding) -> Finding:
    return replace(finding, severity=NOTE, problem=f"{finding.problem}; known as lost")


def _ledger_of(boot: Boot, path: str) -> str | None:
    """Returns where the ledger of a segment's partition is."""
    folder, name = paths.split(path)
    if paths.suffix_of(name) == "log":
        return paths.join(paths.parent(folder), paths.LEDGER)
    topic_id = paths.wal_topic_id(paths.base_name(folder))
    try:
        topics = boot.catalog.peek() if topic_id is not None else {}
    except CorruptData:
        return None
    for about in topics.values():
        if topic_id in about.topic_ids:
            return boot.place(about.name, about.topic_ids.index(topic_id)).ledger_path
    return None


def _ledger_at(files: Files, path: str) -> Ledger:
    try:
        return ledger.decode(files.read(path))
    except (OSError, CorruptData):
        return Ledger()


def _covers(known: Ledger, first: int, end: int) -> bool:
    """Returns whether a ledger has all of a range as lost: found before, and reported then."""
    lost = Ranges.of(
        (gap.first, gap.end) for gap in known.between(first, end) if gap.reason == LOST
    )
    return first < end and not Ranges.between(first, end).minus(lost)


def _unread(path: str) -> Iterator[Finding]:
    """Reports a file that lies among segments but is not named like one."""
    name = paths.base_name(path)
    folder = paths.base_name(paths.parent(path))
    is_ours = (
        paths.segment_file(name)
        or paths.wal_segment_file(name)
        or paths.wal_file_index(name) is not None
        or paths.object_key(f"data/any/0/{name}")
        or name in (paths.PRODUCERS, paths.base_name(paths.COMMITTED_OFFSETS))
    )
    lies_among = folder == paths.SEGMENTS or paths.suffix_of(name) in paths.RECORD_SUFFIXES
    if lies_among and not is_ours:
        yield Finding(path, 0, "no file of a store has such a name: nobody reads it", severity=NOTE)


# ---------------------------------------------------------------------- a data directory


def _data_directory(boot: Boot) -> Iterator[Finding]:
    report = RecoveryReport()
    is_live = boot.files.is_locked(boot.path(paths.LOCK))
    try:
        topics = boot.catalog.peek()
        hints = boot.read_checkpoint(report)
    except CorruptData as error:  # of a newer format: its own check reports that
        yield Finding(error.path or boot.data, error.position, error.problem)
        return
    ends: dict[tuple[str, int], int] = {}
    for about in topics.values():
        settings = paths.join(boot.catalog.directory(about.name), paths.TOPIC_SETTINGS)
        if not boot.files.exists(settings):
            continue  # what it is was guessed from its files
        if about.format in CODECS:
            for number in range(about.partitions):
                place = boot.place(about.name, number)
                yield from _partition(place, CODECS[about.format], ends, is_live=is_live)
                if not is_live:
                    yield from _short(place, hints.get((about.name, number)), ends)
        elif not is_live:
            yield from _wal_topic(boot, about, ends)
    if not is_live:
        yield from (Finding(path, 0, why) for path, why in boot.vanished(topics, hints))
        yield from _groups(boot, topics, ends)


def _partition(
    place: Place, codec: Codec, ends: dict[tuple[str, int], int], *, is_live: bool
) -> Iterator[Finding]:
    """Compares a partition's segments with its format, each other and the ledger."""
    if not place.files.is_directory(place.segments):
        yield Finding(place.segments, 0, "the topic has this partition, and its directory is gone")
        return
    parsed = map(paths.segment_file, place.files.list(place.segments))
    known = _ledger_at(place.files, place.ledger_path)
    listed = [each for each in parsed if each]
    gone = {each.base_offset for each in listed if each.suffix == "tomb"}
    bases = sorted({each.base_offset for each in listed if each.suffix == "log"} - gone)
    spans: list[tuple[int, int]] = []
    for row, base in enumerate(bases):
        path = log_path(place, base)
        try:
            data = load_file(path)
            wrong = _format_of(bytes(memoryview(data)[:4]))
            if wrong not in (None, codec.name):
                yield Finding(path, 0, f"a {wrong} log in a topic of format {codec.name}")
                continue
            following = bases[row + 1] if row + 1 < len(bases) else None
            spans.append((base, _end_of(place, codec, base, following)))
        except (InvalidRequest, CorruptData):
            continue  # its own check reports why
    if gone and not spans:
        return
    yield from _ranges(place, known, spans, is_live=is_live)
    ends[place.topic, place.partition] = max(
        [end for _, end in spans] + [gap.end for gap in known.gaps], default=0
    )


def _end_of(place: Place, codec: Codec, base: int, following: int | None) -> int:
    """One past the last offset of a segment, by its end where that is as it should be."""
    files = place.files
    check = CheapCheck(place, codec, {}, lambda offset: offset)
    if following is not None and check.take(base, following) is not None:
        return following
    path = log_path(place, base)
    data = load_file(path)
    segment = SealedSegment(
        codec, files, place.segments, base_offset=base, end=Bound(following or base, 0)
    )
    start = load_entries(segment, SegmentIndex(codec, base))
    begins = None if start[1] == base else start
    return measure(codec, data, base, following, path, start=begins).next_offset


def _format_of(head: bytes) -> str | None:
    return _MAGICS.get(head)


def _ranges(
    place: Place, known: Ledger, spans: list[tuple[int, int]], *, is_live: bool
) -> Iterator[Finding]:
    """Finds offsets that are in no segment and have no reason, and those that are in two."""
    for (base, end), (later, _) in pairwise(spans):
        if end > later:
            name = paths.SegmentFile(base, "log").name
            yield Finding(
                log_path(place, later), 0, f"offsets {later} to {end} are in {name} as well"
            )
    if is_live:  # retention removes a file before readers see why
        return
    reached = 0
    for base, end in spans:
        for first, after in known.unexplained(reached, base):
            yield Finding(
                log_path(place, base),
                0,
                f"offsets {first} to {after} are missing before it, and no reason is known",
            )
        reached = max(reached, end)


def _short(
    place: Place, hint: PartitionCheckpoint | None, ends: dict[tuple[str, int], int]
) -> Iterator[Finding]:
    """Finds that a log ends before what was durable once."""
    durable = (hint.last_flushed_offset or 0) if hint is not None else 0
    try:
        recorded = manifest_file.read(place, RecoveryReport())
    except CorruptData:
        recorded = None
    if recorded is not None:
        durable = max(durable, recorded.next_offset)
    end = ends.get((place.topic, place.partition))
    if end is not None and end < durable:
        problem = f"the log ends at {end}, and was durable up to {durable}"
        yield Finding(place.segments, 0, problem)


def _wal_topic(boot: Boot, about: TopicFile, ends: dict[tuple[str, int], int]) -> Iterator[Finding]:
    """Finds what of a wal topic is in no segment and not in the WAL, and has no reason."""
    settings = WalSettings.from_environment(machine.ENVIRONMENT)
    view = WalView(Ground.of(boot, settings))
    for number in range(about.partitions):
        place = boot.place(about.name, number)
        try:
            reader = view.look(about, number)
        except (LaminaError, OSError):
            continue  # the check of the file reports why
        known = _ledger_at(place.files, place.ledger_path)
        ends[about.name, number] = reader.written_end
        for hole in _holes(reader):
            for first, after in known.unexplained(*hole):
                problem = f"offsets {first} to {after} are missing, and no reason is known"
                yield Finding(place.directory, 0, problem)
        folder = paths.join(boot.path(paths.SEGMENTS), paths.wal_topic_directory(reader.topic_id))
        yield from _overlaps(boot.files, folder)


def _holes(reader: TopicReader) -> tuple[Span, ...]:
    """Returns the ranges before, between and behind a topic's layers that none of them holds.

    A cold directory is among the layers: the store remembers where it is. Records that are missing
    inside a segment, or at the damaged end of the last one, are that file's finding.
    """
    layout = reader.layout
    spans = [(each.first_sequence, each.end_sequence) for each in layout.segments]
    spans += [(run.first_sequence, run.end_sequence) for run in layout.runs]
    last = layout.segments[-1] if layout.segments else None
    is_whole = last is None or reader.place.files.size(last.path("data")) == last.data_bytes
    ends = [end for _, end in spans] + [reader.written_end] * is_whole
    whole = Ranges.between(reader.earliest, max(ends, default=reader.earliest))
    return whole.minus(Ranges.of(spans)).pairs()


def _overlaps(files: Files, folder: str) -> Iterator[Finding]:
    """Finds segments of a wal topic that hold the same sequences, by their sizes in `.idx`."""
    spans = []
    for name in files.list(folder):
        parsed = paths.wal_segment_file(name)
        if parsed and parsed.suffix == "data":
            index = paths.join(folder, name.removesuffix("data") + "idx")
            count = files.size(index) // ENTRY_BYTES if files.exists(index) else 0
            spans.append((parsed.first_sequence, parsed.first_sequence + count, name))
    for (_, end, name), (later, _, other) in pairwise(sorted(spans)):
        if end > later:
            problem = f"sequences {later} to {end} are in {name} as well"
            yield Finding(paths.join(folder, other), 0, problem)


def _groups(
    boot: Boot, topics: dict[str, TopicFile], ends: dict[tuple[str, int], int]
) -> Iterator[Finding]:
    """Compares groups with the logs, and their two files with each other."""
    folder = boot.path(paths.GROUPS)
    seen = set()
    for name in boot.files.list(folder):
        parsed = paths.group_file(name)
        key = (parsed.topic, parsed.partition, parsed.group) if parsed else None
        if parsed is None or key in seen:
            continue
        seen.add(key)
        about = topics.get(parsed.topic)
        if about is None or parsed.partition >= about.partitions:
            continue  # left of a topic that is gone; the next opening removes them
        yield from _group(
            boot, Names(boot.place(parsed.topic, parsed.partition), parsed.group), ends
        )


def _group(boot: Boot, names: Names, ends: dict[tuple[str, int], int]) -> Iterator[Finding]:
    try:
        found = journal.read(names)
    except (CorruptData, OSError):
        return  # the check of the file reports why
    if not names.is_deleted:
        for suffix in ("snap", "delta"):
            if not boot.files.exists(names.path(suffix)):
                problem = f"the group's .{suffix} is missing: its state is what the other file says"
                yield Finding(names.path(suffix), 0, problem)
    end = ends.get((names.place.topic, names.place.partition))
    if end is not None and found.state.is_beyond(end):
        problem = f"the group has acked beyond the log, which ends at {end}"
        yield Finding(names.path("delta"), 0, problem)


# ---------------------------------------------------------------------- an archive


def _archive_list(files: Files, path: str, names: list[str]) -> Iterator[Finding]:
    """Compares the list of an archived partition with the objects beside it and the ledger."""
    if paths.base_name(path) != paths.ARCHIVE_MANIFEST:
        return
    try:
        listed = archive_manifest.decode(files.read(path))
    except (OSError, CorruptData):
        return  # the check of the file reports why
    folder = paths.parent(path)
    there = {paths.base_name(name) for name in names if paths.parent(name) == folder}
    for entry in listed.objects:
        name = key_of(listed.topic, listed.partition, entry).rpartition("/")[2]
        if name not in there:
            problem = "the list names this object, and it is not there"
            yield Finding(paths.join(folder, name), 0, problem)
        there.discard(name)
    known = _ledger_at(files, paths.join(folder, paths.LEDGER))
    for before, after in pairwise(listed.objects):
        for first, end in known.unexplained(before.max_offset + 1, after.base_offset):
            problem = f"offsets {first} to {end} are in no object, and no reason is known"
            yield Finding(path, 0, problem)
    for name in sorted(each for each in there if paths.suffix_of(each) == "seg"):
        problem = "no list names this object: nobody reads it"
        yield Finding(paths.join(folder, name), 0, problem, severity=NOTE)
