"""Pages of a wal topic's segments that the device does not deliver: nothing is decided by them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lamina.config import WalSettings
from lamina.errors import UNREADABLE, Unavailable
from lamina.storage.bad_pages import PAGE_BYTES
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import contents, looked_at, opened

BIG = WalSettings(shards=1, wal_bytes=1 << 12, segment_events=24)
RECORDS = 60
ROWS = [b"%03d" % number + bytes([number]) * 500 for number in range(RECORDS)]
SPANS = ((1, 25), (25, 49), (49, 61))
"""The sequences of the three segments: the last one may still grow."""


def made(*, purged: bool = True) -> SimulatedFiles:
    files = SimulatedFiles()
    with opened("/data", BIG, files=files) as store:
        store.create_topic("t", format="wal")
        for first in range(0, RECORDS, 12):
            store.append("t", ROWS[first : first + 12])
        store.purge_wal() if purged else store.maintain()
    return files


def path_of(first: int, suffix: str = "data") -> str:
    return f"/data/segments/0000000000000001/seg-{first:020}.{suffix}"


def everything(files: SimulatedFiles) -> dict[str, bytes]:
    healthy, files.bad = files.bad, []
    folder = "/data/segments/0000000000000001"
    found = {name: files.read(os.path.join(folder, name)) for name in files.list(folder)}
    files.bad = healthy
    return found


def reading(files: SimulatedFiles, kind: str) -> Any:
    return (looked_at if kind == "read-only" else opened)("/data", BIG, files=files)


@pytest.mark.parametrize("kind", ["read-only", "writer"])
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("page", ["first", "last"])
def test_a_page_costs_the_records_on_it_and_only_while_it_is_bad(
    kind: str, span: tuple[int, int], page: str
) -> None:
    files = made()
    path, before = path_of(span[0]), everything(files)
    first = 0 if page == "first" else files.size(path) // PAGE_BYTES * PAGE_BYTES
    files.spoil(path, first, first + PAGE_BYTES)
    with reading(files, kind) as store:
        found, gaps = contents(store)
        assert {gap.reason for gap in gaps} == {UNREADABLE}
        out = {offset for gap in gaps for offset in range(gap.first, gap.end)}
        assert out <= set(range(*span))
        assert 0 < len(out) <= PAGE_BYTES // 500 + 2
        assert found.keys() | out == set(range(1, RECORDS + 1))
        assert list(store.gaps("t")) == [], "it is not lost"
        if kind == "writer":
            noted = [event.path for event in store.recovery_report.of("note")]
            assert noted == ([path] if page == "last" else []), "opening looks at ends"
            assert store.append("t", [b"more"]).base_offset == RECORDS + 1
    after = everything(files)
    assert all(after[name].startswith(data) for name, data in before.items()), "nothing was cut"
    files.bad = []
    with opened("/data", BIG, files=files) as store:
        found, gaps = contents(store)
        assert gaps == []
        assert [found[offset] for offset in range(1, RECORDS + 1)] == ROWS


@pytest.mark.parametrize("kind", ["read-only", "writer"])
@pytest.mark.parametrize("first", [span[0] for span in SPANS])
def test_an_index_that_is_not_delivered_costs_nothing(kind: str, first: int) -> None:
    files = made()
    files.spoil(path_of(first, "idx"), 0, PAGE_BYTES)
    with reading(files, kind) as store:
        found, gaps = contents(store)
    assert (list(found.values()), gaps) == (ROWS, [])


@pytest.mark.parametrize("kind", ["read-only", "writer"])
def test_the_end_of_the_last_segment_is_told_by_a_mark_where_its_index_is_gone(kind: str) -> None:
    files = made()
    files.remove(path_of(49, "idx"))
    files.spoil(path_of(49), 0, 1 << 20)
    with reading(files, kind) as store:
        assert store.latest_offset("t") == RECORDS + 1
        _, gaps = contents(store)
    assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(49, 61, UNREADABLE)]


@pytest.mark.parametrize("kind", ["read-only", "writer"])
def test_where_nothing_tells_the_end_the_store_waits_for_the_device(kind: str) -> None:
    files = made()
    for name in files.list("/data/meta"):
        if name.startswith("snapshot-"):
            files.remove(f"/data/meta/{name}")
    for name in files.list("/data/wal"):
        files.remove(f"/data/wal/{name}")
    files.remove(path_of(49, "idx"))
    files.spoil(path_of(49), PAGE_BYTES, 1 << 20)
    with pytest.raises(Unavailable, match="where the segment ends is not known from anything else"):
        reading(files, kind).scan("t")
    files.bad = []
    with opened("/data", BIG, files=files) as store:
        found, gaps = contents(store)
    assert (list(found.values()), gaps) == (ROWS, [])


def test_damage_beside_an_unread_page_is_still_damage() -> None:
    files = made()
    path = path_of(25)
    whole = files.read(path)
    at = whole.index(ROWS[24][:100])
    file = files.open(path)
    file.write_at(at + 50, b"\xff")
    file.close()
    files.spoil(path, files.size(path) // PAGE_BYTES * PAGE_BYTES, 1 << 20)
    with opened("/data", BIG, files=files) as store:
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(25, 26, "lost")]
        reasons = {gap.reason for gap in contents(store)[1]}
    assert reasons == {"lost", UNREADABLE}
