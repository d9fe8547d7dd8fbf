"""The roster of a store's groups (`meta/groups.json`): their names, and how far each had acked.

    {"version": 1, "groups": [
    {"topic": "orders", "epoch": 1, "group": "billing", "acked_until": [96, 104],
     "lives": ["5b1e…", "90cc…"]}
    ], "crc32": "…"}

Derived: the truth about a group is in its two files; this one only proves that it existed. With it,
a group whose files are lost is reported, and goes on where it was when the roster was last written.
`epoch` is the topic's: an entry of a deleted topic does not apply to the next one of its name.
`acked_until` has a number per partition, below which everything was acked. `lives` has a text per
partition, which changes with every reset: it tells copies of the group's state elsewhere, and its
dead letters, from those of an earlier life (see `group_copy`). A list by an earlier build has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
_FILE = {"version": int, "groups": list}
_GROUP = {"topic": str, "epoch": int, "group": str, "acked_until": list}
_MORE = {"lives": list}


@dataclass(frozen=True, slots=True)
class Listed:
    """One group, and where it was in each partition."""

    topic: str
    epoch: int
    group: str
    acked_until: list[int]
    lives: list[str] = field(default_factory=list)

    def at(self, partition: int) -> int:
        """Returns below which offset all was acked; 0 for a partition that is not listed."""
        return self.acked_until[partition] if partition < len(self.acked_until) else 0

    def life(self, partition: int) -> str | None:
        """Returns the life of the group in a partition; None if that is not known."""
        return self.lives[partition] or None if partition < len(self.lives) else None


def encode(groups: Iterable[Listed]) -> bytes:
    """Encodes a roster; equal rosters give equal bytes."""
    listed = [asdict(each) for each in sorted(groups, key=lambda each: (each.topic, each.group))]
    seal = strict_json.seal({"version": VERSION, "groups": listed})
    lines = ",\n".join(json.dumps(each) for each in listed)
    return (
        f'{{"version": {VERSION}, "groups": [\n{lines}\n], "{strict_json.SEAL}": "{seal}"}}\n'
    ).encode()


def decode(buffer: Buffer) -> list[Listed]:
    """Decodes a roster; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.check_sealed(strict_json.parse(buffer), VERSION)
    strict_json.check_fields(document, "the roster", _FILE)
    found = []
    for number, value in enumerate(document["groups"]):
        fields = strict_json.as_object(value, f"group {number}")
        strict_json.check_fields(fields, f"group {number}", _GROUP, _MORE)
        if not all(type(each) is int and each >= 0 for each in fields["acked_until"]):
            raise CorruptData(f"group {number} has acked what no offset is")
        if not all(type(each) is str for each in fields.get("lives", ())):
            raise CorruptData(f"group {number} has a life that is not text")
        found.append(Listed(**fields))
    return found
