"""Pages of segments that the device does not deliver: no damage, no end, and nothing is decided."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.api import Gap
from lamina.config import WriterSettings
from lamina.errors import UNREADABLE, RecordsMissing, Unavailable
from lamina.storage.bad_pages import PAGE_BYTES
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles

FORMATS = ("frame", "keratin")
NEVER_MS = 1 << 30
QUIET = WriterSettings(flush_ms=NEVER_MS)
ROWS = [b"%03d" % number + bytes([number]) * 500 for number in range(60)]
BASES = (0, 24, 48)


def opened(files: SimulatedFiles, kind: str = "writer") -> Any:
    if kind == "read-only":
        return ReadOnlyStore("/data", files=files)
    return Store("/data", files=files, tick_ms=NEVER_MS, writer=QUIET)


def killed(format_name: str, *, checkpointed: int = 60) -> SimulatedFiles:
    """What a killed process leaves: two sealed segments, and one that grows."""
    files = SimulatedFiles()
    store = opened(files)
    store.create_topic("t", format=format_name)
    for first in range(0, 60, 12):
        if first in BASES[1:]:
            store.roll("t")
        store.append("t", ROWS[first : first + 12], partition=0)
        if first + 12 == checkpointed:
            store.maintain()
    return files.snapshot().restart()


def log_of(base: int) -> str:
    return f"/data/topics/t/0/segments/{base:020}.log"


def contents(store: Any) -> tuple[dict[int, bytes], list[Gap]]:
    found: dict[int, bytes] = {}
    gaps: list[Gap] = []
    start = 0
    while True:
        try:
            for batch in store.scan("t", 0, start, max_records=7):
                offsets = batch.column("offset").to_pylist()
                found |= dict(zip(offsets, batch.column("value").to_pylist(), strict=True))
            return found, gaps
        except RecordsMissing as missing:
            gaps.append(Gap(missing.first, missing.end, missing.reason, 0))
            start = missing.end


@pytest.mark.parametrize("kind", ["read-only", "writer"])
@pytest.mark.parametrize("page", ["first", "last"])
@pytest.mark.parametrize("base", BASES[:2])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_page_of_a_sealed_segment_costs_the_records_on_it_while_it_is_bad(
    format_name: str, base: int, page: str, kind: str
) -> None:
    files = killed(format_name)
    path = log_of(base)
    before = files.contents()[path]
    first = 0 if page == "first" else len(before) // PAGE_BYTES * PAGE_BYTES
    files.spoil(path, first, first + PAGE_BYTES)
    with opened(files, kind) as store:
        found, gaps = contents(store)
        assert {gap.reason for gap in gaps} == {UNREADABLE}
        out = {offset for gap in gaps for offset in range(gap.first, gap.end)}
        assert out <= set(range(base, base + 24))
        assert 0 < len(out) <= PAGE_BYTES // 500 + 2
        assert found.keys() | out == set(range(60))
        assert store.gaps("t") == (), "it is not lost"
        if kind == "writer":
            if (format_name, page) in (("frame", "last"), ("keratin", "first")):
                assert [event.path for event in store.recovery_report.of("note")] == [path]
            assert {event.kind for event in store.recovery_report.events} <= {"note", "cut"}
            assert store.append("t", [b"more"], partition=0).base_offset == 60
    assert files.contents()[path] == before
    files.bad = []
    with opened(files) as store:
        assert contents(store)[0] == {
            **dict(enumerate(ROWS)),
            **({60: b"more"} if kind == "writer" else {}),
        }


@pytest.mark.parametrize("kind", ["read-only", "writer"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_indexes_that_are_not_delivered_cost_nothing(format_name: str, kind: str) -> None:
    files = killed(format_name)
    for name in files.list("/data/topics/t/0/segments"):
        if not name.endswith(".log"):
            files.spoil(f"/data/topics/t/0/segments/{name}", 0, 1 << 20)
    with opened(files, kind) as store:
        assert contents(store) == (dict(enumerate(ROWS)), [])


@pytest.mark.parametrize("checkpointed", [60, 48])
@pytest.mark.parametrize("kind", ["read-only", "writer"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_page_is_not_taken_for_the_end_of_a_log(
    format_name: str, kind: str, checkpointed: int
) -> None:
    files = killed(format_name, checkpointed=checkpointed)
    path = log_of(48)
    last = len(files.contents()[path].rstrip(b"\0")) // PAGE_BYTES * PAGE_BYTES
    files.spoil(path, last, 1 << 30)
    before = files.contents()[path]
    with pytest.raises(Unavailable, match=f"at byte {last}.*{path}"):
        contents(opened(files, kind))
    assert files.contents()[path] == before
    files.bad = []
    with opened(files) as store:
        assert contents(store) == (dict(enumerate(ROWS)), [])


@pytest.mark.parametrize("kind", ["read-only", "writer"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_page_in_the_middle_of_the_last_segment_is_stepped_over_above_the_watermark(
    format_name: str, kind: str
) -> None:
    files = killed(format_name, checkpointed=48)
    files.spoil(log_of(48), 0, PAGE_BYTES)
    with opened(files, kind) as store:
        found, gaps = contents(store)
        assert {gap.reason for gap in gaps} == {UNREADABLE}
        assert max(found) == 59
        if kind == "writer":
            assert store.append("t", [b"more"], partition=0).base_offset == 60
    files.bad = []
    with opened(files) as store:
        assert {at: value for at, value in contents(store)[0].items() if at < 60} == dict(
            enumerate(ROWS)
        )
