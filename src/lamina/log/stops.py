"""What the end of a walk through a log means, in words."""

from __future__ import annotations

from lamina.formats.scan import Stop


def describe_stop(stop: Stop, *, resumes_at: int | None = None) -> str:
    """Describes why a scan stopped; sound records behind it mean that the file did not end."""
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
