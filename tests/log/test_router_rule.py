"""What a router may copy by: exactly one of a tag, the beginning of one, and a node."""

from __future__ import annotations

import pytest

from lamina.errors import InvalidRequest
from lamina.formats.wal.routing import NAME_BYTES_MAX, Match
from lamina.log.router_rule import rule_of


def test_what_was_given_is_the_rule() -> None:
    assert rule_of(b"t", None, None) == (Match.TAG, b"t")
    assert rule_of(None, b"p", None) == (Match.TAG_PREFIX, b"p")
    assert rule_of(None, None, b"n" * NAME_BYTES_MAX) == (Match.NODE, b"n" * NAME_BYTES_MAX)
    assert rule_of(None, None, None) is None


def test_two_rules_and_a_long_name_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="exactly one"):
        rule_of(b"t", None, b"n")
    with pytest.raises(InvalidRequest, match="at most"):
        rule_of(b"t" * (NAME_BYTES_MAX + 1), None, None)
