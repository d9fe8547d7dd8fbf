"""Broker identity (`broker.id`): which store a data directory belongs to, across restarts.

Truth: nothing else holds it. Created once, when the directory holds no topics, and never modified.

    {"uuid": "6f1c24de-…", "created_at": "2023-11-14T22:13:20Z", "node_name": "alpha"}

`uuid` is in the usual form of 8-4-4-4-12 hexadecimal digits, `created_at` in ISO 8601 and UTC;
`node_name` is optional.

Awkward cases. The document allows a text or a binary file: Lamina's is JSON. A directory with
topics but without this file raises an error when it is opened; it never gets a new identity.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from lamina.api import BrokerId
from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REQUIRED = {"uuid": str, "created_at": str}
_OPTIONAL = {"node_name": str}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)", re.ASCII)


def encode(broker: BrokerId) -> bytes:
    """Encodes an identity as one line of JSON."""
    created_at = broker.created_at.replace(tzinfo=None).isoformat() + "Z"
    fields = {"uuid": str(broker.uuid), "created_at": created_at}
    if broker.node_name is not None:
        fields["node_name"] = broker.node_name
    return (json.dumps(fields) + "\n").encode()


def decode(buffer: Buffer) -> BrokerId:
    """Decodes an identity; raises CorruptData for what is not exactly one."""
    fields = strict_json.parse(buffer)
    strict_json.check_fields(fields, "the broker id", _REQUIRED, _OPTIONAL)
    if not _UUID.fullmatch(fields["uuid"]):
        raise CorruptData("the uuid is malformed", expected="8-4-4-4-12", found=fields["uuid"])
    return BrokerId(UUID(fields["uuid"]), _time(fields["created_at"]), fields.get("node_name"))


def _time(text: str) -> datetime:
    try:
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass  # the shape is right but there is no such day or hour
    raise CorruptData("created_at is malformed", expected="ISO 8601 in UTC", found=repr(text))
