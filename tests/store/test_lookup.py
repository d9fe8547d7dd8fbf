"""Topics and partitions by name: found, refused with the names there are, and closed for good."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.errors import Closed, UnknownTopic
from lamina.formats.documents.topic_file import TopicFile
from lamina.store.lookup import Lookup

ORDERS = TopicFile("orders", "keratin", 2, 1, 0)


def lookup() -> Lookup[Any]:
    return Lookup(lambda: {"orders": ORDERS}, lambda about, number: (about.name, number))


def test_topics_and_partitions_are_found_by_name() -> None:
    found = lookup()
    assert found.topics() == {"orders": ORDERS}
    assert found.topic("orders") is ORDERS
    assert found.partition("orders", 1) == ("orders", 1)
    assert found.partitions(ORDERS) == [("orders", 0), ("orders", 1)]


@pytest.mark.parametrize("name", ["payments", "", None, 7, ["orders"]])
def test_a_topic_that_is_not_there_is_unknown(name: Any) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic"):
        lookup().topic(name)
    with pytest.raises(UnknownTopic, match="there is no topic"):
        lookup().partition(name, 0)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_partition_that_is_not_there_is_named_with_those_that_are(number: int) -> None:
    with pytest.raises(UnknownTopic, match=f"has partitions 0 to 1, not {number}"):
        lookup().partition("orders", number)


def test_a_closed_lookup_asks_nothing_any_more() -> None:
    def files() -> dict[str, TopicFile]:
        raise AssertionError("a closed store reads no topics")

    found: Lookup[Any] = Lookup(files, lambda about, number: None)
    found.is_closed = True
    for call in (found.topics, lambda: found.topic("orders"), lambda: found.partition("orders", 0)):
        with pytest.raises(Closed, match="the store is closed"):
            call()
