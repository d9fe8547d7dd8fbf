"""What the end of a walk through a log means, in words; and the zeros that are no damage there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamina.formats.kernels.binary import as_bytes
from lamina.formats.scan import Stop

if TYPE_CHECKING:
    from typing_extensions import Buffer


def describe_stop(stop: Stop, *, resumes_at: int | None = None) -> str:
    """Says in words why a scan stopped; sound records after it tell that the file did not end."""
    if stop is Stop.TORN and resumes_at is not None:
        return "a record that is zeroed, or whose length reaches past the records after it"
    return _STOPS[stop]


_STOPS = {
    Stop.TORN: "the file ends inside a record",
    Stop.BAD_MAGIC: "no record starts here (bad magic)",
    Stop.BAD_VERSION: "a sound record of an unknown version, type or flag: a newer format",
    Stop.BAD_LENGTH: "lengths that contradict each other",
    Stop.BAD_CHECKSUM: "the checksum does not fit",
    Stop.BAD_OFFSET: "the record does not continue the ones before it",
    Stop.END: "the end",
    Stop.LIMIT: "the limit of one scan",
}


def is_prepared_space(data: Buffer, position: int) -> bool:
    """Tells whether a file holds only zeros from a position on, as a prepared tail does."""
    tail = as_bytes(data)[position:]
    if tail[:64].any():  # so it is at nearly every damaged spot, and there may be many
        return False
    step = 1 << 20
    return not any(tail[start : start + step].any() for start in range(0, len(tail), step))
