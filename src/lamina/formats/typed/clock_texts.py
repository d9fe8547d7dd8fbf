"""Times as JSON has them: text. Arrow writes a time of day as one, and reads none.

What its readers take lies in the years 0 to 9999; Arrow would write other years, too, and what is
no time of day at all. A time of day may have an offset, as RFC 3339 wants it: `10:00:00+02:00` is
`08:00:00` in UTC.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CLOCK = r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?$"
_OFFSET = r"(Z|[+-]\d\d:\d\d)$"
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_YEARS = -719_528, 2_932_897
"""The first day of the year 0, and of the year 10000, counted from the year 1970."""
_NANOSECONDS = -106_751 * _DAY["ns"], (1 << 63) - 1
"""Nanoseconds have fewer years; Arrow reads the first day that is there as a whole."""


def is_writable(times: pa.Array) -> bool:
    """Whether dates, times of day or time stamps can be read again from their texts."""
    kind = times.type
    least, end = _YEARS
    if pa.types.is_time(kind):
        least, end = 0, _DAY[kind.unit]
    elif pa.types.is_timestamp(kind):
        least, end = (each * _DAY[kind.unit] for each in _YEARS)
        if kind.unit == "ns":
            least, end = _NANOSECONDS
    counts = times.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    found = pc.min_max(counts)
    first, last = found["min"].as_py(), found["max"].as_py()
    return first is None or (first >= least and last < end)


def times_of_day(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Reads times of day; raises ArrowInvalid where a text is none, or finer than the unit."""
    fits = pc.match_substring_regex(texts, _CLOCK)
    if pc.any(pc.invert(fits)).as_py():
        raise pa.ArrowInvalid("a text that is no time of day")
    offsets = pc.if_else(pc.match_substring_regex(texts, _OFFSET), "", "Z")
    whole = pc.binary_join_element_wise("1970-01-01T", texts, offsets, "")
    counts = whole.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.int64()).fill_null(0)
    within = np.asarray(counts) % _DAY[kind.unit]
    plain = pa.array(within, mask=np.asarray(texts.is_null()))
    return (plain.cast(pa.int32()) if kind.bit_width == 32 else plain).cast(kind)


def is_readable(text: str, kind: pa.DataType) -> bool:
    """Whether a text is a time of a type in any of the forms that readers of JSON take."""
    given = pa.array([text], pa.string())
    try:
        if pa.types.is_time(kind):
            times_of_day(given, kind)
        else:
            given.cast(kind)
    except pa.ArrowException:
        zone = None if getattr(kind, "tz", None) else "UTC"
        return pa.types.is_timestamp(kind) and _casts(given, pa.timestamp(kind.unit, zone))
    return True


def _casts(given: pa.Array, kind: pa.DataType) -> bool:
    try:
        given.cast(kind)
    except pa.ArrowException:
        return False
    return True
