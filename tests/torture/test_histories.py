"""The judge of histories sees each anomaly, planted by itself into a history without any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lamina_torture.histories import Operation, judge

A, B, C, D = "a0", "a1", "b0", "b1"


def op(kind: str, client: str, at: int, outcome: str = "ok", **more: object) -> Operation:
    return Operation(kind, client, 0, at * 10, at * 10 + 5, outcome, **more)  # type: ignore[arg-type]


SOUND = [
    op("send", "one", 1, values=(A, B), found=((0, A), (1, B))),
    op("end", "three", 2, end=2),
    op("send", "two", 3, values=(C,), found=((2, C),)),
    op("send", "two", 4, "info", values=(D,)),
    op("poll", "three", 5, start=0, found=((0, A), (1, B))),
    op("poll", "three", 6, start=2, found=((2, C),)),
    op("end", "three", 7, end=3),
]
FINAL = {0: {0: A, 1: B, 2: C}}


def rules(history: list[Operation], final: dict[int, dict[int, str]] = FINAL) -> set[str]:
    return {anomaly.rule for anomaly in judge(history, final)}


def changed(number: int, **more: object) -> list[Operation]:
    return [*SOUND[:number], replace(SOUND[number], **more), *SOUND[number + 1 :]]  # type: ignore[arg-type]


def test_a_sound_history_has_none() -> None:
    assert judge(SOUND, FINAL) == []
    assert judge([], {}) == []


def test_an_append_without_an_answer_may_be_there_or_not() -> None:
    assert judge(SOUND, {0: FINAL[0] | {3: D}}) == []


def test_clients_at_once_may_be_told_ends_in_any_order() -> None:
    late = replace(SOUND[1], began_ns=0, ended_ns=1000, end=0)
    assert judge([*SOUND, late], FINAL) == []


PLANTED = {
    "never sent": (SOUND, {0: FINAL[0] | {3: "from nowhere"}}),
    "aborted read": (changed(3, outcome="fail"), {0: FINAL[0] | {3: D}}),
    "inconsistent": (changed(5, found=((2, D),)), FINAL),
    "duplicate": (SOUND, {0: FINAL[0] | {3: A}}),
    "lost write": (SOUND, {0: {0: A, 1: B, 3: D}}),
    "nonmonotonic send": (changed(2, values=(C,), found=((2, C),), client="one"), {0: FINAL[0]}),
    "nonmonotonic poll": (changed(5, start=2, found=((1, B), (2, C))), FINAL),
    "skipped": (changed(4, found=((0, A),)), FINAL),
    "end moved back": (changed(6, end=2), FINAL),
}


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_anomaly_is_seen(rule: str) -> None:
    history, final = PLANTED[rule]
    if rule == "nonmonotonic send":
        history = [*history, op("send", "one", 9, values=("x",), found=((1, "x"),))]
    if rule == "skipped":
        history = [*SOUND[:4], op("poll", "three", 5, start=0, found=((0, A), (2, C)))]
    assert rule in rules(history, final)


def test_a_read_that_is_lost_again_is_seen_without_any_acknowledgement() -> None:
    read = op("poll", "four", 8, start=3, found=((3, D),))
    assert rules([*SOUND, read]) == {"lost write", "end moved back"}


def test_an_end_below_what_was_acknowledged_is_seen_at_the_end_of_all() -> None:
    assert "end moved back" in rules(SOUND, {0: {0: A, 1: B}})


def test_a_batch_that_was_torn_apart_is_seen() -> None:
    torn = changed(0, found=((0, A), (5, B)))
    assert "nonmonotonic send" in rules(torn, {0: {0: A, 5: B, 2: C}})


def test_partitions_are_judged_each_by_itself() -> None:
    other = [replace(each, partition=1) for each in SOUND]
    assert "duplicate" not in rules([*SOUND, *other], {0: FINAL[0], 1: FINAL[0]})
    assert "lost write" in rules([*SOUND, *other], FINAL)


# ---------------------------------------------------------------- appends that are told no offsets

SPARK = [
    *SOUND,
    op("send", "spark", 8, values=("s0", "s1")),
    op("send", "spark", 9, "info", values=("t0",)),
    op("send", "spark", 10, values=("u0", "u1")),
]
SPARK_FINAL = {0: FINAL[0] | {3: "s0", 5: "s1", 6: "u0", 7: "u1"}}


def test_appends_that_are_told_no_offsets_are_looked_for_in_the_end() -> None:
    assert judge(SPARK, SPARK_FINAL) == []
    assert judge(SPARK, {0: SPARK_FINAL[0] | {8: "t0"}}) == []


@pytest.mark.parametrize(
    ("rule", "final"),
    [
        ("lost write", {3: "s0", 6: "u0", 7: "u1"}),
        ("duplicate", {3: "s0", 5: "s1", 6: "u0", 7: "u1", 8: "s0", 9: "s1"}),
        ("nonmonotonic send", {3: "s1", 5: "s0", 6: "u0", 7: "u1"}),
        ("nonmonotonic send", {3: "u0", 4: "u1", 5: "s0", 6: "s1"}),
        ("never sent", {3: "s0", 5: "s1", 6: "u0", 7: "u1", 8: "s2"}),
    ],
    ids=["a row is lost", "a batch is there twice", "rows", "batches", "a row of nobody"],
)
def test_what_is_wrong_with_them_is_seen(rule: str, final: dict[int, str]) -> None:
    assert rule in rules(SPARK, {0: FINAL[0] | final})


def test_parts_of_one_batch_may_lie_in_any_order() -> None:
    parts = [
        replace(SPARK[-1], values=("u0",)),
        replace(SPARK[-1], values=("u1",), began_ns=SPARK[-1].began_ns + 1),
    ]
    mixed = {0: FINAL[0] | {3: "s0", 5: "s1", 6: "u1", 7: "u0"}}
    assert judge([*SPARK[:-1], *parts], mixed) == []


def test_only_values_that_may_be_sent_twice_may_be_there_twice() -> None:
    twice = {0: FINAL[0] | {3: A}}
    assert judge(SOUND, twice, lambda value: value == A) == []
    assert judge(SOUND, twice, lambda value: value == B) != []
