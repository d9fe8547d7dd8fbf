"""A topic's materialised segments: `.data` holds frames, `.idx` finds a sequence by arithmetic.

Derived: copied from the WAL, which they outlive; an `.idx` is rebuilt from its `.data`.

    active ──count, bytes, age──▶ sealed ──▶ cold ──▶ evicted

Rules.
1. A segment is a value: a checkpoint makes a longer one of it and publishes that. Readers look no
   further than the value that they hold.
2. No file stays open: ten thousand topics cost no descriptors.
3. `.idx` entries are claims: one is trusted if the frame it names is sound and carries the
   sequence. Otherwise all are rebuilt from `.data`, and damaged records become holes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.scan import WHOLE, Limit, Run, Scan, Stop, runs
from lamina.formats.scan import Damage as Spot
from lamina.formats.wal import index, located, log
from lamina.formats.wal.headers import headers_segment
from lamina.formats.wal.layout import SEGMENT_FRAME, SEQUENCE_MAX
from lamina.formats.wal.walks import SegmentFrames
from lamina.log.damage import not_delivered
from lamina.storage import bad_pages, paths
from lamina.storage.bad_pages import Salvaged, is_unreadable, read_error, salvage
from lamina.storage.files import Files, settle_names
from lamina.storage.paths import WalSegmentFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_AHEAD_BYTES = 64 << 10
RECORD_BYTES_GUESS = 1 << 10
"""How large a record is taken to be where a reader wants only some of them."""
ENTRY_BYTES = index.ENTRY.itemsize


class Segment(NamedTuple):
    """One segment. `end_sequence` is one past its last record; `frames` counts those it holds."""

    topic_id: int
    directory: str
    first_sequence: int
    end_sequence: int
    data_bytes: int
    frames: int
    newest_ms: int
    created_ms: int
    sealed: bool = False

    def path(self, suffix: str) -> str:
        """Returns the path of one of its files."""
        return (
            f"{self.directory}{paths.SEPARATOR}{WalSegmentFile(self.first_sequence, suffix).name}"
        )

    @property
    def where(self) -> str:
        """The path of the `.data`, which is the truth of it."""
        return self.path("data")

    @property
    def oldest_ms(self) -> None:
        """Not known without its `.idx`."""
        return None

    @property
    def entry_count(self) -> int:
        """How many sequences it spans, holes included."""
        return self.end_sequence - self.first_sequence


@dataclass(frozen=True, slots=True, eq=False)
class Damage:
    """Bytes of a `.data` that hold no sound frame, and the sequences that may have been there.

    `unread` is set if the device did not deliver some of them: they may be sound.
    """

    first_sequence: int
    end_sequence: int
    first_byte: int
    end_byte: int
    stop: Stop
    unread: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """What a walk over a whole `.data` found."""

    entries: index.Entries
    frames: int
    end_byte: int
    damages: tuple[Damage, ...]

    @property
    def is_unread(self) -> bool:
        """Whether the device did not deliver all of it: another walk may find more."""
        return any(damage.unread for damage in self.damages)


def data_of(files: Files, segment: Segment) -> Buffer:
    """Reads a segment's `.data`, or raises OSError."""
    with contextlib.closing(files.open_read_only(segment.path("data"))) as file:
        return file.load()


def salvaged_data_of(files: Files, segment: Segment) -> Salvaged:
    """Reads what the device delivers of a segment's `.data`."""
    with contextlib.closing(files.open_read_only(segment.path("data"))) as file:
        return bad_pages.load(file)


def damaged_bytes(files: Files, segment: Segment, damage: Damage) -> bytes:
    """Reads the bytes of a damaged spot, to be set aside."""
    raw = memoryview(salvaged_data_of(files, segment).data).cast("B")
    return bytes(raw[damage.first_byte : damage.end_byte])


def walk(
    files: Files,
    segment: Segment,
    end_byte: int | None = None,
    *,
    end_sequence: int = SEQUENCE_MAX,
) -> Rebuilt:
    """Walks all frames of a segment, over damaged spots, and makes the entries that it should have.

    Looks no further than `end_byte`, where one is given. Frames from `end_sequence` on, where the
    next segment begins, do not count: a misplaced file must not vouch for its neighbours' records.
    Raises OSError where the device does not deliver all of it: nothing may be decided then.
    """
    whole = Salvaged(data_of(files, segment), ())
    return _walk(segment, whole, end_byte, end_sequence)


def walk_salvaged(
    files: Files,
    segment: Segment,
    end_byte: int | None = None,
    *,
    end_sequence: int = SEQUENCE_MAX,
) -> Rebuilt:
    """Walks what the device delivers of a segment; the rest is damage that is `unread`."""
    return _walk(segment, salvaged_data_of(files, segment), end_byte, end_sequence)


