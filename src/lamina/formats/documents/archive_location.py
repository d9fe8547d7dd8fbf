"""Where a data directory's archive is (`meta/archive.json`), so that it is named only once.

    {"version": 1, "url": "s3://bucket/prefix", "crc32": "…"}

`url` is an object store's URL, or the absolute path of a directory. It never holds credentials:
those come from the environment, wherever the archive is opened.

Written when a store is opened for writing with an archive that other processes can reach. If the
file is lost or damaged nothing else is: the next opening that names the archive writes it again.
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

_FIELDS = {"version": int, "url": str}


@dataclass(frozen=True, slots=True)
class ArchiveLocation:
    """Where an archive is."""

    url: str


def encode(location: ArchiveLocation) -> bytes:
    """Encodes the file."""
    fields = {"version": VERSION, **asdict(location)}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> ArchiveLocation:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    strict_json.check_version(document, VERSION)
    fields = strict_json.check_seal(document)
    strict_json.check_fields(fields, "the archive's location", _FIELDS)
    if not fields["url"]:
        raise CorruptData("the archive's location is empty", expected="a URL", found="''")
    return ArchiveLocation(fields["url"])
