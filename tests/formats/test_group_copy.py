"""The archive's copy of a group: bytes written by hand, damage, and what no state can be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import group_copy, group_roster, strict_json

BY_HAND = (
    b'{"version": 1, "topic": "orders", "epoch": 2, "created_ms": 1700000000000, "partition": 3,'
    b' "group": "billing", "life": "5b1e", "saved_ms": 1700000000500, "archived_until": 80,'
    b' "acked_until": 96, "acked": [[98, 99], [101, 104]], "leases": [[96, 1700000030000, 2]],'
    b' "crc32": "6a94ba84"}\n'
)


def changed(**fields: Any) -> bytes:
    """A copy with other fields under a seal that fits."""
    document = json.loads(BY_HAND) | fields
    document.pop("crc32")
    return json.dumps(document | {"crc32": strict_json.seal(document)}).encode()


def test_bytes_written_by_hand() -> None:
    copy = group_copy.decode(BY_HAND)
    assert copy.owner == group_copy.Owner("orders", 2, 1700000000000, 3, "billing", "5b1e")
    assert (copy.saved_ms, copy.archived_until, copy.acked_until) == (1700000000500, 80, 96)
    assert copy.acked == [[98, 99], [101, 104]]
    assert copy.leases == [[96, 1700000030000, 2]]
    assert group_copy.encode(copy) == BY_HAND


def test_every_changed_byte_is_damage() -> None:
    for position in range(len(BY_HAND) - 1):
        damaged = bytearray(BY_HAND)
        damaged[position] ^= 1
        try:
            found = group_copy.decode(bytes(damaged))
        except (CorruptData, NewerFormat):
            continue
        assert group_copy.encode(found) == BY_HAND, f"byte {position}: other spaces, nothing else"


@pytest.mark.parametrize(
    "fields",
    [
        {"acked": [[95, 99]]},
        {"acked": [[98, 98]]},
        {"acked": [[101, 104], [98, 99]]},
        {"acked": [[98]]},
        {"acked": [98, 99]},
        {"acked": [[98, 1 << 63]]},
        {"acked": [[True, 99]]},
        {"leases": [[95, 1, 1]]},
        {"leases": [[97, 1, 1], [97, 1, 1]]},
        {"leases": [[97, 1, 0]]},
        {"leases": [[97, -1, 1]]},
        {"life": 5},
        {"more": 1},
    ],
)
def test_what_no_state_can_be_is_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptData):
        group_copy.decode(changed(**fields))


def test_a_newer_version_is_told_from_damage() -> None:
    with pytest.raises(NewerFormat):
        group_copy.decode(changed(version=2))


def test_a_list_of_groups_of_an_earlier_build_knows_no_lives() -> None:
    listed = {"topic": "t", "epoch": 1, "group": "g", "acked_until": [4, 5]}
    fields = {"version": 1, "groups": [listed]}
    (found,) = group_roster.decode(
        json.dumps(fields | {"crc32": strict_json.seal(fields)}).encode()
    )
    assert (found.at(1), found.life(1)) == (5, None)
    fields = {"version": 1, "groups": [listed | {"lives": [7]}]}
    with pytest.raises(CorruptData):
        group_roster.decode(json.dumps(fields | {"crc32": strict_json.seal(fields)}).encode())
