"""Reading what a device still delivers: a bad page costs the bytes on it, not the file.

Nothing is read through a map: a page that the disk cannot deliver, or that another process cuts
off, would be a SIGBUS there, which kills the process. `pread` returns an error instead.

Rules.
1. Bytes that could not be read are `FILLER`, never zeros: zeros are what prepared space holds, and
   prepared space is cut.
2. An error may pass. So what was not read is never entered as lost, cut or set aside: callers that
   find damage in salvaged bytes ask `Salvaged.misses` about them first.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEVICE_ERROR = os.strerror(errno.EIO)
"""The system's text for a page that the device does not deliver."""

PAGE_BYTES = 4 << 10
STEP_BYTES = 1 << 20
REST_BYTES_MAX = 16 << 20
"""More than this is not read beside what lies before it: for a moment it is there twice."""
FILLER = b"\xa5"
BAD_PAGES_MAX = 1024
"""A device that fails more often than this within one reading is given up: each try takes long."""

OUT_OF_REACH = "the device does not deliver it: its records are out of reach until it does"
"""The text in a report about bytes that were not read."""

UNREADABLE = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ENODATA", "EILSEQ", "EBADMSG", "EUCLEAN", "EREMOTEIO", "EHWPOISON")
    if hasattr(errno, name)
) | {133}
"""The error numbers of bytes that the device cannot deliver; 133 is EHWPOISON, bad memory."""


class Readable(Protocol):
    """Something of which bytes can be read."""

    def read_at(self, position: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""


class Loadable(Readable, Protocol):
    """Something that can be read whole."""

    def load(self) -> Buffer:
        """Reads all of it, or raises OSError."""

    def size(self) -> int:
        """Returns the size in bytes."""


class Salvaged(NamedTuple):
    """The bytes from a position on, and the ranges (first, end) of the file that were not read."""

    data: Buffer
    holes: tuple[tuple[int, int], ...]

    def misses(self, first: int, end: int) -> bool:
        """Returns whether any byte of a range of the file was not read."""
        return any(start < end and first < stop for start, stop in self.holes)

    def read_parts(self, first: int, end: int) -> list[tuple[int, int]]:
        """Returns the parts of a range of the file that were read."""
        parts = []
        for start, stop in self.holes:
            if first < min(start, end):
                parts.append((first, min(start, end)))
            first = max(first, stop)
        return [*parts, (first, end)] if first < end else parts


def is_unreadable(error: OSError) -> bool:
    """Returns whether an error means that the device cannot deliver some bytes."""
    return error.errno in UNREADABLE


def load(file: Loadable) -> Salvaged:
    """Reads what can be read of a whole file; raises OSError as `salvage` does."""
    try:
        return Salvaged(file.load(), ())
    except OSError as error:
        if not is_unreadable(error):
            raise
    return salvage(file, 0, file.size())


def load_from(file: Loadable, start: int) -> Salvaged:
    """Reads what can be read from a position on; pages before it are not read, and are zeros.

    These take no memory: a walk of the end of a file costs what it walks. Where there is little
    before the position, or much behind it, the file is read whole.
    """
    size = file.size()
    if start < STEP_BYTES or size - start > REST_BYTES_MAX:
        return load(file)
    page = min(start, size) // PAGE_BYTES * PAGE_BYTES
    rest = salvage(file, page, size - page)
    end = page + memoryview(rest.data).nbytes
    memory = memoryview(mmap.mmap(-1, end, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    memory[page:] = memoryview(rest.data).cast("B")
    return Salvaged(memory.toreadonly(), rest.holes)


def salvage(file: Readable, position: int, length: int) -> Salvaged:
    """Reads what can be read of a range; the pages that cannot are `FILLER`, and named.

    Raises OSError where more than `BAD_PAGES_MAX` pages fail, and for any other kind of error.
    """
    try:
        return Salvaged(file.read_at(position, length), ())
    except OSError as error:
        if not is_unreadable(error):
            raise
    parts: list[bytes] = []
    holes: list[tuple[int, int]] = []
    at, end = position, position + length
    while at < end:
        step = min(end, (at // STEP_BYTES + 1) * STEP_BYTES)
        part = _read_pages(file, at, step, holes)
        parts.append(part)
        if len(part) < step - at:
            break
        at = step
    return Salvaged(b"".join(parts), tuple(holes))


def _read_pages(file: Readable, first: int, end: int, holes: list[tuple[int, int]]) -> bytes:
    """Reads a range whole, or else page by page."""
    try:
        return file.read_at(first, end - first)
    except OSError as error:
        if not is_unreadable(error):
            raise
    parts = []
    while first < end:
        stop = min(end, (first // PAGE_BYTES + 1) * PAGE_BYTES)
        try:
            part = file.read_at(first, stop - first)
        except OSError as error:
            if not is_unreadable(error) or len(holes) >= BAD_PAGES_MAX:
                raise
            part = FILLER * (stop - first)
            holes.append((first, stop))
        parts.append(part)
        if len(part) < stop - first:
            break
        first = stop
    return b"".join(parts)


def read_error(file: Readable, first: int, end: int) -> OSError | None:
    """Reads a range again; returns the error of the device, if it still cannot deliver it."""
    while first < end:
        step = min(end, first + STEP_BYTES)
        try:
            file.read_at(first, step - first)
        except OSError as error:
            return error
        first = step
    return None
