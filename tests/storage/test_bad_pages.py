"""A page that the disk cannot deliver costs the records on it, and only for as long as it is bad.

On a simulated disk, for every format and place; `tests/store/test_bad_sector.py` shows the same on
a real file system.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lamina.config import WalSettings
from lamina.errors import UNREADABLE, LaminaError, RecordsMissing, Unavailable
from lamina.storage.bad_pages import FILLER, Salvaged, load_from
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.promises import read as read_over_gaps
from lamina_torture.simulated import SimulatedFiles

FORMATS = ("frame", "keratin", "wal")
PAGE = 4096
RECORDS = 400


def opened(files: SimulatedFiles) -> Store:
    return Store("/data", files=files, wal=WalSettings(shards=1), tick_ms=1 << 30)


def filled(format_name: str, place: str) -> tuple[SimulatedFiles, Store, str]:
    """A store with a topic of some hundred records, and the file that holds them."""
    files = SimulatedFiles()
    store = opened(files)
    store.create_topic("t", format=format_name)
    store.append("t", [b"%06d" % number + b"x" * 94 for number in range(RECORDS)], partition=0)
    if place == "sealed":
        store.roll("t")
        store.append("t", [b"behind"], partition=0)
    suffix = "" if format_name != "wal" else "/wal/" if place == "active" else "segments"
    kind = (".data", ".log")[format_name != "wal" or place == "active"]
    found = [
        path
        for path, data in files.contents().items()
        if path.endswith(kind) and suffix in path and len(data) > 5 * PAGE
    ]
    return files, store, found[0]


def numbers(batches: list[object]) -> list[bytes]:
    return [value.as_py()[:6] for batch in batches for value in batch.column("value")]  # type: ignore[attr-defined]


def over_gaps(store: Store) -> tuple[list[bytes], list[RecordsMissing]]:
    """Reads everything; where records are missing it goes on behind them."""
    values: list[bytes] = []
    missing: list[RecordsMissing] = []
    at: int | None = None
    while True:
        try:
            for batch in store.scan("t", start=at, max_bytes=5000):
                values += numbers([batch])
            return values, missing
        except RecordsMissing as error:
            missing.append(error)
            at = error.end


@pytest.mark.parametrize("place", ["active", "sealed"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_bad_page_costs_the_records_on_it_until_it_is_read_again(
    format_name: str, place: str
) -> None:
    files, store, path = filled(format_name, place)
    whole, _ = over_gaps(store)
    files.spoil(path, 3 * PAGE, 4 * PAGE)
    values, missing = over_gaps(store)
    assert {each.reason for each in missing} == {UNREADABLE}
    assert all(path in str(each) and "byte" in str(each) for each in missing)
    lost = set(whole) - set(values)
    assert 1 <= len(lost) <= PAGE // 100 + 2, "no more than lies on the page"
    assert store.gaps("t") == (), "it may be readable again"
    files.bad.clear()
    assert over_gaps(store) == (whole, [])
    store.append("t", [b"more"], partition=0)
    store.close()


@pytest.mark.parametrize("place", ["active", "sealed"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_group_goes_on_behind_a_bad_page_and_comes_back_for_it(
    format_name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, store, path = filled(format_name, place)
    whole, _ = over_gaps(store)
    group = store.group("t", "g")
    files.spoil(path, 3 * PAGE, 4 * PAGE)
    monkeypatch.setattr("lamina.groups.shared_partition.UNREAD_MS", 1 << 40)
    seen: list[bytes] = []
    for _ in range(100):
        batch = group.poll(50)
        seen += numbers([batch])
        group.ack(batch)
        if whole[-1] in seen:
            break
    assert whole[-1] in seen, "what is behind the page is delivered"
    files.bad.clear()
    store.close()
    with opened(files) as store:
        group = store.group("t", "g")
        while (batch := group.poll(50)).num_rows:
            seen += numbers([batch])
            group.ack(batch)
    assert sorted(seen) == sorted(whole), "nothing was skipped for good"


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_bad_page_of_every_file_leaves_a_store_that_opens_or_says_why(
    format_name: str,
) -> None:
    """Opening, reading, groups, retention and rolling: each works, or fails by a typed error."""
    files, store, _ = filled(format_name, "sealed")
    store.group("t", "g").poll(3)
    whole, _ = over_gaps(store)
    store.close()
    names = sorted(files.contents())
    for path in names:
        size = len(files.contents()[path])
        for first in range(0, max(size, 1), PAGE):
            disk = files.snapshot().restart()
            if path.endswith(("/LOCK", "reserve")):
                continue
            disk.spoil(path, first, first + PAGE)
            before = disk.contents()
            _use(disk, path, whole, before)


def refusal_of(call: Callable[[], object]) -> LaminaError | None:
    """Returns the typed error of a call, if it is refused; any other error is a defect."""
    try:
        call()
    except LaminaError as error:
        return error
    return None


def _use(disk: SimulatedFiles, path: str, whole: list[bytes], before: dict[str, bytes]) -> None:
    readers = ReadOnlyStore("/data", files=disk)
    refusal_of(lambda: read_over_gaps(readers, "t"))
    try:
        store = opened(disk)
    except Unavailable as error:
        refused: LaminaError | None = error
    else:
        refused = None
    if refused is not None:
        assert f"at byte {disk.bad[0][1]}: '{path}'" in str(refused)
        assert disk.contents()[path] == before[path], "nothing was changed"
        disk.bad.clear()
        with opened(disk) as store:
            assert over_gaps(store)[0] == whole
        return
    values, missing = over_gaps(store)
    assert all(each.reason == UNREADABLE for each in missing), (path, missing)
    for call in (
        lambda: store.group("t", "g").poll(3),
        lambda: store.apply_retention("t"),
        lambda: store.append("t", [b"more"], partition=0),
        lambda: store.roll("t"),
        store.maintain,
        store.flush,
    ):
        refusal = refusal_of(call)
        assert refusal is None or isinstance(refusal, RecordsMissing) or path in str(refusal)
    disk.bad.clear()
    values, _ = over_gaps(store)
    assert values[: len(whole)] == whole, path
    store.close()
    with opened(disk) as store:
        assert over_gaps(store)[0][: len(whole)] == whole, path


@pytest.mark.parametrize(
    ("first", "end", "parts"),
    [
        (0, 30, [(0, 10), (15, 20), (25, 30)]),
        (0, 10, [(0, 10)]),
        (5, 12, [(5, 10)]),
        (10, 15, []),
        (12, 22, [(15, 20)]),
        (25, 30, [(25, 30)]),
    ],
)
def test_the_parts_of_a_range_are_those_that_were_read(
    first: int, end: int, parts: list[tuple[int, int]]
) -> None:
    salvaged = Salvaged(b"", ((10, 15), (20, 25)))
    assert salvaged.read_parts(first, end) == parts
    assert salvaged.misses(first, end) is (parts != [(first, end)])


@pytest.mark.parametrize("start", [1 << 20, (1 << 20) + 5, (1 << 20) + 3 * PAGE])
def test_the_end_of_a_file_is_read_where_it_lies_and_nothing_before_it(start: int) -> None:
    files, bad = SimulatedFiles(), (1 << 20) + PAGE
    whole = bytes(range(1, 255)) * (3 * PAGE + 77)
    file = files.create("/a")
    file.write_at(0, whole)
    files.spoil("/a", 0, PAGE)  # it is not read
    found = load_from(file, start)
    page = start // PAGE * PAGE
    assert bytes(memoryview(found.data)) == bytes(page) + whole[page:]
    assert found.holes == ()
    files.spoil("/a", bad, bad + PAGE)
    found = load_from(file, start)
    assert found.misses(bad, bad + PAGE) == (start < bad)
    behind = max(start, bad + PAGE)
    assert bytes(memoryview(found.data)[behind:]) == whole[behind:]
    if start < bad:
        assert bytes(memoryview(found.data)[bad : bad + PAGE]) == FILLER * PAGE
    page = len(whole) // PAGE * PAGE
    assert bytes(load_from(file, len(whole)).data) == bytes(page) + whole[page:]


def test_a_file_of_which_most_is_walked_is_read_whole() -> None:
    files = SimulatedFiles()
    file = files.create("/a")
    file.write_at(0, b"abc")
    assert [bytes(load_from(file, start).data) for start in (0, 1, 3)] == [b"abc"] * 3
    empty = files.create("/b")
    assert bytes(load_from(empty, 0).data) == b""
