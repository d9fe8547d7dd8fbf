"""A segment with pages that the device does not deliver: accepted as far as others vouch for it.

An unreadable page is no damage. It may be delivered the next time, so nothing is cut, set aside,
entered or rebuilt because of it; its records are out of reach, and every reader reports that. Where
such a segment ends is known from the segment that follows it, from its `.idx`, or from a
CheckpointMark. If none of them is there, the topic cannot be opened: an offset could be assigned
twice.
"""

from __future__ import annotations

import errno

from lamina.formats.wal import index
from lamina.storage.bad_pages import DEVICE_ERROR
from lamina.storage.files import Files
from lamina.wal import segments
from lamina.wal.segments import Rebuilt, Segment


def taken(
    files: Files, bare: Segment, found: Rebuilt, following: int | None, marked: int
) -> Segment:
    """Returns the segment that a salvaging walk has found, sealed: nobody writes behind a bad page.

    `following` is where the next segment begins, None for the last one; `marked` the highest
    sequence of the topic that a CheckpointMark vouches for, 0 without one. Raises OSError where
    nothing says how far it reaches.
    """
    path = bare.path("data")
    size = files.size(path)
    claims = _claims(files, bare, found)
    end = bare.first_sequence + len(found.entries)
    if found.damages[-1].unread and found.damages[-1].end_byte >= size:
        if following is None and claims is None and marked < bare.first_sequence:
            at = f"{DEVICE_ERROR} at byte {found.damages[-1].first_byte}"
            raise OSError(
                errno.EIO, f"where the segment ends is not known from anything else: {at}", path
            )
        claimed = 0 if claims is None else bare.first_sequence + len(claims)
        end = max(end, claimed, marked + 1) if following is None else following
    newest_ms = bare.created_ms  # of opening it: too late rather than too early to be evicted
    if claims is not None:
        newest_ms = int(claims["timestamp_ms"][-1])
    return bare._replace(
        end_sequence=end,
        data_bytes=size,
        frames=found.frames,
        newest_ms=newest_ms,
        sealed=True,
    )


def _claims(files: Files, bare: Segment, found: Rebuilt) -> index.Entries | None:
    """Returns the entries of an `.idx` that agrees with every frame that was read; None if not."""
    path = bare.path("idx")
    count = files.size(path) // segments.ENTRY_BYTES if files.exists(path) else 0
    sound = found.entries
    if not len(sound) <= count or not count:
        return None
    claimed = bare._replace(
        end_sequence=bare.first_sequence + count, data_bytes=index.DATA_BYTES_MAX
    )
    entries = segments.load_entries(files, claimed)
    if entries is None or not int(entries["length"][-1]):
        return None
    read = sound["length"] != 0
    for name in ("position", "length"):
        if (entries[name][: len(sound)][read] != sound[name][read]).any():
            return None
    return entries
