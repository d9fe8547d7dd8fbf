"""Values that hold the bytes of records: damage around them makes no record of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.api import Gap
from lamina.config import WriterSettings
from lamina.formats.documents import topic_file
from lamina.formats.log_format import CODECS
from lamina.formats.scan import Limit
from lamina.formats.wal import log as wal_log
from lamina.records import prepare
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.log.test_unread_pages import contents

NEVER_MS = 1 << 30
QUIET = WriterSettings(flush_ms=NEVER_MS)
FORGED = b"forged " * 9


def opened(path: Path, kind: str = "writer") -> Any:
    if kind == "read-only":
        return ReadOnlyStore(str(path))
    return Store(str(path), tick_ms=NEVER_MS, writer=QUIET)


def forged(path: Path, format_name: str, offset: int) -> bytes:
    """A sound record of this offset, as somebody may put it into a value."""
    batch = prepare([FORGED], format_name, now_ms=1)
    if format_name != "wal":
        return CODECS[format_name].encode(batch, offset)[0].tobytes()
    about = topic_file.decode((path / "topics/t/topic.json").read_bytes())
    topic_id = about.topic_ids[0]
    whole = wal_log.encode(batch, topic_id=topic_id, base_sequence=offset, durable=True)
    return whole[0].tobytes()


def filled(path: Path, format_name: str, tier: str, rows: int) -> None:
    """A log whose record 4 holds forged ones of the offsets that follow it."""
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        first = store.append("t", [b"0"], partition=0).base_offset
        store.append("t", [b"%d" % row for row in range(1, 4)], partition=0)
        inside = b"".join(forged(path, format_name, first + row) for row in (4, 5, 6, 90))
        store.append("t", [b"<" + inside + b">"], partition=0)
        if rows > 5:
            store.append("t", [b"%d" % row for row in range(5, rows)], partition=0)
        if tier == "sealed":
            store.roll("t")
            store.append("t", [b"%d" % rows], partition=0)


def flip(path: Path, wanted: bytes, behind: int) -> None:
    """Flips a bit near the one place below a directory that holds some bytes."""
    for each in sorted(path.rglob("*")):
        data = bytearray(each.read_bytes()) if each.is_file() else bytearray()
        while (at := data.find(wanted)) >= 0:
            data[at + behind] ^= 4
            each.write_bytes(data)


@pytest.mark.parametrize("kind", ["writer", "read-only"])
@pytest.mark.parametrize("rows", [5, 9])
@pytest.mark.parametrize("tier", ["active", "sealed"])
@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
def test_a_record_inside_of_a_damaged_one_is_never_served(
    tmp_path: Path, format_name: str, tier: str, rows: int, kind: str
) -> None:
    filled(tmp_path, format_name, tier, rows)
    flip(tmp_path, b"<" + forged(tmp_path, format_name, 4 + (format_name == "wal"))[:20], 0)
    total = rows + (tier == "sealed")
    for _ in range(2):
        with opened(tmp_path, kind) as store:
            found, gaps = contents(store)
            first = min(found)
            assert FORGED not in found.values()
            expected = {first + row: b"%d" % row for row in range(total) if row != 4}
            assert found == expected
            assert all(gap.first == first + 4 and gap.end == first + 5 for gap in gaps)


@pytest.mark.parametrize("kind", ["writer", "read-only"])
@pytest.mark.parametrize("tier", ["active", "sealed"])
@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_record_behind_one_of_older_times_is_served(
    tmp_path: Path, format_name: str, tier: str, kind: str
) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"%d" % row for row in range(8)], partition=0)
        if tier == "sealed":
            store.roll("t")
            store.append("t", [b"8"], partition=0)
    path = tmp_path / "topics/t/0/segments" / f"{0:020}.log"
    data, codec = path.read_bytes(), CODECS[format_name]
    where = codec.scan(data, codec.header_bytes, expected_offset=None, limit=Limit())
    starts = where.positions.tolist()
    stale = data[starts[1] : starts[2]]
    path.write_bytes(data[: starts[5]] + stale + data[starts[5] :])
    for _ in range(2):
        with opened(tmp_path, kind) as store:
            found, gaps = contents(store)
            assert found == {row: b"%d" % row for row in range(8 + (tier == "sealed"))}
            assert gaps == list[Gap]()
