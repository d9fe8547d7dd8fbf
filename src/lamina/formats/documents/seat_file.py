"""Under which epoch of its cluster a data directory was served last (`meta/seat.json`).

    {"version": 1, "epoch": 7, "state": "serving", "crc32": "…"}

| state    | meaning                                                                               |
|----------|---------------------------------------------------------------------------------------|
| mounting | the directory is being made from the archive and the windows: what is there is a part |
| serving  | it was served, and may hold what was never shipped                                    |
| shipped  | it was closed when everything in it was shipped                                       |

It is written before the first record of its epoch is. A directory of the last epoch goes on where
it was; what one of an earlier epoch holds beyond the cluster's log is another history.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
MOUNTING: Final = "mounting"
SERVING: Final = "serving"
SHIPPED: Final = "shipped"
_STATES = (MOUNTING, SERVING, SHIPPED)
_FIELDS = {"version": int, "epoch": int, "state": str}


@dataclass(frozen=True, slots=True)
class SeatFile:
    """The epoch under which a directory was served last, and how that ended."""

    epoch: int
    state: str


def encode(seat: SeatFile) -> bytes:
    """Encodes the file."""
    fields = {"version": VERSION, **asdict(seat)}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> SeatFile:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = strict_json.check_sealed(strict_json.parse(buffer), VERSION)
    strict_json.check_fields(fields, "the seat", _FIELDS)
    if not fields["epoch"] or fields["state"] not in _STATES:
        raise CorruptData("the seat names no epoch, or no known state", found=str(fields))
    return SeatFile(fields["epoch"], fields["state"])
