"""The plan of retention: which segments go, and the sentence for each that stays."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.config import NO_LIMIT, TopicSettings
from lamina.log import retention
from lamina.log.layers import Kind, Known, Layer
from lamina.log.retention import WITHIN_LIMITS, Reason, explain, waited_for, who_needs_it

NOW = 1_000_000


def facts(
    first: int,
    end: int,
    size: int = 100,
    newest: int | None = NOW,
    *,
    sealed: bool = True,
    removed: int = 0,
) -> Layer:
    kind = Kind.SEALED if sealed else Kind.ACTIVE
    return Layer(kind, first, end, size, Known(newest_ms=newest), removed)


def settings(**values: Any) -> TopicSettings:
    return TopicSettings(**({"retention_ms": NO_LIMIT} | values))


def plan(pile: list[Layer], waits: Any = None, **values: Any) -> list[tuple[bool, str]]:
    return [(each.goes, each.why) for each in explain(pile, settings(**values), NOW, waits)]


def going(pile: list[Layer], waits: Any = None, **values: Any) -> list[bool]:
    return [goes for goes, _ in plan(pile, waits, **values)]


PILE = [facts(0, 10), facts(10, 20), facts(20, 30), facts(30, 40, sealed=False)]


def test_without_limits_all_stays_and_says_so() -> None:
    stays = (False, "no retention is set")
    assert plan(PILE) == [stays] * 3 + [(False, "it is the active segment")]


@pytest.mark.parametrize(
    ("cap", "gone"), [(400, 0), (399, 0), (301, 0), (300, 1), (299, 1), (200, 2), (100, 3), (1, 3)]
)
def test_a_cap_keeps_at_least_what_it_names(cap: int, gone: int) -> None:
    assert going(PILE, retention_bytes=cap) == [row < gone for row in range(4)]


def test_whoever_straddles_the_cap_says_so() -> None:
    assert plan(PILE, retention_bytes=350)[0] == (
        False,
        "without it less than retention.bytes would be left",
    )
    assert plan(PILE, retention_bytes=400)[0] == (False, WITHIN_LIMITS)
    assert plan(PILE, retention_bytes=290)[0] == (
        True,
        "the partition is 110 bytes over retention.bytes",
    )
    assert (
        plan(PILE, retention_bytes=100)[1][1] == "the partition is 200 bytes over retention.bytes"
    )


def test_a_segment_goes_when_its_newest_record_is_older_than_the_limit() -> None:
    pile = [facts(0, 10, newest=NOW - 501), facts(10, 20, newest=NOW - 500)]
    assert plan(pile, retention_ms=500) == [
        (True, "its newest record is 501 ms old, over retention.ms 500"),
        (False, WITHIN_LIMITS),
    ]


def test_a_segment_without_a_time_or_from_the_future_does_not_age() -> None:
    assert going([facts(0, 10, newest=None)], retention_ms=1) == [False]
    assert going([facts(0, 10, newest=NOW + 99)], retention_ms=1) == [False]


def test_only_the_front_goes_and_never_the_active_segment() -> None:
    old = NOW - 1000
    pile = [facts(0, 10), facts(10, 20, newest=old), facts(20, 30, newest=old, sealed=False)]
    why = "though its newest record is 1000 ms old, over retention.ms 500"
    assert plan(pile, retention_ms=500) == [
        (False, WITHIN_LIMITS),
        (False, f"an older segment stays, {why}"),
        (False, "it is the active segment"),
    ]
    assert going(pile[1:], retention_ms=500) == [True, False]


def test_a_group_is_waited_for_until_it_acked_all_of_a_segment() -> None:
    old = NOW - 1000
    pile = [facts(0, 10, newest=old), facts(10, 20, newest=old)]
    why = "its newest record is 1000 ms old, over retention.ms 500"
    assert plan(pile, {"g": 10}, retention_ms=500) == [
        (True, why),
        (False, f"it waits for group g, though {why}"),
    ]
    assert going(pile, {"g": 9}, retention_ms=500) == [False, False]
    assert going(pile, {"g": 20, "h": 19}, retention_ms=500) == [True, False]


@pytest.mark.parametrize(("age", "needed"), [(600, "g"), (601, None)])
def test_a_group_that_stands_still_is_waited_for_no_longer_than_it_may(
    age: int, needed: str | None
) -> None:
    old = facts(0, 10, newest=NOW - age)
    given = settings(retention_wait_ms=600)
    assert who_needs_it(old, given, NOW, {"g": 9}) == needed
    assert who_needs_it(facts(0, 10, newest=None), given, NOW, {"g": 9}) == "g"
    assert who_needs_it(old, settings(), NOW, {"g": 9}) == "g"
    assert who_needs_it(old, settings(), NOW, {"g": 10}) is None, "it has acked all of it"


def test_a_group_that_is_not_there_yet_has_acked_nothing() -> None:
    given = settings(retention_wait_groups="a,b")
    assert waited_for(given, {"b": 7, "c": 9}) == {"a": 0, "b": 7}
    assert waited_for(settings(), {"b": 7}) == {}


def test_while_the_archive_is_silent_all_stays() -> None:
    found = retention.wait_for_archive(PILE)
    assert [each.layer for each in found] == PILE
    assert not any(each.goes for each in found)


def test_a_cap_of_records_counts_those_that_can_be_read() -> None:
    assert facts(5, 20, removed=4).records == 11
    assert retention.is_beyond_cap(10, 10)
    assert not retention.is_beyond_cap(10, 9)
    assert not retention.is_beyond_cap(0, 0)


# -------------------------------------------------------------------- reasons


OLD = NOW - 1000


@pytest.mark.parametrize(
    ("values", "waits", "reasons"),
    [
        ({}, None, [Reason.NO_LIMITS, Reason.ACTIVE]),
        ({"retention_ms": 500}, None, [Reason.AGE, Reason.ACTIVE]),
        ({"retention_ms": 500}, {"g": 9}, [Reason.AWAITED, Reason.ACTIVE]),
        ({"retention_ms": 2000}, None, [Reason.WITHIN, Reason.ACTIVE]),
        ({"retention_bytes": 100}, None, [Reason.BYTE_CAP, Reason.ACTIVE]),
        ({"retention_bytes": 150}, None, [Reason.STRADDLES, Reason.ACTIVE]),
        ({"retention_bytes": 100, "discard": "new"}, None, [Reason.DISCARDS_NEW, Reason.ACTIVE]),
        ({"retention_ms": 500, "discard": "new"}, None, [Reason.AGE, Reason.ACTIVE]),
        ({"retention_records": 10}, None, [Reason.RECORD_CAP, Reason.ACTIVE]),
        ({"retention_records": 10}, {"g": 9}, [Reason.NO_LIMITS, Reason.ACTIVE]),
        ({"retention_records": 15}, None, [Reason.STRADDLES, Reason.ACTIVE]),
        ({"retention_records": 20}, None, [Reason.NO_LIMITS, Reason.ACTIVE]),
        ({"retention_records": 10, "discard": "new"}, None, [Reason.NO_LIMITS, Reason.ACTIVE]),
        ({"retention_records": 10, "retention_ms": 500}, None, [Reason.AGE, Reason.ACTIVE]),
    ],
)
def test_every_verdict_has_a_reason_that_no_sentence_need_be_read_for(
    values: dict[str, Any], waits: Any, reasons: list[Reason]
) -> None:
    pile = [facts(0, 10, newest=OLD), facts(10, 20, newest=OLD, sealed=False)]
    found = explain(pile, settings(**values), NOW, waits)
    assert [each.reason for each in found] == reasons
    assert [each.goes for each in found] == [each in retention.GOING for each in reasons]
    assert [each.described().goes for each in found] == [each.goes for each in found]


def test_a_layer_behind_one_that_stays_says_so_whatever_it_would_go_by() -> None:
    pile = [facts(0, 10), facts(10, 20, newest=OLD), facts(20, 30, sealed=False)]
    found = explain(pile, settings(retention_ms=500), NOW)
    assert [each.reason for each in found] == [Reason.WITHIN, Reason.BEHIND, Reason.ACTIVE]


def test_local_copies_go_by_their_own_limits_alone() -> None:
    given = settings(retention_records=1, discard="new", local_retention_bytes=100)
    pile = [facts(0, 10), facts(10, 20, sealed=False)]
    found = explain(pile, given.for_local_copies(), NOW)
    assert [each.reason for each in found] == [Reason.BYTE_CAP, Reason.ACTIVE]
    generous = settings(retention_records=1, discard="new").for_local_copies()
    assert explain(pile, generous, NOW)[0].reason is Reason.NO_LIMITS
