"""The offset grammars: rpk's whole, and kcat's.

| rpk                 | from                           | until             |
|---------------------|--------------------------------|-------------------|
| `start` `end`       | the earliest, the end          | for ever          |
| `earliest` `beginning` `latest` | the words of Kafka's tools for both | for ever |
| `:end`              | the earliest                   | the end as it is  |
| `+N` `-N`           | N after the start, before the end | for ever       |
| `N` `N:` `:N` `N:M` | an offset                      | an offset         |
| `@t` `@t:` `@:t` `@t1:t2` | the first record at a time or later | a time or `end` |

A time is 13 digits (ms), 9 or 10 digits (s), a date, RFC 3339, or `-dur` (`-48h`, `-1h30m`): so
long before now; behind the colon a `dur` without sign is so long after the first time.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from lamina.errors import InvalidRequest

Kind: TypeAlias = Literal["start", "end", "offset", "after start", "before end", "time"]
_WORDS: dict[str, Kind] = {
    **dict.fromkeys(("start", "earliest", "beginning"), "start"),
    **dict.fromkeys(("end", "latest"), "end"),
}
"""rpk's words, and those of Kafka's own tools and of kcat."""
_NUMBER = re.compile(r"[0-9]{1,19}")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|ms|s|m|h|d))+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h|d)")
_UNIT_MS = {
    "ns": 1e-6,
    "us": 1e-3,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
_TIME = rf"(?:{_DATE}(?:{_CLOCK})?|-?(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|ms|s|m|h|d))+|[0-9]+|end)"
_TIMES = re.compile(rf"({_TIME})?(:)?({_TIME})?")


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a partition, before the partition is known."""

    kind: Kind
    number: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Where to start and where to stop; without an end, never."""

    start: Point
    end: Point | None = None


class Offsets(Protocol):
    """What resolving a point needs from a store."""

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the first offset."""

    def latest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns one past the last."""

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time."""


def parse(text: str, now_ms: int) -> Range:
    """Parses rpk's grammar; raises InvalidRequest for anything else."""
    if text.startswith("@"):
        return _parse_times(text, now_ms)
    if text in _WORDS:
        return Range(Point(_WORDS[text]))
    if text == ":end":
        return Range(Point("start"), Point("end"))
    if text[:1] in ("+", "-"):
        kind: Kind = "after start" if text[0] == "+" else "before end"
        return Range(Point(kind, _number(text[1:], text)))
    first, colon, last = text.partition(":")
    if not first and not last:
        raise _no(text)
    start = Point("offset", _number(first, text)) if first else Point("start")
    if not last:
        return Range(start)
    del colon
    end = Point("end") if last == "end" else Point("offset", _number(last, text))
    if first and end.kind == "offset" and end.number < start.number:
        raise InvalidRequest(f"offsets {text!r} end before they start")
    return Range(start, end)


def _parse_times(text: str, now_ms: int) -> Range:
    match = _TIMES.fullmatch(text[1:])
    if match is None or not (match[1] or match[3]) or (match[3] and not match[2]):
        raise _no(text)
    start = Point("start")
    if match[1]:
        if match[1] == "end":
            raise _no(text)
        start = Point("time", _time_ms(match[1], now_ms, None))
    if not match[3]:
        return Range(start)
    if match[3] == "end":
        return Range(start, Point("end"))
    end = Point("time", _time_ms(match[3], now_ms, start.number if match[1] else None))
    if match[1] and end.number < start.number:
        raise InvalidRequest(f"times {text!r} end before they start")
    return Range(start, end)


def _time_ms(text: str, now_ms: int, first_ms: int | None) -> int:
    if text.startswith("-") and _DURATION.fullmatch(text[1:]):
        return now_ms - _duration_ms(text[1:])
    if _DURATION.fullmatch(text):
        if first_ms is None:
            raise InvalidRequest(f"a duration starts with '-', so long before now: -{text}")
        return first_ms + _duration_ms(text)
    if text.isdigit():
        if len(text) == 13:
            return int(text)
        if len(text) in (9, 10):
            return int(text) * 1000
        raise InvalidRequest(f"a time has 13 digits (ms) or 10 (s), not {len(text)}: {text}")
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{text} is not a time: {error}") from error
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.UTC)
    return round(at.timestamp() * 1000)


def duration_ms(text: str) -> int:
    """Parses a duration (`10s`, `1h30m`, `7d`); raises InvalidRequest for anything else."""
    if not _DURATION.fullmatch(text):
        raise InvalidRequest(f"{text!r} is not a duration; try 10s, 1h30m or 7d")
    return _duration_ms(text)


def _duration_ms(text: str) -> int:
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text)))


def _number(digits: str, text: str) -> int:
    if not _NUMBER.fullmatch(digits) or int(digits) >= 1 << 63:
        raise _no(text)
    return int(digits)


def _no(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"{text!r} is neither an offset nor a range of offsets; try start, end, :end, +10, -10, 5,"
        " 5:10, @-1h, @-48h:-24h, @2026-01-31:end"
    )


def parse_kcat(texts: list[str]) -> Range:
    """Parses kcat's `-o`: a word, an offset, -N before the end, or `s@ms` and `e@ms`."""
    found = [_parse_kcat(text) for text in texts]
    ends = [each.end for each in found if each.end is not None]
    starts = [each.start for each in found if each.end is None]
    if len(ends) > 1 or len(starts) > 1:
        raise InvalidRequest(f"-o is given once, or as s@ms and e@ms, not as {' and '.join(texts)}")
    return Range(starts[0] if starts else Point("start"), ends[0] if ends else None)


def _parse_kcat(text: str) -> Range:
    words: dict[str, Callable[[], Point]] = {
        "beginning": lambda: Point("start"),
        "end": lambda: Point("end"),
    }
    if text in words:
        return Range(words[text]())
    if text.startswith("s@"):
        return Range(Point("time", _number(text[2:], text)))
    if text.startswith("e@"):
        return Range(Point("start"), Point("time", _number(text[2:], text)))
    if text.startswith("-"):
        return Range(Point("before end", _number(text[1:], text)))
    return Range(Point("offset", _number(text, text)))


def resolve(point: Point, store: Offsets, topic: str, partition: int) -> int:
    """Finds the offset of a point in a partition; never before its start."""
    if point.kind == "offset":
        return point.number
    earliest = store.earliest_offset(topic, partition)
    latest = store.latest_offset(topic, partition)
    if point.kind == "time":
        found = store.offset_for_time(topic, partition, point.number)
        return latest if found is None else found
    if point.kind == "after start":
        return min(latest, earliest + point.number)
    if point.kind == "before end":
        return max(earliest, latest - point.number)
    return earliest if point.kind == "start" else latest
