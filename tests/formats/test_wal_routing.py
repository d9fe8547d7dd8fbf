"""Rules and marks of routers: the bytes, their bounds, and what contradicts itself."""

from __future__ import annotations

import pytest

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.wal.cursor import Cursor
from lamina.formats.wal.routing import (
    NAME_BYTES_MAX,
    Match,
    RoutedMark,
    Router,
    Verdict,
    decode_mark,
    encode_mark,
    encode_router,
    problem_of,
    router_of,
)
from lamina.log.router_rule import Rule, info_of, require_name, rule_of

RULE = Router("red ones", 7, Match.TAG, 0xA0B, 0xC0D, b"red")


def test_a_rule_is_as_documented() -> None:
    raw = encode_router(RULE)
    assert raw.hex() == (
        "0101" + "0700000000000000" + "0b0a000000000000" + "0d0c000000000000" + "0800" + "0300"
    ) + (b"red onesred".hex())
    assert router_of(raw) == RULE


@pytest.mark.parametrize("match", Match)
def test_every_rule_comes_back(match: Match) -> None:
    pattern = b"" if match is Match.GONE else b"\x00\xff"
    rule = Router("é", (1 << 64) - 1, match, 0, (1 << 64) - 1, pattern)
    assert router_of(encode_router(rule)) == rule


def test_the_longest_name_and_pattern_fit() -> None:
    longest = Router("n" * NAME_BYTES_MAX, 1, Match.NODE, 1, 2, b"p" * NAME_BYTES_MAX)
    assert router_of(encode_router(longest)) == longest
    for name, pattern in (("n" * (NAME_BYTES_MAX + 1), b""), ("n", b"p" * (NAME_BYTES_MAX + 1))):
        with pytest.raises(InvalidRequest, match="at most 65535 bytes"):
            encode_router(Router(name, 1, Match.TAG, 1, 2, pattern))


def test_no_part_of_a_rule_is_one_nor_is_more() -> None:
    raw = encode_router(RULE)
    for part in (*(raw[:end] for end in range(len(raw))), raw + b"\0"):
        with pytest.raises(CorruptData):
            router_of(part)


def test_a_rule_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(CorruptData, match="a router has no name"):
        router_of(encode_router(Router("", 1, Match.TAG, 1, 2, b"x")))
    with pytest.raises(CorruptData, match="is gone and has a pattern"):
        router_of(encode_router(Router("a", 1, Match.GONE, 1, 2, b"x")))
    assert problem_of(Router("a", 1, Match.TAG, 1, 2)) is None


def test_an_unknown_match_or_verdict_is_newer() -> None:
    raw = bytearray(encode_router(RULE))
    raw[1] = 4
    with pytest.raises(NewerFormat, match="unknown match") as caught:
        router_of(bytes(raw))
    assert (caught.value.position, caught.value.found) == (1, "4")
    mark = bytearray(encode_mark(RoutedMark(Verdict.WHOLE, 9, 8)))
    mark[1] = 3
    with pytest.raises(NewerFormat, match="unknown verdict"):
        decode_mark(Cursor(bytes(mark), "mark"))


def test_a_mark_is_as_documented() -> None:
    raw = encode_mark(RoutedMark(Verdict.VOID, 9, 8))
    assert raw.hex() == "0102" + "0900000000000000" + "0800000000000000"
    assert decode_mark(Cursor(raw, "mark")) == RoutedMark(Verdict.VOID, 9, 8)
    assert problem_of(RoutedMark(Verdict.VOID, 9, 9)) is None
    assert problem_of(RoutedMark(Verdict.VOID, 9, 10)) == "has a range that reaches beyond it"


# -------------------------------------------------------------------- what users give


def test_a_rule_is_one_of_three_or_none() -> None:
    assert rule_of(b"t", None, None) == Rule(Match.TAG, b"t")
    assert rule_of(None, b"", None) == Rule(Match.TAG_PREFIX, b"")
    assert rule_of(None, None, b"n") == Rule(Match.NODE, b"n")
    assert rule_of(None, None, None) is None
    with pytest.raises(InvalidRequest, match="exactly one of"):
        rule_of(b"t", b"p", None)


def test_a_pattern_is_bytes_up_to_a_length() -> None:
    assert rule_of(b"t" * NAME_BYTES_MAX, None, None) is not None
    for pattern in (b"t" * (NAME_BYTES_MAX + 1), "text"):
        with pytest.raises(InvalidRequest, match="are bytes, at most"):
            rule_of(pattern, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "é" * (NAME_BYTES_MAX // 2), "n" * NAME_BYTES_MAX, "--"])
def test_a_name_of_a_router_is_taken(name: str) -> None:
    assert require_name(name) == name


@pytest.mark.parametrize("name", ["", "é" * (NAME_BYTES_MAX // 2 + 1), "-", b"a", 7, None])
def test_what_is_no_name_of_a_router_is_refused(name: object) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        require_name(name)


def test_a_rule_is_described_by_what_it_looks_at() -> None:
    found = [
        info_of("r", "a", "b", Router("r", 1, match, 1, 2, b"x"))
        for match in (Match.TAG, Match.TAG_PREFIX, Match.NODE)
    ]
    assert [(each.tag, each.tag_prefix, each.node) for each in found] == [
        (b"x", None, None),
        (None, b"x", None),
        (None, None, b"x"),
    ]
