"""Which producer ids were given to Kafka's clients (`meta/producers.json`): all below one number.

    {"version": 1, "next": 3000, "crc32": "…"}

Ids are reserved in blocks, so the file is replaced once per block, before the first id of it is
given away. If the file is lost or damaged, ids go on above every one that a partition remembers:
an id that no partition remembers can be assigned again without harm.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
_FIELDS = {"version": int, "next": int}


@dataclass(frozen=True, slots=True)
class Reserved:
    """Every id below `next_id` may have been given away."""

    next_id: int


def encode(reserved: Reserved) -> bytes:
    """Encodes the file."""
    fields = {"version": VERSION, "next": reserved.next_id}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> Reserved:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    strict_json.check_version(document, VERSION)
    fields = strict_json.check_seal(document)
    strict_json.check_fields(fields, "the producers' ids", _FIELDS)
    next_id: int = fields["next"]
    if not 0 <= next_id < 1 << 62:
        raise CorruptData("the next id is out of range", expected="0 to 2^62", found=str(next_id))
    return Reserved(next_id)
