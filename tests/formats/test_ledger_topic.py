"""The two sealed JSON files: the ledger of gaps against a model, and the topic's own file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.api import REASONS, Gap
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import ledger, strict_json, topic_file
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.ranges import Ranges

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
GAPS = st.builds(
    lambda first, size, reason, at_ms, detail: Gap(first, first + size, reason, at_ms, detail),
    st.integers(0, 30),
    st.integers(1, 12),
    st.sampled_from(REASONS),
    st.integers(0, 5),
    TEXTS,
)
BIG_GAPS = st.builds(
    lambda bounds, reason: Gap(min(bounds), max(bounds), reason, 1),
    st.sets(st.integers(0, (1 << 63) - 1), min_size=2, max_size=2),
    st.sampled_from(REASONS),
)
LEDGER = (
    Ledger()
    .with_gap(Gap(0, 4096, "retention", 1_700_000_000_000, "older than 7 days"))
    .with_gap(Gap(5000, 5001, "lost", 1_700_000_000_001, "byte 88: bad checksum"))
)
TOPIC = TopicFile(
    name="orders",
    format="keratin",
    partitions=4,
    epoch=2,
    created_ms=1_700_000_000_000,
    settings={"retention.ms": 86_400_000, "message.timestamp.type": "CreateTime"},
)


def of(gaps: list[Gap]) -> Ledger:
    result = Ledger()
    for gap in gaps:
        result = result.with_gap(gap)
    return result


# ---------------------------------------------------------------- gaps


@settings(max_examples=200)
@given(st.lists(GAPS, max_size=12))
def test_a_ledger_is_a_map_from_offset_to_the_last_reason_given(gaps: list[Gap]) -> None:
    model: dict[int, str] = {}
    for gap in gaps:
        model |= dict.fromkeys(range(gap.first, gap.end), gap.reason)
    found = of(gaps)
    for offset in range(45):
        gap_there = found.at(offset)
        assert (gap_there.reason if gap_there else None) == model.get(offset)
    assert sum(gap.end - gap.first for gap in found.gaps) == len(model)
    for before, after in pairwise(found.gaps):
        assert before.end < after.first or (
            before.end == after.first and before.reason != after.reason
        ), "neighbours with the same reason are one"


@given(st.lists(GAPS, max_size=8), GAPS, st.sampled_from(REASONS))
def test_a_reason_is_exchanged_only_where_it_is_the_old_one(
    gaps: list[Gap], new: Gap, old: str
) -> None:
    found = of(gaps)
    model = {at: gap.reason for gap in found.gaps for at in range(gap.first, gap.end)}
    turned = found.turned(old, [new])
    for offset, reason in model.items():
        is_turned = reason == old and new.first <= offset < new.end
        gap_there = turned.at(offset)
        assert gap_there is not None
        assert gap_there.reason == (new.reason if is_turned else reason)
    assert sum(gap.end - gap.first for gap in turned.gaps) == len(model)


@given(st.lists(GAPS, max_size=8), st.integers(0, 45), st.integers(0, 45))
def test_what_no_gap_speaks_of_is_the_rest_of_a_range(
    gaps: list[Gap], first: int, end: int
) -> None:
    found = of(gaps)
    parts = found.unexplained(first, end)
    assert all(start < stop for start, stop in parts)
    rest = [offset for start, stop in parts for offset in range(start, stop)]
    assert rest == [offset for offset in range(first, end) if found.at(offset) is None]


@given(st.lists(GAPS, max_size=8), st.integers(0, 30), st.integers(1, 12))
def test_what_is_here_again_is_neither_lost_nor_archived(
    gaps: list[Gap], first: int, count: int
) -> None:
    before = of(gaps)
    found = before.found_again([(first, first + count)])
    for offset in range(45):
        known, now = before.at(offset), found.at(offset)
        is_here = known is not None and known.reason in ("lost", "archived")
        if is_here and first <= offset < first + count:
            assert now is None
        else:
            assert (now and now.reason) == (known and known.reason)


@given(st.lists(GAPS, max_size=8), st.integers(0, 45), st.integers(0, 45))
def test_the_gaps_of_a_range_are_those_with_an_offset_in_it(
    gaps: list[Gap], first: int, end: int
) -> None:
    found = of(gaps)
    touching = tuple(
        gap for gap in found.gaps if any(first <= each < end for each in range(gap.first, gap.end))
    )
    assert found.between(first, end) == touching


@given(st.lists(GAPS, max_size=6), st.sets(st.sampled_from(REASONS)))
def test_the_offsets_of_some_reasons_are_a_set_of_ranges(
    gaps: list[Gap], reasons: set[str]
) -> None:
    known = Ledger()
    for gap in gaps:
        known = known.with_gap(gap)
    offsets = {
        offset for first, end in known.ranges(*reasons).pairs() for offset in range(first, end)
    }
    reason_of = {offset: known.at(offset) for offset in range(50)}
    assert offsets == {each for each, gap in reason_of.items() if gap and gap.reason in reasons}
    others = known.ranges_but(*reasons)
    assert len(others.common(known.ranges(*reasons))) == 0
    every = {offset for gap in known.gaps for offset in range(gap.first, gap.end)}
    assert {each for span in others.pairs() for each in range(*span)} == every - offsets


def test_deleted_records_are_gaps_of_a_ledger() -> None:
    deleted = Ranges.of([(3, 5), (9, 10)])
    known = Ledger(tuple(ledger.deleted_gaps(deleted)))
    assert [(gap.first, gap.end, gap.reason) for gap in known.gaps] == [
        (3, 5, "deleted"),
        (9, 10, "deleted"),
    ]
    assert known.ranges(ledger.DELETED).pairs() == deleted.pairs()


def test_joined_gaps_keep_the_time_and_the_detail_of_the_later_one() -> None:
    joined = of([Gap(0, 5, "trim", 10, "first"), Gap(5, 9, "trim", 20, "second")])
    assert joined.gaps == (Gap(0, 9, "trim", 20, "second"),)


def test_a_gap_in_the_middle_of_another_splits_it() -> None:
    split = of([Gap(0, 9, "retention", 1), Gap(3, 5, "lost", 2)])
    assert [(gap.first, gap.end, gap.reason) for gap in split.gaps] == [
        (0, 3, "retention"),
        (3, 5, "lost"),
        (5, 9, "retention"),
    ]


@pytest.mark.parametrize(
    ("first", "end", "reason"), [(5, 5, "lost"), (6, 5, "lost"), (-1, 5, "lost"), (0, 1, "other")]
)
def test_a_gap_that_makes_no_sense_is_refused(first: int, end: int, reason: str) -> None:
    with pytest.raises(ValueError, match="a gap"):
        Gap(first, end, reason, 0)


def test_a_range_from_an_offset_to_itself_touches_no_gap() -> None:
    assert of([Gap(0, 9, "lost", 1)]).between(5, 5) == ()


# ---------------------------------------------------------------- bytes


@given(st.lists(st.one_of(GAPS, BIG_GAPS), max_size=6))
def test_a_ledger_comes_back_as_it_was_written(gaps: list[Gap]) -> None:
    made = of(gaps)
    assert ledger.decode(ledger.encode(made)) == made


@given(
    st.builds(
        TopicFile,
        name=TEXTS,
        format=st.sampled_from(["keratin", "frame", "wal"]),
        partitions=st.integers(1, 1000),
        epoch=st.integers(1, 1 << 62),
        created_ms=st.integers(0, 1 << 62),
        deleted=st.booleans(),
        settings=st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.booleans())),
    )
)
def test_a_topic_comes_back_as_it_was_written(made: TopicFile) -> None:
    assert topic_file.decode(topic_file.encode(made)) == made


def test_the_bytes_of_a_ledger_are_these() -> None:
    """The checksum is zlib's, of the fields as the page says; worked out apart from our code."""
    assert ledger.encode(of([Gap(0, 2, "trim", 7, "é")])) == (
        b'{"version": 1, "gaps": [\n'
        b'{"first": 0, "end": 2, "reason": "trim", "at_ms": 7, "detail": "\\u00e9"}\n'
        b'], "crc32": "d447141f"}\n'
    )


