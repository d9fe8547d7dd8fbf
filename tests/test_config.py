"""Settings: defaults, parsing, and refusing what is unknown or out of range."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.config import NO_LIMIT, Settings, TopicSettings, WriterSettings
from lamina.errors import InvalidRequest

GROUPS = (TopicSettings, WriterSettings)


def values_of(allowed: Any) -> st.SearchStrategy[Any]:
    if isinstance(allowed, re.Pattern):
        return st.from_regex(allowed, fullmatch=True)
    return st.integers(*allowed) if isinstance(allowed[0], int) else st.sampled_from(allowed)


def settings_of(group: type[Settings]) -> st.SearchStrategy[dict[str, Any]]:
    """Any allowed values for any of a group's keys."""
    allowed = {item.metadata["key"]: item.metadata["allowed"] for item in fields(group)}
    values = {key: values_of(range_) for key, range_ in allowed.items()}
    return st.fixed_dictionaries({}, optional=values)


def test_defaults_are_those_of_the_documents() -> None:
    topic = TopicSettings()
    assert (topic.segment_bytes, topic.max_message_bytes) == (64 << 20, 16 << 20)
    assert (topic.retention_ms, topic.retention_bytes) == (NO_LIMIT, NO_LIMIT)
    assert topic.timestamp_type == "CreateTime"
    writer = WriterSettings()
    assert (writer.batch_bytes, writer.batch_records) == (16 << 20, 65_536)
    assert (writer.linger_ms, writer.queue_requests) == (5, 1024)


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_given_is_the_defaults(group: type[Settings]) -> None:
    assert group.parse({}) == group()


def test_numbers_may_be_text_as_on_a_command_line() -> None:
    given_settings = {"retention.ms": "86400000", "segment.bytes": 4096}
    assert TopicSettings.parse(given_settings) == TopicSettings(
        retention_ms=86_400_000, segment_bytes=4096
    )
    assert TopicSettings.parse({"retention.ms": "-1"}).retention_ms == NO_LIMIT


def test_an_update_changes_only_what_it_names() -> None:
    before = TopicSettings(retention_ms=5)
    after = before.updated({"segment.ms": 7})
    assert (after.retention_ms, after.segment_ms) == (5, 7)
    assert before.segment_ms == TopicSettings().segment_ms


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidRequest, match=r"topic setting 'retention\.m'.*'retention\.ms'\?"):
        TopicSettings.parse({"retention.m": 1})


def test_an_unknown_key_near_to_none_is_refused_with_all_known_ones() -> None:
    with pytest.raises(InvalidRequest) as caught:
        WriterSettings.parse({"colour": 1})
    assert all(key in str(caught.value) for key in WriterSettings().as_dict())


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("value", ["soon", "1.5", 1.5, "", None, [1], {}, True, False, b"5"])
def test_a_number_that_is_none_is_refused_naming_the_key(group: type[Settings], value: Any) -> None:
    for item in fields(group):
        if isinstance(item.default, int):
            with pytest.raises(InvalidRequest, match=item.metadata["key"]):
                group.parse({item.metadata["key"]: value})
            with pytest.raises(InvalidRequest, match=item.metadata["key"]):
                group(**{item.name: value})


@pytest.mark.parametrize("group", GROUPS)
def test_the_bounds_of_each_number_are_allowed_and_what_is_beyond_is_not(
    group: type[Settings],
) -> None:
    for item in fields(group):
        if isinstance(item.default, int):
            key, (low, high) = item.metadata["key"], item.metadata["allowed"]
            for value in (low, high):
                assert group.parse({key: value}).as_dict()[key] == value
            for value in (low - 1, high + 1):
                with pytest.raises(InvalidRequest, match=f"{key} must be from {low} to {high}"):
                    group.parse({key: value})


@pytest.mark.parametrize("value", ["createtime", "", None, 1, True, ["CreateTime"]])
def test_a_choice_that_is_not_offered_is_refused_with_the_offer(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="CreateTime, LogAppendTime"):
        TopicSettings.parse({"message.timestamp.type": value})


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_listed_is_parsed_back(group: type[Settings]) -> None:
    @given(settings_of(group))
    def check(drawn: dict[str, Any]) -> None:
        made = group.parse(drawn)
        assert group.parse(made.as_dict()) == made
        assert made.as_dict().items() >= drawn.items()

    check()


@pytest.mark.parametrize("group", GROUPS)
def test_each_setting_is_explained_with_unit_and_consequence(group: type[Settings]) -> None:
    explained = group.explained()
    assert [row["key"] for row in explained] == list(group().as_dict())
    assert {row["key"]: row["default"] for row in explained} == group().as_dict()
    for row in explained:
        assert row["unit"], row
        assert row["consequence"], row


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        TopicSettings().segment_ms = 5  # type: ignore[misc]
