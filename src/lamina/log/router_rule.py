"""A router as its users see it: which records of a topic are copied to which other one."""

from __future__ import annotations

from typing import NamedTuple

from lamina.api import RouterInfo
from lamina.errors import InvalidRequest
from lamina.formats.wal.routing import NAME_BYTES_MAX, Match, Router


class Rule(NamedTuple):
    """Which field of a record is compared, and with what."""

    match: Match
    pattern: bytes


def info_of(name: str, source: str, target: str, rule: Router) -> RouterInfo:
    """Describes a router as users see it, from the rule that the WAL has of it."""
    word = {Match.TAG: "tag", Match.TAG_PREFIX: "tag_prefix", Match.NODE: "node"}[rule.match]
    return RouterInfo(name, source, target, **{word: rule.pattern})


def rule_of(tag: bytes | None, tag_prefix: bytes | None, node: bytes | None) -> Rule | None:
    """Makes a rule from a user's arguments; None if there are none."""
    given = [
        Rule(match, pattern)
        for match, pattern in (
            (Match.TAG, tag),
            (Match.TAG_PREFIX, tag_prefix),
            (Match.NODE, node),
        )
        if pattern is not None
    ]
    if len(given) > 1:
        raise InvalidRequest("a router takes exactly one of tag, tag_prefix and node")
    for _, pattern in given:
        if not isinstance(pattern, bytes) or len(pattern) > NAME_BYTES_MAX:
            raise InvalidRequest(f"tags and nodes are bytes, at most {NAME_BYTES_MAX}")
    return given[0] if given else None


def require_name(name: object) -> str:
    """Raises InvalidRequest for what cannot be a router's name."""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise InvalidRequest(f"a router's name is a text of 1 to {NAME_BYTES_MAX} bytes")
    if name == "-":
        raise InvalidRequest("'-' cannot be the name of a router")
    return name
