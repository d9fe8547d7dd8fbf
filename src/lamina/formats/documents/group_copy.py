"""The archive's copy of a group's state in one partition (`state/<group>.json` of the partition).

    {"version": 1, "topic": "orders", "epoch": 1, "created_ms": 1700000000000, "partition": 0,
     "group": "billing", "life": "5b1e…", "saved_ms": 1700000000500, "archived_until": 80,
     "acked_until": 96, "acked": [[98, 99], [101, 104]], "leases": [[96, 1700000030000, 2]],
     "crc32": "…"}

Derived: a group's own files are the truth. The copy is used where those are lost, and by a restore
on another machine. One object holds everything, so that it is always the state of one moment:
`saved_ms`. `epoch` and `created_ms` are the topic's.

`acked` are ranges above the frontier `acked_until`, `leases` are (offset, deadline, epoch).

How far a copy can be trusted depends on what has happened since:

| field          | meaning                                                                     |
|----------------|-----------------------------------------------------------------------------|
| life           | made when the group is made, reset, or cut back to its log. While the life  |
|                | is the same, whatever the copy calls acked still is                         |
| archived_until | how much of what the state speaks of was archived then. Those records are   |
|                | the same in every log that was restored from this archive                   |

Rule: a copy that is not exactly one is damage; ranges and leases that no state has are damage too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
_FIELDS = {
    "version": int,
    "topic": str,
    "epoch": int,
    "created_ms": int,
    "partition": int,
    "group": str,
    "life": str,
    "saved_ms": int,
    "archived_until": int,
    "acked_until": int,
    "acked": list,
    "leases": list,
}
_INTEGER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose state a copy holds: a group's in a partition of a topic, in one of its lives."""

    topic: str
    epoch: int
    created_ms: int
    partition: int
    group: str
    life: str


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """A copy. `acked` has rows of (first, end), `leases` rows of (offset, deadline, epoch)."""

    owner: Owner
    saved_ms: int
    archived_until: int
    acked_until: int
    acked: list[list[int]]
    leases: list[list[int]]


def encode(copy: GroupCopy) -> bytes:
    """Encodes a copy."""
    owner = copy.owner
    fields = {
        "version": VERSION,
        "topic": owner.topic,
        "epoch": owner.epoch,
        "created_ms": owner.created_ms,
        "partition": owner.partition,
        "group": owner.group,
        "life": owner.life,
        "saved_ms": copy.saved_ms,
        "archived_until": copy.archived_until,
        "acked_until": copy.acked_until,
        "acked": copy.acked,
        "leases": copy.leases,
    }
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> GroupCopy:
    """Decodes a copy; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = strict_json.check_sealed(strict_json.parse(buffer), VERSION)
    strict_json.check_fields(fields, "the copy", _FIELDS)
    del fields["version"]
    _check_rows(fields, "acked", 2)
    _check_rows(fields, "leases", 3)
    owner = Owner(**{name: fields.pop(name) for name in Owner.__slots__})
    copy = GroupCopy(owner, **fields)
    if not _are_ranges(copy):
        raise CorruptData("'acked' of the copy are not ranges above its frontier")
    if not _are_leases(copy):
        raise CorruptData("'leases' of the copy are none above its frontier")
    return copy


def _check_rows(fields: dict[str, Any], name: str, width: int) -> None:
    """Refuses what is not a list of lists of integers, all of one length."""
    for row in fields[name]:
        if type(row) is not list or len(row) != width:
            raise CorruptData(f"{name!r} of the copy has a wrong row", found=repr(row)[:60])
        if not all(type(each) is int and 0 <= each <= _INTEGER_MAX for each in row):
            raise CorruptData(f"{name!r} of the copy has a wrong number", found=repr(row)[:60])


def _are_ranges(copy: GroupCopy) -> bool:
    """Returns whether ranges lie above the frontier, are not empty, and are sorted."""
    ends = chain([copy.acked_until], (end for _, end in copy.acked))
    apart = all(below <= first for below, (first, _) in zip(ends, copy.acked, strict=False))
    return apart and all(first < end for first, end in copy.acked)


def _are_leases(copy: GroupCopy) -> bool:
    """Returns whether leases are of offsets at or above the frontier, sorted, delivered once."""
    offsets = [offset for offset, _, _ in copy.leases]
    above = not offsets or offsets[0] >= copy.acked_until
    return above and all(a < b for a, b in pairwise(offsets)) and all(row[2] for row in copy.leases)
