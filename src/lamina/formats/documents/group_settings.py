"""What was set of share groups by name (`meta/group-settings.json`).

    {"version": 1, "groups": {"billing": {"share.auto.offset.reset": "earliest"}}, "crc32": "…"}

Only what differs from a default is kept. If the file is lost or damaged, the defaults count again:
they decide where a group that is not made yet begins, and how its members keep in touch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
_FIELDS = {"version": int, "groups": dict}


def encode(groups: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Encodes the file: settings, each a number or a text, by group."""
    kept = {name: dict(sorted(groups[name].items())) for name in sorted(groups)}
    fields = {"version": VERSION, "groups": kept}
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> dict[str, dict[str, Any]]:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    strict_json.check_version(document, VERSION)
    fields = strict_json.check_seal(document)
    strict_json.check_fields(fields, "the settings of groups", _FIELDS)
    groups: dict[str, dict[str, Any]] = fields["groups"]
    for name, settings in groups.items():
        is_sound = isinstance(settings, dict) and all(
            type(value) in (int, str) for value in settings.values()
        )
        if not is_sound:
            raise CorruptData(
                f"the settings of group {name!r} are none",
                expected="numbers and texts by key",
                found=repr(settings)[:80],
            )
    return groups
