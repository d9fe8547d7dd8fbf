"""Which tails of a cluster may be gone (`tail/boundary.json`). It is moved before they are removed.

    {"version": 1, "first_seq": 912, "epoch": 7, "crc32": "…"}

| field     | meaning                                                                         |
|-----------|---------------------------------------------------------------------------------|
| first_seq | everything in the tails below it is in the archive; it only grows               |
| epoch     | of the lease under which it was last moved                                      |

A slot below `first_seq` is used up, whether an object is there or not: whoever creates one there
has been away for long, and has committed nothing. The empty tails below it, fences, stay for good.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1

_FIELDS = {"version": int, "first_seq": int, "epoch": int}


@dataclass(frozen=True, slots=True)
class TailBoundary:
    """The first tail that is still needed, and the epoch of whoever said so."""

    first_seq: int = 0
    epoch: int = 0


def encode(boundary: TailBoundary) -> bytes:
    """Encodes the file."""
    fields = {"version": VERSION, **asdict(boundary)}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> TailBoundary:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = strict_json.check_sealed(strict_json.parse(buffer), VERSION)
    strict_json.check_fields(fields, "the tails' boundary", _FIELDS)
    return TailBoundary(fields["first_seq"], fields["epoch"])
