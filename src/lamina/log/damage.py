"""What a reader makes of a record that is not sound: damage, or a page that was not delivered.

Damage is entered as lost, once, and its bytes are set aside. What the device does not deliver is no
damage: it is entered nowhere, and may be sound when it is read again.
"""

from __future__ import annotations

from typing import Protocol

from lamina.api import Gap
from lamina.errors import UNREADABLE, RecordsMissing
from lamina.formats.documents.ledger import Ledger
from lamina.log.directory import Place
from lamina.log.segment import Bound, Damaged, Segment


class Reader(Protocol):
    """The reader that met it."""

    place: Place
    ledger: Ledger

    def note_damage(self, gap: Gap, error: Damaged, damaged: bytes) -> None:
        """Is told of damage that was not known yet."""


def missing_of(
    reader: Reader, segment: Segment, bound: Bound, error: Damaged
) -> RecordsMissing | None:
    """Says which records are missing and where to go on; None if they are sound by now.

    Newly found damage is told to the reader.
    """
    offset = error.offset
    sound = segment.sound_after(error.position, offset, bound)
    end = sound[0] if sound else bound.next_offset
    last_byte = sound[1] if sound else bound.position
    unread = segment.read_error(error.position, last_byte)
    if unread is None and segment.holds(offset, error.position, bound):
        return None
    known = reader.ledger.at(offset)
    if unread is None and known is None:
        damaged = segment.window(error.position, last_byte - error.position, bound)
        gap = Gap(offset, end, "lost", reader.place.now_ms(), str(error))
        reader.note_damage(gap, error, bytes(memoryview(damaged)))
        known = reader.ledger.at(offset)
    why = str(error)
    if unread is not None:
        why = not_delivered(segment.path("log"), error.position, unread)
    return RecordsMissing(
        f"{reader.place.name}: {why}",
        first=offset,
        end=end,
        reason=known.reason if known else UNREADABLE if unread is not None else "lost",
    )


def not_delivered(path: str, position: int, error: OSError) -> str:
    """Says that bytes could not be read, and what to do about it."""
    return (
        f"{path}: byte {position}: the device does not deliver it ({error.strerror or error});"
        " read again, or look at the device"
    )
