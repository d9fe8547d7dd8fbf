"""What `lamina doctor` found out about an object store (`proof.json` below the archive's prefix).

    {"version": 1, "proved_ms": …, "problems": ["…", …], "is_trusted": false, "crc32": "…"}

| field      | meaning                                                                |
|------------|------------------------------------------------------------------------|
| proved_ms  | when it was last proved, by the clock of whoever did it                |
| problems   | what the store does not do; empty if it does all that the archive needs |
| is_trusted | its owner writes to it although it has problems, at their own risk     |

Every store that would write to the archive reads it first. Without the file nobody has asked yet.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1

_FIELDS = {"version": int, "proved_ms": int, "problems": list, "is_trusted": bool}


@dataclass(frozen=True, slots=True)
class ArchiveProof:
    """What was found out about an object store, and whether its owner trusts it all the same."""

    proved_ms: int
    problems: tuple[str, ...] = ()
    is_trusted: bool = False


def encode(proof: ArchiveProof) -> bytes:
    """Encodes the file."""
    fields = {"version": VERSION, **asdict(proof), "problems": list(proof.problems)}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> ArchiveProof:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = strict_json.check_sealed(strict_json.parse(buffer), VERSION)
    strict_json.check_fields(fields, "the archive's proof", _FIELDS)
    problems = fields["problems"]
    if any(type(each) is not str or not each for each in problems):
        raise CorruptData("a problem of the archive's proof is not text", expected="texts")
    return ArchiveProof(fields["proved_ms"], tuple(problems), fields["is_trusted"])
