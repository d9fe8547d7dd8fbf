"""Routers: rules that copy records of a topic to another, and the marks that make copies atomic.

Truth: WAL control frames, and (once those are freed) the snapshot, which holds the same bytes.
All integers little-endian. Every body begins with a version; each is 1.

Router (type 4): a rule begins, changes, or is gone. Every change of any rule has a greater revision
than the one before, so that frames can be replayed in any order: of a name the greatest counts.

    | at | size | field       | type | meaning                                             |
    |----|------|-------------|------|-----------------------------------------------------|
    |  0 |    1 | version     | u8   | 1                                                   |
    |  1 |    1 | match       | u8   | 0 gone, 1 tag, 2 tag prefix, 3 node                 |
    |  2 |    8 | revision    | u64  | grows with every change of any router               |
    | 10 |    8 | source_id   | u64  | id of the source topic's first partition            |
    | 18 |    8 | target_id   | u64  | id of the target topic's first partition            |
    | 26 |    2 | name_len    | u16  | bytes of name, at least 1                           |
    | 28 |    2 | pattern_len | u16  | bytes of pattern                                    |

    followed by: name (UTF-8), pattern (the tag, its beginning, or the node)

RoutedMark (type 9): which frames flagged ROUTED before it, in the same file, count.

    | at | size | field    | type | meaning                                                |
    |----|------|----------|------|--------------------------------------------------------|
    |  0 |    1 | version  | u8   | 1                                                      |
    |  1 |    1 | verdict  | u8   | 1 whole: they count if all of them are sound; 2 void   |
    |  2 |    8 | distance | u64  | bytes from the range's first byte to this frame's first |
    | 10 |    8 | length   | u64  | bytes of the range, at most `distance`                 |

Power loss may keep any part of a group that was not synced. A record and its copies, which are
flagged, therefore count only where a mark of their group confirms that they are whole and nothing
between is damaged, or where a barrier follows: then they had been synced. What does not count is
called void, durably, by the recovery that finds it, before its sequences are given again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.kernels.binary import Layout
from lamina.formats.wal.cursor import Cursor

ROUTER = Layout(
    "<",
    version="u8",
    match="u8",
    revision="u64",
    source_id="u64",
    target_id="u64",
    name_len="u16",
    pattern_len="u16",
)
ROUTED_MARK = Layout(
    "<",
    version="u8",
    verdict="u8",
    distance="u64",
    length="u64",
)
VERSION = 1
NAME_BYTES_MAX = 0xFFFF


class Match(IntEnum):
    """What of a record a router looks at."""

    GONE = 0
    TAG = 1
    TAG_PREFIX = 2
    NODE = 3


class Verdict(IntEnum):
    """What a mark records about flagged frames."""

    WHOLE = 1
    VOID = 2


@dataclass(frozen=True, slots=True)
class Router:
    """One rule, by the ids of its topics' first partitions; `GONE` is one that was deleted."""

    name: str
    revision: int
    match: Match
    source_id: int
    target_id: int
    pattern: bytes = b""


@dataclass(frozen=True, slots=True)
class RoutedMark:
    """The verdict on flagged frames in the `length` bytes that begin `distance` before it."""

    verdict: Verdict
    distance: int
    length: int


def problem_of(body: Router | RoutedMark) -> str | None:
    """Returns what contradicts itself in a body, if anything does."""
    if isinstance(body, RoutedMark):
        return "has a range that reaches beyond it" if body.length > body.distance else None
    if not body.name:
        return "has no name"
    if body.match is Match.GONE and body.pattern:
        return "is gone and has a pattern"
    return None


def encode_router(router: Router) -> bytes:
    """Encodes a rule. Raises InvalidRequest for a name or pattern that is too long."""
    name = router.name.encode()
    if max(len(name), len(router.pattern)) > NAME_BYTES_MAX:
        raise InvalidRequest(f"a router's name and pattern have at most {NAME_BYTES_MAX} bytes")
    head = ROUTER.pack(
        version=VERSION,
        match=router.match,
        revision=router.revision,
        source_id=router.source_id,
        target_id=router.target_id,
        name_len=len(name),
        pattern_len=len(router.pattern),
    )
    return head + name + router.pattern


def decode_router(cursor: Cursor) -> Router:
    """Decodes a rule, as far as its lengths reach. Raises NewerFormat for an unknown match."""
    head = cursor.versioned(ROUTER, VERSION)
    if head["match"] not in list(Match):
        raise NewerFormat(
            "ROUTER body with an unknown match",
            position=ROUTER.at("match"),
            expected="0 to 3",
            found=str(head["match"]),
        )
    name = cursor.text(head["name_len"])
    pattern = cursor.take(head["pattern_len"])
    ids = head["source_id"], head["target_id"]
    return Router(name, head["revision"], Match(head["match"]), *ids, pattern)


def router_of(data: bytes) -> Router:
    """Decodes the bytes of a rule in a snapshot, all of them."""
    cursor = Cursor(data, "router")
    router = decode_router(cursor)
    cursor.finish()
    problem = problem_of(router)
    if problem:
        raise CorruptData(f"a router {problem}")
    return router


def encode_mark(mark: RoutedMark) -> bytes:
    """Encodes a mark."""
    return ROUTED_MARK.pack(
        version=VERSION, verdict=mark.verdict, distance=mark.distance, length=mark.length
    )


def decode_mark(cursor: Cursor) -> RoutedMark:
    """Decodes a mark. Raises NewerFormat for an unknown verdict."""
    head = cursor.versioned(ROUTED_MARK, VERSION)
    if head["verdict"] not in list(Verdict):
        raise NewerFormat(
            "ROUTED_MARK body with an unknown verdict",
            position=ROUTED_MARK.at("verdict"),
            expected="1 or 2",
            found=str(head["verdict"]),
        )
    return RoutedMark(Verdict(head["verdict"]), head["distance"], head["length"])
