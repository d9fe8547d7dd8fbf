"""rpk's offset grammar, kcat's, and the percent formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lamina as library
from lamina.cli.offsets import Point, Range, parse, parse_kcat, resolve
from lamina.cli.output import moment
from lamina.cli.percent import KCAT, RPK, compile_format
from lamina.errors import InvalidRequest

NOW = 1_800_000_000_000
HOUR = 3_600_000

GRAMMAR: dict[str, Range] = {
    "start": Range(Point("start")),
    "end": Range(Point("end")),
    "earliest": Range(Point("start")),
    "beginning": Range(Point("start")),
    "latest": Range(Point("end")),
    ":end": Range(Point("start"), Point("end")),
    "+10": Range(Point("after start", 10)),
    "-10": Range(Point("before end", 10)),
    "5": Range(Point("offset", 5)),
    "5:": Range(Point("offset", 5)),
    ":5": Range(Point("start"), Point("offset", 5)),
    "5:9": Range(Point("offset", 5), Point("offset", 9)),
    "5:5": Range(Point("offset", 5), Point("offset", 5)),
    "5:end": Range(Point("offset", 5), Point("end")),
    "@1700000000000": Range(Point("time", 1_700_000_000_000)),
    "@1700000000000:": Range(Point("time", 1_700_000_000_000)),
    "@:1700000000000": Range(Point("start"), Point("time", 1_700_000_000_000)),
    "@1700000000": Range(Point("time", 1_700_000_000_000)),
    "@170000000": Range(Point("time", 170_000_000_000)),
    "@2022-02-14": Range(Point("time", 1_644_796_800_000)),
    "@2022-02-14T01:02:03Z": Range(Point("time", 1_644_800_523_000)),
    "@2022-02-14T01:02:03.5Z:2022-02-14T01:02:04+01:00": None,  # type: ignore[dict-item]
    "@2022-02-14:2022-02-15": Range(
        Point("time", 1_644_796_800_000), Point("time", 1_644_883_200_000)
    ),
    "@2022-02-14:1h": Range(
        Point("time", 1_644_796_800_000), Point("time", 1_644_796_800_000 + HOUR)
    ),
    "@-48h:-24h": Range(Point("time", NOW - 48 * HOUR), Point("time", NOW - 24 * HOUR)),
    "@-1m:end": Range(Point("time", NOW - 60_000), Point("end")),
    "@-1h30m": Range(Point("time", NOW - HOUR - 1_800_000)),
    "@-500ms": Range(Point("time", NOW - 500)),
    "@-1.5h": Range(Point("time", NOW - 5_400_000)),
    "@-2d": Range(Point("time", NOW - 48 * HOUR)),
}
ENDS_EARLY = "@2022-02-14T01:02:03.5Z:2022-02-14T01:02:04+01:00"


@pytest.mark.parametrize("text", [text for text in GRAMMAR if text != ENDS_EARLY])
def test_the_grammar_of_rpk_is_read_whole(text: str) -> None:
    assert parse(text, NOW) == GRAMMAR[text]


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "@", "@:", "x", "1:x", "x:1", "+", "-", "+-1", "--1", "1:2:3", "9:5", "1.5"),
        *("@x", "@12", "@-1", "@-1x", "@1h", "@end", "@2022-13-01", "@-1h:-2h", "@1700000000000x"),
        *("9223372036854775808", "٣", ENDS_EARLY),
    ],
)
def test_what_is_none_of_it_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(text, NOW)


class Partition:
    """Offsets 100 to 200, a record a second from 1000 s on."""

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        return 100

    def latest_offset(self, topic: str, partition: int = 0) -> int:
        return 200

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = 100 + max(0, -(-(timestamp_ms - 1_000_000) // 1000))
        return offset if offset < 200 else None


@pytest.mark.parametrize(
    ("point", "offset"),
    [
        (Point("start"), 100),
        (Point("end"), 200),
        (Point("offset", 7), 7),
        (Point("after start", 5), 105),
        (Point("after start", 500), 200),
        (Point("before end", 5), 195),
        (Point("before end", 500), 100),
        (Point("time", 1_010_500), 111),
        (Point("time", 9_000_000), 200),
    ],
)
def test_points_are_found_in_a_partition(point: Point, offset: int) -> None:
    assert resolve(point, Partition(), "t", 0) == offset


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("beginning", Range(Point("start"))),
        ("end", Range(Point("end"))),
        ("17", Range(Point("offset", 17))),
        ("-17", Range(Point("before end", 17))),
        ("s@1700000000000", Range(Point("time", 1_700_000_000_000))),
        ("e@1700000000000", Range(Point("start"), Point("time", 1_700_000_000_000))),
        ("s@17 e@1700000000000", Range(Point("time", 17), Point("time", 1_700_000_000_000))),
    ],
)
def test_the_offsets_of_kcat_are_read(text: str, found: Any) -> None:
    assert parse_kcat(text.split()) == found


def test_other_offsets_of_kcat_are_refused() -> None:
    for text in ("stored", "first", "", "s@", "e@x", "--1"):
        with pytest.raises(InvalidRequest):
            parse_kcat([text])
    with pytest.raises(InvalidRequest, match="given once"):
        parse_kcat(["5", "7"])


ROW = {
    **{"topic": "shop", "partition": 2, "offset": 258, "timestamp_ms": 1_700_000_000_000},
    **{"key": None, "value": b"\x00hi", "headers": [("a", b"1"), ("b", None)], "number": 7},
}


@pytest.mark.parametrize(
    ("table", "text", "rendered"),
    [
        (RPK, r"%t/%p/%o %v\n", b"shop/2/258 \x00hi\n"),
        (RPK, "%V %K %H %i %e %T", b"3 -1 2 7 0 4"),
        (RPK, "%v{hex} %v{base64}", b"006869 AGhp"),
        (RPK, "%o{big32}%o{little16}%p{big8}%o{hex}", b"\0\0\1\2\2\1\x02102"),
        (RPK, "%d %d{strftime[%Y-%m-%d]}", b"1700000000000 2023-11-14"),
        (RPK, r"%%%{%}\x41\t\\", b"%{}A\t\\"),
        (RPK, "[%k] %h", b"[NULL] a=1,b="),
        (KCAT, r"%s %S %T %h\r", b"\x00hi 3 1700000000000 a=1,b=\r"),
        (KCAT, "%R", b"\0\0\0\3"),
    ],
)
def test_formats_are_rendered(table: Any, text: str, rendered: bytes) -> None:
    assert compile_format(text, table, b"NULL").render(ROW) == rendered


@pytest.mark.parametrize("timestamp_ms", [(1 << 63) - 1, -(1 << 63), 253_402_300_800_000])
def test_a_time_that_no_calendar_has_is_rendered_as_its_number(timestamp_ms: int) -> None:
    rendered = compile_format("%d{strftime[%Y]}", RPK).render({**ROW, "timestamp_ms": timestamp_ms})
    assert rendered == str(timestamp_ms).encode()
    assert moment(timestamp_ms) == str(timestamp_ms)
    assert moment(0) == "1970-01-01 00:00:00"


@pytest.mark.parametrize("text", ["%z", "%", "\\", "%v{big32}", "%o{base64}", "%v{nothing}"])
def test_a_wrong_format_is_refused_before_anything_is_read(text: str) -> None:
    with pytest.raises(InvalidRequest):
        compile_format(text, RPK)


@pytest.mark.parametrize("offsets", [":end", "0:end"])
@pytest.mark.parametrize("name", ["frame", "keratin"])
def test_a_loss_in_front_of_everything_is_told(
    tmp_path: Path, lamina: Any, offsets: str, name: str
) -> None:
    data = tmp_path / "data"
    with library.open(str(data)) as store:
        store.create_topic("t", format=name)
        for _ in range(2):
            store.append("t", [b"a", b"b"])
            store.roll("t")
    for gone in data.rglob(f"{0:020}.*"):
        gone.unlink()
    ran = lamina("topic", "consume", "t", "--offset", offsets, "--data", data)
    assert [json.loads(line)["offset"] for line in ran.out.splitlines()] == [2, 3]
    assert "offsets 0 to 2 (lost)" in ran.err
