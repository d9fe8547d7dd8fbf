"""A damaged object costs the records whose bytes the damage hit, and no others."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lamina
from lamina.archive.encode import Naming, encode_object
from lamina.cli.main import app
from lamina.errors import NewerFormat, RecordsMissing
from lamina.formats.documents import archive_manifest
from lamina.formats.strm import layout
from lamina.formats.strm.segment import open_segment
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.archive_store import ArchiveStore
from lamina.store.orphans import orphans
from lamina.store.store import Store
from tests.archive.rig import NEVER, SETTINGS, TOPIC

EACH = 8
"""Records of an object; two of them fill a block."""
RECORDS = 3 * EACH
ROWS = list(range(RECORDS))
DELETED = {n for n in ROWS if n % EACH in (3, 4, 6)}


class Archived:
    """A topic whose records are archived, in three objects of several blocks each."""

    def __init__(self, folder: Path, format: str, holes: bool = False) -> None:
        self.data, self.archive = str(folder / "data"), str(folder / "archive")
        self.first = 1 if format == "wal" else 0
        settings = SETTINGS | {"archive.object.bytes": 1 << 26, "segment.bytes": 1 << 26}
        with Store(self.data, archive=self.archive, tick_ms=NEVER) as store:
            store.create_topic(TOPIC, format=format, config=settings)
            for first in range(0, RECORDS, EACH):
                numbers = range(first, first + EACH)
                store.append(TOPIC, [_value(number) for number in numbers])
                if holes:
                    store.delete(TOPIC, offsets=[n + 1 for n in numbers if n in DELETED])
                store.roll(TOPIC)
                store.archive()
            store.append(TOPIC, [b"local"])
        self.folder = Path(self.archive) / "data" / TOPIC / "0"
        self.objects = sorted(self.folder.glob("*.seg"))
        assert len(self.objects) == 3
        self.live = [n for n in ROWS if not (holes and n in DELETED)]

    def stores(self) -> Iterator[Any]:
        """Every kind of store that reads the archive."""
        with lamina.open(self.data, read_only=True) as store:
            yield store
        with Store(self.data, tick_ms=NEVER) as store:
            yield store
        with ArchiveStore(DirectoryObjects(LocalFiles(), self.archive)) as store:
            yield store


def _value(number: int) -> bytes:
    return b"%05d " % number * 65_000  # compresses to little


def _read(store: Any) -> tuple[list[int], list[tuple[int, int, str]]]:
    """The numbers of all records that are read, and what is missing between them."""
    found: list[int] = []
    gaps: list[tuple[int, int, str]] = []
    start = store.describe_topic(TOPIC).partitions[0].earliest_offset
    shift = 1 if store.describe_topic(TOPIC).format == "wal" else 0
    while True:
        try:
            for batch in store.scan(TOPIC, 0, start):
                for offset, value in zip(
                    batch.column("offset").to_pylist(),
                    batch.column("value").to_pylist(),
                    strict=True,
                ):
                    if value != b"local":
                        assert value == _value(offset - shift), "wrong bytes under an offset"
                        found.append(offset - shift)
            return found, gaps
        except RecordsMissing as missing:
            gaps.append((missing.first - shift, missing.end - shift, missing.reason))
            start = missing.end


FORMATS = ["keratin", "frame", "wal"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("which", [0, 1])
def test_an_object_that_is_gone_hides_none_of_its_neighbours(
    tmp_path: Path, format: str, which: int
) -> None:
    made = Archived(tmp_path, format)
    made.objects[which].unlink()
    first = which * EACH
    for store in made.stores():
        found, gaps = _read(store)
        assert found == [n for n in ROWS if not first <= n < first + EACH]
        assert gaps == [(first, first + EACH, "lost")]


@pytest.mark.parametrize("holes", [False, True])
def test_one_flipped_bit_outside_of_the_blocks_costs_nothing(tmp_path: Path, holes: bool) -> None:
    made = Archived(tmp_path, "wal", holes)
    path = made.objects[1]
    good = path.read_bytes()
    table = open_segment(good)
    assert len(table) >= 3
    bits = [
        *range(8 * layout.HEADER.size),
        *range(8 * table.footer.index_offset, 8 * len(good)),
    ]
    chosen = random.Random(7).sample(bits, 60)
    objects = DirectoryObjects(LocalFiles(), made.archive)
    for bit in chosen:
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with ArchiveStore(objects) as store:
            assert _read(store) == (made.live, []), bit


@pytest.mark.parametrize(("format", "holes"), [("keratin", False), ("wal", False), ("wal", True)])
def test_a_flipped_bit_in_a_block_costs_that_block(
    tmp_path: Path, format: str, holes: bool
) -> None:
    made = Archived(tmp_path, format, holes)
    path = made.objects[1]
    good = path.read_bytes()
    table = open_segment(good)
    objects = DirectoryObjects(LocalFiles(), made.archive)
    for number in range(len(table)):
        first = int(table.offsets[number]) - made.first
        end = 2 * EACH if number + 1 == len(table) else int(table.offsets[number + 1]) - made.first
        start, stop = table.block_range(number)
        for position in (start, start + 5, start + 9, start + 13, stop - 1):
            bad = bytearray(good)
            bad[position] ^= 4
            path.write_bytes(bad)
            with ArchiveStore(objects) as store:
                found, gaps = _read(store)
            assert found == [n for n in made.live if not first <= n < end]
            assert all(first <= gap[0] < gap[1] <= end and gap[2] == "lost" for gap in gaps)


@pytest.mark.parametrize("format", ["keratin", "wal"])
def test_an_object_cut_off_anywhere_gives_what_is_left_and_never_says_try_again(
    tmp_path: Path, format: str
) -> None:
    made = Archived(tmp_path, format)
    path = made.objects[1]
    good = path.read_bytes()
    table = open_segment(good)
    objects = DirectoryObjects(LocalFiles(), made.archive)
    ends = [table.block_range(number)[1] for number in range(len(table))]
    after = [*(int(each) - made.first for each in table.offsets[1:]), 2 * EACH]
    for size in {0, 1, 63, 64, 65, *ends, *(end - 1 for end in ends), len(good) - 1}:
        path.write_bytes(good[:size])
        whole = [number for number, end in enumerate(ends) if end <= size]
        until = after[whole[-1]] if whole else EACH
        with ArchiveStore(objects) as store:
            found, gaps = _read(store)
        assert found == [n for n in ROWS if not until <= n < 2 * EACH], size
        assert gaps == ([(until, 2 * EACH, "lost")] if until < 2 * EACH else []), size


def test_a_destroyed_index_is_made_again_also_behind_a_damaged_block(tmp_path: Path) -> None:
    made = Archived(tmp_path, "keratin")
    path = made.objects[1]
    good = path.read_bytes()
    table = open_segment(good)
    bad = bytearray(good)
    bad[table.footer.index_offset :] = bytes(len(good) - table.footer.index_offset)
    bad[table.block_range(2)[1] - 1] ^= 1
    path.write_bytes(bad)
    first, end = int(table.offsets[2]), int(table.offsets[3])
    for store in made.stores():
        found, gaps = _read(store)
        assert found == [n for n in ROWS if not first <= n < end]
        assert gaps == [(first, end, "lost")]


def test_with_holes_and_no_index_nothing_gets_an_offset_that_is_not_certain(tmp_path: Path) -> None:
    made = Archived(tmp_path, "wal", holes=True)
    path = made.objects[1]
    good = path.read_bytes()
    table = open_segment(good)
    bad = bytearray(good)
    bad[table.footer.index_offset :] = random.Random(1).randbytes(
        len(good) - table.footer.index_offset
    )
    path.write_bytes(bad)
    with ArchiveStore(DirectoryObjects(LocalFiles(), made.archive)) as store:
        found, _ = _read(store)  # which compares every value with its offset
    assert {n for n in made.live if not EACH <= n < 2 * EACH} <= set(found)


@pytest.mark.parametrize("other", ["neighbour", "topic", "garbage", "empty"])
def test_another_object_under_the_name_is_never_read_as_this_one(
    tmp_path: Path, other: str
) -> None:
    made = Archived(tmp_path / "a", "keratin")
    path = made.objects[1]
    if other == "neighbour":
        path.write_bytes(made.objects[2].read_bytes())
    elif other == "topic":
        with lamina.open(made.data, read_only=True) as store:
            batches = list(store.scan(TOPIC, 0, EACH, end=2 * EACH))
        made_of = encode_object(
            lambda _: iter(batches),
            (EACH, 2 * EACH),
            Naming("another", 0, 0),
            layout.Compression.LZ4,
            target_bytes=1 << 26,
        )
        assert made_of is not None
        path.write_bytes(made_of.data)
    else:
        path.write_bytes(b"" if other == "empty" else random.Random(3).randbytes(4000))
    for store in made.stores():
        found, gaps = _read(store)
        assert found == [n for n in ROWS if not EACH <= n < 2 * EACH]
        assert gaps == [(EACH, 2 * EACH, "lost")]


# ---------------------------------------------------------------- lists that are made again


def _rebuild(made: Archived) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["tier", "rebuild", made.archive, TOPIC])
    return found.exit_code, found.output


def _orphans(made: Archived) -> list[str]:
    objects = DirectoryObjects(LocalFiles(), made.archive)
    return [info.key for info in orphans(objects, 1 << 62, 0)]


@pytest.mark.parametrize("format", ["keratin", "wal"])
def test_rebuilding_tells_what_it_found_as_json(tmp_path: Path, format: str) -> None:
    made = Archived(tmp_path, format)
    (made.folder / "manifest.json").unlink()
    asked = ["tier", "rebuild", made.archive, TOPIC, "--json"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0
    assert json.loads(found.output) == {"topic": TOPIC, "objects": 3, "problems": []}
    made.objects[1].write_bytes(b"garbage" * 99)
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 1
    (told,) = json.loads(found.output)["problems"]
    assert told["key"].endswith(made.objects[1].name)
    assert told["problem"]


@pytest.mark.parametrize("format", ["keratin", "wal"])
@pytest.mark.parametrize("keeps_list", [True, False])
@pytest.mark.parametrize("damage", ["header", "version", "index", "cut", "garbage", "gone"])
def test_rebuilding_keeps_damaged_objects_listed_and_says_so(
    tmp_path: Path, format: str, keeps_list: bool, damage: str
) -> None:
    made = Archived(tmp_path, format)
    path = made.objects[1]
    good = path.read_bytes()
    table = open_segment(good)
    bad = bytearray(good)
    lost = range(0)
    if damage == "header":
        bad[layout.HEADER.at("max_offset") + 7] ^= 1
    elif damage == "version":
        bad[layout.HEADER.at("version")] ^= 1
    elif damage == "index":
        bad[table.footer.index_offset :] = bytes(len(good) - table.footer.index_offset)
    elif damage == "cut":
        del bad[table.block_range(1)[1] :]
        lost = range(int(table.offsets[2]) - made.first, 2 * EACH)
    else:
        bad = bytearray(random.Random(3).randbytes(999))
        lost = range(EACH, 2 * EACH)
    path.write_bytes(bad)
    if damage == "gone":
        path.unlink()
    if not keeps_list:
        (made.folder / "manifest.json").unlink()
    exit_code, output = _rebuild(made)
    assert "3 objects" in output or (damage == "gone" and not keeps_list)
    # Nothing knows of what is gone; a good list needs no header.
    hidden = [("gone", False), ("header", True), ("version", True)]
    is_noticed = (damage, keeps_list) not in hidden
    assert exit_code == (1 if is_noticed else 0)
    assert not is_noticed or path.name in output
    assert _orphans(made) == []
    for store in made.stores():
        found, gaps = _read(store)
        assert found == [n for n in ROWS if n not in lost]
        assert gaps == ([(lost.start, lost.stop, "lost")] if lost else [])


@pytest.mark.parametrize("is_sound", [True, False])
def test_an_unlisted_newer_object_is_neither_listed_nor_removed(
    tmp_path: Path, is_sound: bool
) -> None:
    data, archive_path = str(tmp_path / "data"), str(tmp_path / "archive")
    with Store(data, archive=archive_path, tick_ms=NEVER) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, [_value(0)])
        store.roll(TOPIC)
        store.archive()
        folder = Path(archive_path) / "data" / TOPIC / "0"
        newer = bytearray((folder / "00000000000000000000.seg").read_bytes())
        newer[layout.HEADER.at("version") + 1] = 2
        if is_sound:
            crc = zlib.crc32(newer[: -layout.UNCOVERED_BYTES])
            at = len(newer) - layout.UNCOVERED_BYTES
            newer[at : at + 4] = crc.to_bytes(4, "big")
        path = folder / "00000000000000000001.seg"
        path.write_bytes(newer)
        store.append(TOPIC, [_value(1)])
        store.roll(TOPIC)
        if is_sound:
            with pytest.raises(NewerFormat, match=path.name):
                store.archive()
            assert path.read_bytes() == newer
        else:
            store.archive()
            assert path.read_bytes() != newer, "what is damaged and in no list is written again"
        assert _read(store) == ([0, 1], [])


@pytest.mark.parametrize("format", ["keratin", "wal"])
def test_a_listed_object_of_a_newer_version_is_refused_by_its_name(
    tmp_path: Path, format: str
) -> None:
    made = Archived(tmp_path, format)
    path = made.objects[1]
    newer = bytearray(path.read_bytes())
    newer[layout.HEADER.at("version") + 1] = 2
    crc = zlib.crc32(newer[: -layout.UNCOVERED_BYTES])
    at = len(newer) - layout.UNCOVERED_BYTES
    newer[at : at + 4] = crc.to_bytes(4, "big")
    listed = archive_manifest.decode((made.folder / "manifest.json").read_bytes())
    objects = list(listed.objects)
    objects[1] = replace(objects[1], index_crc32=zlib.crc32(newer[objects[1].index_offset :]) ^ 1)
    (made.folder / "manifest.json").write_bytes(
        archive_manifest.encode(replace(listed, objects=tuple(objects)))
    )
    path.write_bytes(newer)
    for store in made.stores():
        with pytest.raises(NewerFormat) as refused:
            _read(store)
        assert refused.value.path.endswith(path.name)
    assert path.read_bytes() == newer


def test_an_unlisted_object_that_may_be_the_only_copy_is_no_orphan(tmp_path: Path) -> None:
    made = Archived(tmp_path, "keratin")
    path = made.folder / "manifest.json"
    listed = archive_manifest.decode(path.read_bytes())
    path.write_bytes(
        archive_manifest.encode(replace(listed, objects=listed.objects[:1] + listed.objects[2:]))
    )
    assert _orphans(made) == []
    spare = made.folder / "00000000000000000002.seg"  # damaged, and in nobody's list
    spare.write_bytes(b"what was this?")
    assert _orphans(made) == []


# ---------------------------------------------------------------- restoring


@pytest.mark.parametrize("format", ["keratin", "frame", "wal"])
@pytest.mark.parametrize("damage", ["block", "cut", "gone", "garbage"])
def test_a_restore_names_what_it_cannot_bring_back(
    tmp_path: Path, format: str, damage: str
) -> None:
    made = Archived(tmp_path, format)
    path = made.objects[1]
    good = path.read_bytes()
    table = open_segment(good)
    bad, lost = bytearray(good), range(EACH, 2 * EACH)
    if damage == "block":
        bad[table.block_range(1)[1] - 1] ^= 1
        lost = range(int(table.offsets[1]) - made.first, int(table.offsets[2]) - made.first)
    elif damage == "cut":
        del bad[table.block_range(1)[1] :]
        lost = range(int(table.offsets[2]) - made.first, 2 * EACH)
    else:
        bad[:] = b"?" * len(good)
    path.write_bytes(bad)
    if damage == "gone":
        path.unlink()
    back = str(tmp_path / "back")
    found = CliRunner().invoke(app, ["tier", "restore", made.archive, back])
    assert found.exit_code == 1
    assert f"offsets {lost.start + made.first} to {lost.stop + made.first} are lost" in found.output
    for read_only in (True, False):
        with lamina.open(back, read_only=read_only, archive="") as store:
            numbers, gaps = _read(store)
            assert numbers == [n for n in ROWS if n not in lost]
            assert gaps == [(lost.start, lost.stop, "lost")]
            told = [gap for gap in store.gaps(TOPIC, 0) if gap.reason == "lost"]
            assert [(gap.first, gap.end) for gap in told] == [
                (lost.start + made.first, lost.stop + made.first)
            ]
            assert all(gap.detail.startswith("not in the archive") for gap in told)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", ["gone", "another"])
def test_a_restore_names_what_is_lost_in_front_of_everything_though_the_list_is_gone(
    tmp_path: Path, format: str, how: str
) -> None:
    made = Archived(tmp_path, format)
    (made.folder / "manifest.json").unlink()
    if how == "gone":
        made.objects[0].unlink()
    else:
        made.objects[0].write_bytes(made.objects[1].read_bytes())
    back = str(tmp_path / "back")
    found = CliRunner().invoke(app, ["tier", "restore", made.archive, back])
    assert found.exit_code == 1
    assert f"offsets {made.first} to {made.first + EACH} are lost" in found.output
    with lamina.open(back, archive="") as store:
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps(TOPIC, 0)] == [
            (made.first, made.first + EACH, "lost")
        ]
        numbers = [
            offset - made.first
            for batch in store.scan(TOPIC, 0, made.first + EACH)
            for offset in batch.column("offset").to_pylist()
        ]
        assert numbers == ROWS[EACH:]


@pytest.mark.parametrize("format", FORMATS)
def test_a_restore_calls_nothing_lost_that_was_removed_in_front_of_everything(
    tmp_path: Path, format: str
) -> None:
    made = Archived(tmp_path, format)
    with Store(made.data, archive=made.archive, tick_ms=NEVER) as store:
        store.trim(TOPIC, 0, made.first + EACH)
        store.archive()
    (made.folder / "manifest.json").unlink()
    back = str(tmp_path / "back")
    found = CliRunner().invoke(app, ["tier", "restore", made.archive, back])
    assert found.exit_code == 0, found.output
    with lamina.open(back, archive="") as store:
        assert _read(store) == (ROWS[EACH:], [])
        assert {gap.reason for gap in store.gaps(TOPIC, 0)} == {"trim"}