def _walk(segment: Segment, whole: Salvaged, end_byte: int | None, end_sequence: int) -> Rebuilt:
    raw = memoryview(whole.data).cast("B")
    data = raw if end_byte is None else raw[: min(end_byte, raw.nbytes)]
    parts = [np.empty(0, dtype=np.int64)]
    damages: list[Damage] = []
    expected, sound_end, frames = segment.first_sequence, 0, 0
    for step in runs(SegmentFrames(data, segment.topic_id), 0, expected, limit=WHOLE):
        if isinstance(step, Run):
            found = step.found
            own = _count_below(data, step, end_sequence)
            parts.append(found.positions[:own])
            frames += own
            if own:
                expected = sequence_at(data, int(found.positions[own - 1])) + 1
                sound_end = found.end if own == len(found) else int(found.positions[own])
            if own < len(found):
                strange = int(found.positions[own])
                damages.append(Damage(expected, expected, strange, data.nbytes, Stop.BAD_OFFSET))
                break
            continue
        _refuse_newer(segment, step)
        resumes = expected if step.following is None else min(end_sequence, step.following)
        unread = whole.misses(step.position, step.end)
        damages.append(Damage(expected, resumes, step.position, step.end, step.stop, unread))
    positions = np.concatenate(parts)
    sound = Scan(positions, sound_end, Stop.END)
    own = _indexable(data, sound, segment.first_sequence)
    if own < frames:
        expected, sound_end = segment.first_sequence, 0
        if own:
            last = headers_segment(data, Scan(positions[own - 1 : own], 0, Stop.END))
            expected = int(last.sequences[0]) + 1
            sound_end = int(positions[own - 1] + last.lengths[0])
        sound = Scan(positions[:own], sound_end, Stop.END)
        damages = [each for each in damages if each.end_byte <= sound_end]
        damages.append(Damage(expected, expected, sound_end, data.nbytes, Stop.BAD_OFFSET))
    entries = index.build(data, sound, first_sequence=segment.first_sequence)
    return Rebuilt(entries, own, sound.end, tuple(damages))


def _indexable(data: Buffer, found: Scan, first_sequence: int) -> int:
    """Counts the frames that one index can describe: no writer has put more into a segment."""
    count = len(found)
    if not count:
        return 0
    last = sequence_at(data, int(found.positions[-1]))
    if last - first_sequence < index.entries_max(count) and found.end <= index.DATA_BYTES_MAX:
        return count
    spans = headers_segment(data, found).sequences.astype(np.int64) - first_sequence
    ends = np.append(found.positions[1:], found.end)
    most = np.array([index.entries_max(row + 1) for row in range(count)], dtype=np.int64)
    fits = np.flatnonzero((spans < most) & (ends <= index.DATA_BYTES_MAX))
    return int(fits[-1]) + 1 if len(fits) else 0


def _refuse_newer(segment: Segment, spot: Spot) -> None:
    """Raises NewerFormat where a walk met a sound frame that is not known: it is no damage."""
    if spot.stop is Stop.BAD_VERSION:
        problem = "a sound frame of an unknown flag"
        raise NewerFormat(problem, path=segment.path("data"), position=spot.position)


def _count_below(data: Buffer, run: Run, end_sequence: int) -> int:
    """Counts the frames of a run whose sequences, which ascend, are below one."""
    if run.end <= end_sequence:
        return len(run.found)
    sequences = headers_segment(data, run.found).sequences
    return int(np.searchsorted(sequences, end_sequence))


def sequence_at(data: Buffer, position: int) -> int:
    """Reads the sequence of a sound frame of a segment."""
    return int(SEGMENT_FRAME.unpack(data, position)["sequence"])


def _read_index(files: Files, segment: Segment, position: int, length: int) -> bytes:
    """Reads some of the `.idx`; nothing where it is missing or the device does not deliver it."""
    try:
        with contextlib.closing(files.open_read_only(segment.path("idx"))) as file:
            return file.read_at(position, length)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if not is_unreadable(error):
            raise
        return b""


def load_entries(files: Files, segment: Segment) -> index.Entries | None:
    """Reads the `.idx` as far as the segment goes; None where it is missing, short or absurd."""
    raw = _read_index(files, segment, 0, segment.entry_count * ENTRY_BYTES)
    if len(raw) < segment.entry_count * ENTRY_BYTES:
        return None
    entries = index.decode(raw)
    try:
        index.check(entries, segment.data_bytes)
    except CorruptData:
        return None
    return entries