Case = tuple[Callable[[bytes], Any], bytes]
FILES: dict[str, Case] = {
    "ledger": (ledger.decode, ledger.encode(LEDGER)),
    "empty ledger": (ledger.decode, ledger.encode(Ledger())),
    "topic": (topic_file.decode, topic_file.encode(TOPIC)),
}


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_every_single_byte_change_is_detected_or_harmless(case: Case) -> None:
    decode, data = case
    whole = decode(data)
    drawn = random.Random(7)
    detected = 0
    for position in range(len(data)):
        for value in {*b'0129ef"\\,:{}[] \n', data[position] ^ 0x20, *drawn.randbytes(12)}:
            damaged = bytearray(data)
            damaged[position] = value
            try:
                assert decode(bytes(damaged)) == whole, f"byte {position} became {value:#x}"
            except CorruptData:
                detected += 1
    assert detected > 10 * len(data)


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_every_prefix_is_refused(case: Case) -> None:
    decode, data = case
    for size in range(len(data.rstrip())):
        with pytest.raises(CorruptData):
            decode(data[:size])


def sealed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A file with other fields and a seal that fits them: what a wrong writer would make."""
    document = json.loads(data)
    document.pop("crc32")
    change(document)
    return json.dumps(document | {"crc32": strict_json.seal(document)}).encode()


WRONG = [True, False, None, -1, 1 << 63, 1.0, 1.5, "1", "", [], [1], {}, {"a": 1}]


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("field", ["name", "partitions", "epoch", "deleted", "settings"])
def test_a_topic_field_of_another_type_is_refused_saying_what_it_should_be(
    field: str, value: Any
) -> None:
    kind = type(getattr(TOPIC, field))
    data = sealed(topic_file.encode(TOPIC), lambda document: document.update({field: value}))
    if type(value) is kind and (kind is not int or 0 <= value < 1 << 63):
        assert getattr(topic_file.decode(data), field) == value
        return
    with pytest.raises(CorruptData, match=rf"'{field}' of the topic.*expected (a|true)"):
        topic_file.decode(data)


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("field", ["first", "end", "at_ms", "reason", "detail"])
def test_a_ledger_field_of_another_type_is_refused(field: str, value: Any) -> None:
    data = sealed(
        ledger.encode(LEDGER), lambda document: document["gaps"][0].update({field: value})
    )
    if field == "detail" and isinstance(value, str):
        assert ledger.decode(data).gaps[0].detail == value
        return
    with pytest.raises(CorruptData):
        ledger.decode(data)


@pytest.mark.parametrize("gap", [None, 5, True, "gap", [], {}, [["first", 0]]], ids=repr)
def test_a_gap_that_is_no_object_is_refused(gap: Any) -> None:
    with pytest.raises(CorruptData, match="gap 0"):
        ledger.decode(
            sealed(ledger.encode(Ledger()), lambda document: document["gaps"].append(gap))
        )


def test_gaps_that_overlap_or_are_unsorted_are_refused() -> None:
    turned = sealed(ledger.encode(LEDGER), lambda document: document["gaps"].reverse())
    with pytest.raises(CorruptData, match="sorted"):
        ledger.decode(turned)


@pytest.mark.parametrize("field", ["partitions", "epoch"])
def test_a_topic_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(CorruptData, match="count from 1"):
        topic_file.decode(
            sealed(topic_file.encode(TOPIC), lambda document: document.update({field: 0}))
        )


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_a_newer_version_is_refused_as_such_whatever_else_it_holds(case: Case) -> None:
    decode, _ = case
    with pytest.raises(NewerFormat):
        decode(b'{"version": 2, "new": true}')
    fields = {"version": 2, "new": True}
    sound = fields | {strict_json.SEAL: strict_json.seal(fields)}
    with pytest.raises(NewerFormat):
        decode(json.dumps(sound).encode())
    with pytest.raises(CorruptData) as refused:
        decode(json.dumps(sound | {"new": False}).encode())
    assert not isinstance(refused.value, NewerFormat)


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_a_flipped_bit_of_the_version_is_damage(case: Case) -> None:
    decode, data = case
    at = data.index(b'"version": 1') + 11
    for bit in range(8):
        hurt = bytearray(data)
        hurt[at] ^= 1 << bit
        with pytest.raises(CorruptData) as refused:
            decode(bytes(hurt))
        assert not isinstance(refused.value, NewerFormat)


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff", b'{"version": true}', b'{"version": 1}', b"NaN",
     b'{"version": 1, "version": 1}', b"[" * 100_000],
    ids=lambda data: repr(data)[:30],
)  # fmt: skip
def test_other_json_and_no_json_is_refused(case: Case, data: bytes) -> None:
    decode, _ = case
    with pytest.raises(CorruptData):
        decode(data)


def test_a_missing_and_an_unknown_field_are_refused() -> None:
    with pytest.raises(CorruptData, match="no 'epoch'"):
        topic_file.decode(sealed(topic_file.encode(TOPIC), lambda document: document.pop("epoch")))
    with pytest.raises(CorruptData, match="unknown field"):
        topic_file.decode(
            sealed(topic_file.encode(TOPIC), lambda document: document.update(extra=1))
        )


def test_topic_ids_are_kept_one_for_each_partition() -> None:
    topic = TopicFile("w", "wal", partitions=2, epoch=1, created_ms=5, topic_ids=[7, 9])
    assert topic_file.decode(topic_file.encode(topic)) == topic
    assert b"topic_ids" not in topic_file.encode(TOPIC)
    with pytest.raises(ValueError, match="one topic id"):
        TopicFile("w", "wal", partitions=2, epoch=1, created_ms=5, topic_ids=[7])
