"""Where a store's cold directory is (`meta/cold.json`), so that it is named only once.

    {"version": 1, "path": "/slow/cold", "data": "/srv/data", "crc32": "…"}

`path` is the absolute path of the cold directory. `data` is that of the data directory when this
was written: in a copy of the directory, `path` still names the cold directory of the original.

Written before the first segment moves there. If the file is lost, the cold directory has to be
named again: until then what lies in it is called lost. A damaged one keeps a store from opening
without that name.
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

_FIELDS = {"version": int, "path": str, "data": str}


@dataclass(frozen=True, slots=True)
class ColdLocation:
    """Where a cold directory is, and which data directory's."""

    path: str
    data: str


def encode(location: ColdLocation) -> bytes:
    """Encodes the file."""
    fields = {"version": VERSION, **asdict(location)}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> ColdLocation:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = strict_json.check_sealed(strict_json.parse(buffer), VERSION)
    strict_json.check_fields(fields, "the cold directory's location", _FIELDS)
    if not fields["path"] or not fields["data"]:
        raise CorruptData("the cold directory's location is empty", expected="a path", found="''")
    return ColdLocation(fields["path"], fields["data"])
