"""Arguments are held to the annotations: each rule at its bounds, and how a call uses them."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina import arguments
from lamina.arguments import TypedCalls, rule_of, typed_calls
from lamina.errors import InvalidRequest, StorageFull, Unavailable

MAX = (1 << 63) - 1

TAKEN: list[tuple[Callable[..., Any], Any, Any]] = [
    (arguments.text, "", ""),
    (arguments.text, "é", "é"),
    (arguments.whole, MAX, MAX),
    (arguments.whole, -MAX - 1, -MAX - 1),
    (arguments.whole, np.int32(7), 7),
    (arguments.whole, np.uint64(MAX), MAX),
    (arguments.unsigned, 0, 0),
    (arguments.unsigned, MAX, MAX),
    (arguments.unsigned, MAX + 1, MAX + 1),
    (arguments.unsigned, 2 * MAX + 1, 2 * MAX + 1),
    (arguments.unsigned, np.int8(3), 3),
    (arguments.seconds, 3, 3.0),
    (arguments.seconds, 0.5, 0.5),
    (arguments.seconds, math.inf, arguments.WAIT_S_MAX),
    (arguments.seconds, -math.inf, -arguments.WAIT_S_MAX),
    (arguments.location, "a/b", "a/b"),
    (arguments.location, Path("/srv"), "/srv"),
    (arguments.count, 1, 1),
    (arguments.count, "17", 17),
    (arguments.count, "9" * 18, 10**18 - 1),
    (arguments.flag, False, False),
    (arguments.raw, b"", b""),
    (arguments.mapping, {"a": 1}, {"a": 1}),
    (arguments.isolation, "durable", "durable"),
    (arguments.isolation, "written", "written"),
    (arguments.many(arguments.whole), [1, np.int8(2)], [1, 2]),
    (arguments.many(arguments.whole), (n for n in (3, 4)), [3, 4]),
    (arguments.many(arguments.text), {"a"}, ["a"]),
]
REFUSED: list[tuple[Callable[..., Any], Any, str]] = [
    (arguments.text, 7, "x must be text, not 7"),
    (arguments.text, b"a", "x must be text"),
    (arguments.text, "\ud800", "x is not valid text"),
    (arguments.whole, True, "x must be a whole number, not True"),
    (arguments.whole, 1.0, "x must be a whole number, not 1.0"),
    (arguments.whole, "1", "x must be a whole number, not '1'"),
    (arguments.whole, np.array([1, 2]), "x must be a whole number, not a ndarray"),
    (arguments.whole, MAX + 1, "x must fit into 64 bits"),
    (arguments.whole, -MAX - 2, "x must fit into 64 bits"),
    (arguments.unsigned, -1, "x must be 0 or more, not -1"),
    (arguments.unsigned, 2 * MAX + 2, "x must fit into 64 bits"),
    (arguments.unsigned, 1.5, "x must be a whole number"),
    (arguments.seconds, math.nan, "x must be a number of seconds, not nan"),
    (arguments.seconds, True, "x must be a number of seconds, not True"),
    (arguments.seconds, "1", "x must be a number of seconds"),
    (arguments.location, 7, "x must be a path or a URL, not 7"),
    (arguments.location, "", "x must be a path or a URL, not ''"),
    (arguments.location, "a\0b", "x must be a path or a URL"),
    (arguments.count, 0, "x must be 1 or more, not 0"),
    (arguments.count, "0", "x must be 1 or more, not 0"),
    (arguments.count, "9" * 19, "x must be a whole number"),
    (arguments.count, "1.5", "x must be a whole number"),
    (arguments.count, "٣", "x must be a whole number"),
    (arguments.flag, 1, "x must be True or False, not 1"),
    (arguments.raw, "a", "x must be bytes, not 'a'"),
    (arguments.mapping, [("a", 1)], "x must be a mapping of settings"),
    (arguments.mapping, {7: 1}, "a key of x must be text, not 7"),
    (arguments.isolation, "dirty", "x must be 'durable' or 'written', not 'dirty'"),
    (arguments.isolation, 1, "x must be 'durable' or 'written', not 1"),
    (arguments.many(arguments.whole), "12", "x must be a list, not '12'"),
    (arguments.many(arguments.whole), b"12", "x must be a list"),
    (arguments.many(arguments.whole), {1: 2}, "x must be a list, not a dict"),
    (arguments.many(arguments.whole), 7, "x must be a list, not 7"),
    (arguments.many(arguments.whole), np.array(7), "x must be a list, not a ndarray"),
    (arguments.many(arguments.whole), [1, "2"], "an item of x must be a whole number, not '2'"),
]


@pytest.mark.parametrize(("rule", "given", "taken"), TAKEN)
def test_what_a_rule_allows_becomes_pythons_own(rule: Any, given: Any, taken: Any) -> None:
    found = rule("x", given)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(("rule", "given", "why"), REFUSED)
def test_anything_else_is_refused_by_its_name(rule: Any, given: Any, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rule("x", given)
    assert str(caught.value).startswith(why)


def test_a_setting_may_begin_above_one() -> None:
    assert arguments.count("x", 0, least=0) == 0
    with pytest.raises(InvalidRequest, match="5 or more, not 4"):
        arguments.count("x", 4, least=5)


def test_a_wait_is_seconds_that_clocks_can_count() -> None:
    assert arguments.wait_s(1500) == 1.5
    assert arguments.wait_s(1 << 80) == arguments.WAIT_S_MAX


def test_a_huge_or_long_value_is_refused_in_few_words() -> None:
    for value in ("x" * 5000, 10**6000, object()):
        with pytest.raises(InvalidRequest) as caught:
            arguments.raw("x", value)
        assert len(str(caught.value)) < 200


# -------------------------------------------------------------------- annotations


def test_an_annotation_has_its_rule() -> None:
    assert rule_of("int", {}) is arguments.whole
    assert rule_of("str | None", {}) is not None
    for without in ("Any", "int | Any", "None", int, "list[int]"):
        assert rule_of(without, {}) is None
    more = {"Topic": arguments.text}
    assert rule_of("Topic", more) is arguments.text
    assert rule_of("Topic", {}) is None


def test_none_is_taken_only_where_it_is_named() -> None:
    optional, required = rule_of("int | None", {}), rule_of("int", {})
    assert optional is not None
    assert required is not None
    assert optional("x", None) is None
    assert optional("x", 7) == 7
    for rule, value in ((required, None), (optional, "7")):
        with pytest.raises(InvalidRequest):
            rule("x", value)


def test_one_of_several_rules_is_enough_and_all_say_why_not() -> None:
    either = rule_of("int | str | bytes", {})
    assert either is not None
    assert [either("x", each) for each in (1, "a", b"b")] == [1, "a", b"b"]
    with pytest.raises(InvalidRequest) as caught:
        either("x", 1.5)
    assert str(caught.value) == (
        "x must be a whole number, not 1.5; x must be text, not 1.5; x must be bytes, not 1.5"
    )


# -------------------------------------------------------------------- calls


@pytest.fixture
def store() -> Any:
    """A store of no records, which gives back what it is given."""

    class Store(TypedCalls, rules={"Topic": arguments.location}, leave=("free",)):
        def fetch(self, topic: str, partition: int = 0, *, limit: int | None = None) -> Any:
            return topic, partition, limit

        def several(self, *names: Any, **more: int) -> Any:
            return names, more

        def place(self, at: Topic) -> Any:  # type: ignore[name-defined]  # noqa: F821
            return at

        def free(self, number: int) -> Any:
            return number

        def fails(self, code: int) -> None:
            raise OSError(code, "refused")

        def _inner(self, number: int) -> Any:
            return number

    return Store()


def test_arguments_are_checked_by_position_and_by_name(store: Any) -> None:
    assert store.fetch("t", 3) == ("t", 3, None)
    assert store.fetch("é", np.int16(3), limit=np.int16(2)) == ("é", 3, 2)
    assert type(store.fetch("t", np.int16(3))[1]) is int
    assert store.fetch(topic="t", partition=np.int8(1)) == ("t", 1, None)
    refused: list[Callable[[], Any]] = [
        lambda: store.fetch(7),
        lambda: store.fetch("t", "0"),
        lambda: store.fetch("t", True),
        lambda: store.fetch("\ud800"),
        lambda: store.fetch("t", 1 << 64),
        lambda: store.fetch("t", -(1 << 64)),
        lambda: store.fetch("t", limit="1"),
        lambda: store.fetch(topic=b"t"),
        lambda: store.place("a\0b"),
    ]
    for call in refused:
        with pytest.raises(InvalidRequest):
            call()


def test_what_has_no_rule_and_what_is_left_is_not_checked(store: Any) -> None:
    assert store.several(1, "a", x="no rule") == ((1, "a"), {"x": "no rule"})
    assert store.free("text") == "text"
    assert store._inner("text") == "text"
    assert store.place(Path("/a")) == "/a"


def test_a_wrong_call_stays_pythons_own_mistake(store: Any) -> None:
    wrong: list[Callable[[], Any]] = [
        store.fetch,
        lambda: store.fetch("t", 0, 1),
        lambda: store.fetch("t", wrong=1),
        lambda: store.fetch("t", topic="t"),
    ]
    for call in wrong:
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, Unavailable), (errno.ENOSPC, StorageFull)])
def test_what_the_system_refuses_comes_out_typed(
    store: Any, code: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="fails"):
        store.fails(code)


def test_a_class_is_decorated_by_its_public_functions_alone() -> None:
    @typed_calls()
    class Plain:
        number = 7

        def twice(self, many: Iterable[int], config: Mapping[str, Any] | None = None) -> list[int]:
            return [2 * each for each in many]

    assert Plain().twice([1, np.int8(2)]) == [2, 4]
    assert Plain.number == 7
    assert Plain.twice.__name__ == "twice"
    for call in (lambda: Plain().twice("12"), lambda: Plain().twice([], [1])):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            call()
