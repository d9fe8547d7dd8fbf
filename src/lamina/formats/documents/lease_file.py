"""Who holds a cluster (`lease.json` below the archive's prefix): replaced, but never deleted.

    {"version": 1, "epoch": 7, "holder": "b1/6f…", "url": "grpc://a:9300", "ttl_ms": 15000,
     "renewals": 41, "is_released": false, "crc32": "…"}

| field       | meaning                                                                           |
|-------------|-----------------------------------------------------------------------------------|
| epoch       | grows by one with each takeover, and never returns to a number that was used      |
| holder      | which process holds it: the identity of its store, and a number drawn at its start |
| url         | where it is served, for clients and for the others                                |
| ttl_ms      | how long nobody else may take it after they have seen it change                   |
| renewals    | how often it was renewed in this epoch                                            |
| is_released | the holder has ended and answers no more: nobody has to wait                      |

No two contents are equal: a tag that is a checksum of the content names one moment, too.
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

_FIELDS = {
    "version": int,
    "epoch": int,
    "holder": str,
    "url": str,
    "ttl_ms": int,
    "renewals": int,
    "is_released": bool,
}


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a cluster, since which takeover, and for how long without a further word."""

    epoch: int
    holder: str
    url: str
    ttl_ms: int
    renewals: int = 0
    is_released: bool = False


def encode(lease: Lease) -> bytes:
    """Encodes the file."""
    fields = {"version": VERSION, **asdict(lease)}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> Lease:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = strict_json.check_sealed(strict_json.parse(buffer), VERSION)
    strict_json.check_fields(fields, "the lease", _FIELDS)
    del fields["version"]
    if not fields["epoch"] or not fields["ttl_ms"] or not fields["holder"]:
        raise CorruptData("the lease names no epoch, no time or nobody", found=str(fields))
    return Lease(**fields)
