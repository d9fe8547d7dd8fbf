"""What a reader gets in place of a record that is not sound, and what is entered about it.

Damage is entered as lost (or as archived, where the archive has a copy), once, and its bytes are
set aside. A page that the device does not deliver is not damage: nothing is entered, and the
record may be sound when it is read again.
"""

from __future__ import annotations

from typing import Protocol

from lamina.api import Gap
from lamina.errors import UNREADABLE, RecordsMissing
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.log.directory import Place
from lamina.log.segment import Bound, Damaged, Segment


class Reader(Protocol):
    """The reader that found it."""

    place: Place
    ledger: Ledger

    def note_damage(self, gap: Gap, error: Damaged, damaged: bytes) -> None:
        """Notes newly found damage."""


def missing_of(
    reader: Reader, segment: Segment, bound: Bound, error: Damaged, wanted: int
) -> RecordsMissing | None:
    """Returns which records are missing around a wanted one; None if they are sound by now.

    Newly found damage is passed to the reader.
    """
    offset = error.offset
    sound = segment.sound_after(error.position, offset, bound)
    end = sound[0] if sound else bound.next_offset
    last_byte = sound[1] if sound else bound.position
    unread = segment.read_error(error.position, last_byte)
    if unread is None and (end == offset or segment.holds(offset, error.position, bound)):
        return None
    if unread is None and reader.ledger.unexplained(offset, end):
        damaged = segment.window(error.position, last_byte - error.position, bound)
        gap = Gap(offset, end, LOST, reader.place.now_ms(), str(error))
        reader.note_damage(gap, error, bytes(memoryview(damaged)))
    why = str(error)
    if unread is not None:
        why = not_delivered(segment.path("log"), error.position, unread)
    reason = UNREADABLE if unread is not None else LOST
    missing = RecordsMissing(f"{reader.place.name}: {why}", first=offset, end=end, reason=reason)
    return _at(missing, reader.ledger, wanted)


def _at(missing: RecordsMissing, known: Ledger, offset: int) -> RecordsMissing:
    """Returns the part around an offset that has one reason: the ledger may know several."""
    gap = known.at(offset)
    if gap is not None:
        missing.first, missing.end = max(missing.first, gap.first), min(missing.end, gap.end)
        missing.reason = missing.reason if gap.reason == ARCHIVED else gap.reason
        return missing
    for each in known.between(missing.first, missing.end):
        if each.end <= offset:
            missing.first = each.end
        else:
            missing.end = min(missing.end, each.first)
    return missing


def not_delivered(path: str, position: int, error: OSError) -> str:
    """Returns the message for bytes that could not be read, with what to do about it."""
    return (
        f"{path}: byte {position}: the device does not deliver it ({error.strerror or error});"
        " read again, or look at the device"
    )