def by_index(files: Files, bare: Segment) -> Segment | None:
    """Accepts a segment as its `.idx` describes it, if the last entry proves right.

    It must name the frame that `.data` ends with, which must be sound, carry the sequence, and be
    of the time that eviction would go by. None where anything of this does not hold, or the device
    does not deliver it.
    """
    size, raw = _read_end(files, bare.path("idx"), 2 * ENTRY_BYTES)
    count, rest = divmod(size, ENTRY_BYTES)
    if rest or not count or len(raw) != min(count, 2) * ENTRY_BYTES:
        return None
    position, length, newest_ms, before_ms = index.last_of(raw)
    size, frame = _read_end(files, bare.path("data"), length)
    if size != position + length:
        return None
    topic_id, directory, first, *_ = bare
    end = first + count
    time_ms = located.time_of_segment_frame(frame, located.Expected(topic_id, end - 1))
    if time_ms is None or newest_ms != max(before_ms, time_ms):
        return None
    facts = (first, end, size, count, newest_ms, bare.created_ms)
    return Segment(topic_id, directory, *facts, sealed=bare.sealed)


def _read_end(files: Files, path: str, length: int) -> tuple[int, bytes]:
    """Returns a file's size and last bytes; nothing where there are none to be had."""
    try:
        return files.read_end(path, length)
    except FileNotFoundError:
        return 0, b""
    except OSError as error:
        if not is_unreadable(error):
            raise
        return 0, b""


def is_sound_from(files: Files, segment: Segment, sequence: int) -> bool:
    """Checks all frames of a segment from the one that `.idx` names for a sequence on."""
    position = position_for(files, segment, sequence)
    whole = salvaged_data_of(files, segment)
    if whole.holes:
        return False
    data = memoryview(whole.data).cast("B")[: segment.data_bytes]
    while position is not None and position < data.nbytes:
        found = log.scan_segment(
            data, position, topic_id=segment.topic_id, minimum_sequence=sequence
        )
        position = None if found.stop.is_damage else found.end
    return position is not None


def save_entries(files: Files, segment: Segment, entries: index.Entries) -> None:
    """Replaces the `.idx`."""
    files.replace(segment.path("idx"), index.encode(entries))


def position_for(files: Files, segment: Segment, sequence: int) -> int | None:
    """Returns where a sequence's frame (or the next one) starts, if `.idx` has an answer."""
    at = index.position_of(sequence, segment.first_sequence)
    raw = _read_index(files, segment, at, ENTRY_BYTES)
    if len(raw) < ENTRY_BYTES:
        return None
    position = int(index.decode(raw)["position"][0])
    return position if position < segment.data_bytes else None


def read(
    files: Files, segment: Segment, position: int, sequence: int, limit: Limit
) -> pa.RecordBatch | None:
    """Reads frames from a byte on, the first not below a sequence; None where none is sound."""
    most = min(limit.max_bytes, 1 << 26) + RECORD_BYTES_GUESS
    length = min(most, READ_AHEAD_BYTES + limit.max_records * RECORD_BYTES_GUESS)
    topic_id = segment.topic_id
    with contextlib.closing(files.open_read_only(segment.path("data"))) as file:
        while True:
            wanted = min(length, segment.data_bytes - position)
            window = salvage(file, position, wanted).data
            found = log.scan_segment(
                window, 0, topic_id=topic_id, minimum_sequence=sequence, limit=limit
            )
            if wanted < length or found.stop not in (Stop.TORN, Stop.END):
                break
            if length >= most and len(found):
                break
            length = most if len(found) else max(4 * length, most)
    return log.decode_segment(window, found) if len(found) else None


def unread(files: Files, segment: Segment, position: int, length: int) -> str:
    """Reads a frame once more; returns where the device does not deliver it, or an empty text."""
    with contextlib.closing(files.open_read_only(segment.path("data"))) as file:
        error = read_error(file, position, position + length)
    return "" if error is None else not_delivered(segment.path("data"), position, error)


def mark_deleted(files: Files, segment: Segment, deleted: tuple[tuple[int, int], ...]) -> None:
    """Sets the deleted flags in a segment's `.idx`, a second copy of the deleted set."""
    entries = load_entries(files, segment)
    if entries is None:
        entries = walk(files, segment, segment.data_bytes).entries
    save_entries(files, segment, index.mark_deleted(entries, segment.first_sequence, deleted))


def remove(files: Files, segment: Segment) -> None:
    """Removes a segment's files."""
    for suffix in ("idx", "data"):
        if files.exists(segment.path(suffix)):
            files.remove(segment.path(suffix))
    settle_names(files, segment.directory)  # what was evicted or deleted must not come back


def seal(segment: Segment) -> Segment:
    """Returns the segment as one that never changes again."""
    return segment._replace(sealed=True)
