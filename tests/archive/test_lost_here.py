"""What is lost here and archived is not lost: it is read from there, or said to be away."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api import Gap
from lamina.config import WalSettings
from lamina.errors import ArchiveUnavailable, InvalidRequest, NewerFormat, RecordsMissing
from lamina.formats.documents import ledger as ledger_file
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.archive_store import ArchiveStore
from lamina.store.store import Store
from lamina_torture.cross import damages
from tests.archive.rig import NEVER, TOPIC

COUNT = 40
FORMATS = ["frame", "keratin", "wal"]
WAYS = ["bit", "cut", "foreign", "gone"]


def opened(path: Path, archive: str | None = None, tick_ms: int = NEVER) -> Store:
    wal = WalSettings(shards=1, segment_events=8)
    return Store(str(path / "data"), archive=archive, wal=wal, tick_ms=tick_ms)


def value(number: int) -> bytes:
    return b"%d " % number + b"." * 200


class Copied:
    """A topic of several sealed segments, all archived and all still here, and a growing one."""

    def __init__(self, path: Path, format_name: str) -> None:
        self.path, self.format = path, format_name
        own = {} if format_name == "wal" else {"segment.bytes": 2048}
        config = {**own, "remote.storage.enable": True, "archive.object.bytes": 4096}
        with opened(path, str(path / "archive")) as store:
            store.create_topic(TOPIC, format=format_name, config=config)
            for number in range(COUNT):
                row = {"value": value(number)}
                if format_name == "wal":
                    row["tag"] = b"odd" if number % 2 else b"even"
                store.append(TOPIC, [row], partition=0)
            store.roll(TOPIC)
            store.archive()
            store.append(TOPIC, [b"last"], partition=0)
            self.first = store.earliest_offset(TOPIC)

    def segments(self) -> list[Path]:
        suffix = "data" if self.format == "wal" else "log"
        folder = "segments" if self.format == "wal" else f"topics/{TOPIC}/0/segments"
        return sorted((self.path / "data" / folder).rglob(f"*.{suffix}"))

    @property
    def ledger(self) -> Path:
        return self.path / "data" / "topics" / TOPIC / "0" / "ledger.json"

    def harm(self, how: str) -> None:
        """Damages the second segment: in its middle, from there on, or as a whole."""
        victim = self.segments()[1]
        data = victim.read_bytes()
        middle = len(data) // 2
        if how == "bit":
            victim.write_bytes(data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])
        elif how == "cut":
            victim.write_bytes(data[:middle])
        elif how == "foreign":
            victim.write_bytes(b"Dear reader\n" * 100)
        else:
            victim.unlink()

    def all_read(self, store: Any) -> bool:
        rows = [row for batch in store.scan(TOPIC) for row in batch.to_pylist()]
        found = [(row["offset"], row["value"]) for row in rows]
        wanted = [(self.first + number, value(number)) for number in range(COUNT)]
        return found == [*wanted, (self.first + COUNT, b"last")]

    def reasons(self) -> set[str]:
        """The reasons that the ledger gives."""
        if not self.ledger.exists():
            return set()
        return {gap.reason for gap in ledger_file.decode(self.ledger.read_bytes()).gaps}


def _begins_at(segment: Path) -> int:
    return int(segment.stem.removeprefix("seg-"))


@pytest.fixture(params=FORMATS)
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Copied:
    return Copied(tmp_path, request.param)


@pytest.mark.parametrize("how", WAYS)
def test_no_entry_says_lost_of_what_the_archive_has(copied: Copied, how: str) -> None:
    copied.harm(how)
    with lamina.open(str(copied.path / "data"), read_only=True) as reader:
        assert copied.all_read(reader)
        assert [gap for gap in reader.gaps(TOPIC) if gap.reason == LOST] == []
    for _ in range(2):
        with opened(copied.path) as store:
            assert copied.all_read(store)
            assert store.gaps(TOPIC) == ()
    assert copied.reasons() <= {ARCHIVED}


@pytest.mark.parametrize("how", WAYS)
def test_without_the_archive_it_is_away_and_not_lost(copied: Copied, how: str) -> None:
    copied.harm(how)
    data = str(copied.path / "data")
    away = pytest.raises(ArchiveUnavailable, match="open the store with `archive`")
    with lamina.open(data, read_only=True, archive="") as reader, away:
        copied.all_read(reader)
    taken: list[int] = []
    with opened(copied.path, "") as store:
        with away:
            copied.all_read(store)
        with away:
            _drain(store, taken)
        assert store.gaps(TOPIC) == ()
    assert copied.reasons() <= {ARCHIVED}
    with opened(copied.path) as store:
        assert copied.all_read(store)
        _drain(store, taken)
    assert taken == list(range(copied.first, copied.first + COUNT + 1)), "none was skipped"


def _drain(store: Store, taken: list[int]) -> None:
    group = store.group(TOPIC, "g")
    while (batch := group.poll(10, 60_000)).num_rows:
        taken += batch.column("offset").to_pylist()
        group.ack(batch)


@pytest.mark.parametrize("how", WAYS)
def test_an_archive_that_is_away_decides_when_it_is_back(copied: Copied, how: str) -> None:
    copied.harm(how)
    archive, away = copied.path / "archive", copied.path / "away"
    archive.rename(away)
    with opened(copied.path) as store:
        with pytest.raises(ArchiveUnavailable):
            copied.all_read(store)
        assert store.gaps(TOPIC) == ()
        away.rename(archive)
        assert copied.all_read(store)
        store.archive()
        assert copied.all_read(store)
    assert copied.reasons() <= {ARCHIVED}


@pytest.mark.parametrize("is_away", [True, False])
def test_what_the_archive_has_not_either_is_lost(copied: Copied, is_away: bool) -> None:
    """Of records that were sealed and not archived nobody has a copy: that is told for good."""
    end = copied.first + COUNT + 1
    with opened(copied.path, "") as store:
        for number in range(3):
            store.roll(TOPIC)
            store.append(TOPIC, [b"more %d" % number], partition=0)
        store.purge_wal()
    (lost,) = [path for path in copied.segments() if _begins_at(path) == end]
    lost.write_bytes(b"Dear reader\n" * 100)
    archive, away = copied.path / "archive", copied.path / "away"
    if is_away:
        archive.rename(away)
    with opened(copied.path) as store:
        if is_away:
            with pytest.raises(ArchiveUnavailable):
                store.fetch(TOPIC, 0, end)
            away.rename(archive)
        with pytest.raises(RecordsMissing) as missing:
            store.fetch(TOPIC, 0, end)
        assert missing.value.reason == LOST
        store.append(TOPIC, [b"behind"], partition=0)
        store.roll(TOPIC)
        store.archive()
        told = [(gap.first, gap.end) for gap in store.gaps(TOPIC) if gap.reason == LOST]
        assert told == [(end, end + 1)]
    for archived in (None, ""):
        with opened(copied.path, archived) as store, pytest.raises(RecordsMissing) as missing:
            store.fetch(TOPIC, 0, end)
        assert (missing.value.first, missing.value.end) == (end, end + 1)
        assert missing.value.reason == LOST
    objects = DirectoryObjects(LocalFiles(), str(archive))
    with ArchiveStore(objects) as cold, pytest.raises(RecordsMissing) as missing:
        cold.fetch(TOPIC, 0, end)
    assert missing.value.reason == LOST, "an object that has a hole there does not call it deleted"


def test_what_was_called_lost_before_is_found_in_the_archive(copied: Copied) -> None:
    """A ledger of an earlier release, or of an opening without the archive, may say so."""
    copied.harm("gone")
    before, later = (_begins_at(path) for path in copied.segments()[:2])
    copied.ledger.parent.mkdir(parents=True, exist_ok=True)
    gap = Gap(before + 8, later, LOST, 1, "once")
    copied.ledger.write_bytes(ledger_file.encode(Ledger((gap,))))
    with opened(copied.path) as store:
        store.archive()
        assert copied.all_read(store)
        assert store.gaps(TOPIC) == ()
    with opened(copied.path, "") as store, pytest.raises(ArchiveUnavailable):
        copied.all_read(store)
    objects = DirectoryObjects(LocalFiles(), str(copied.path / "archive"))
    with ArchiveStore(objects) as cold:
        assert cold.gaps(TOPIC) == ()


def test_an_archive_s_ledger_that_says_lost_hides_no_object(copied: Copied) -> None:
    folder = copied.path / "archive" / "data" / TOPIC / "0"
    gap = Gap(copied.first, copied.first + 3, LOST, 1)
    (folder / "ledger.json").write_bytes(ledger_file.encode(Ledger((gap,))))
    with ArchiveStore(DirectoryObjects(LocalFiles(), str(copied.path / "archive"))) as cold:
        assert cold.earliest_offset(TOPIC) == copied.first
        assert cold.gaps(TOPIC) == ()
        assert sum(batch.num_rows for batch in cold.scan(TOPIC)) == COUNT


def test_another_archive_is_refused_while_it_may_lack_what_is_damaged_here(copied: Copied) -> None:
    copied.harm("cut")
    other = str(copied.path / "other")
    with pytest.raises(InvalidRequest, match="does not hold the archived records"):
        opened(copied.path, other)
    with opened(copied.path) as store:
        assert copied.all_read(store)


def test_what_was_removed_on_purpose_is_no_loss_when_its_segment_is(copied: Copied) -> None:
    """A range of which the ledger knows a part keeps that reason: nothing comes back."""
    copied.ledger.parent.mkdir(parents=True, exist_ok=True)
    segments = copied.segments()
    first = _begins_at(segments[1])
    known = Ledger((Gap(first + 1, first + 3, "deleted", 1),))
    copied.ledger.write_bytes(ledger_file.encode(known))
    copied.harm("gone")
    with opened(copied.path) as store:
        offsets = [at for batch in store.scan(TOPIC) for at in batch.column("offset").to_pylist()]
    gone = {first + 1, first + 2}
    assert offsets == [at for at in range(copied.first, copied.first + COUNT + 1) if at not in gone]


@pytest.mark.parametrize("number", range(3))
def test_a_local_copy_of_a_newer_version_stays(copied: Copied, number: int) -> None:
    """Nobody can say whether an object holds all of a record that this version does not know."""
    victim = copied.segments()[1]
    made = damages.newer(str(victim), victim.read_bytes(), random.Random(number))
    assert made is not None
    victim.write_bytes(made[0])
    with contextlib.suppress(NewerFormat), opened(copied.path) as store:
        store.alter_topic(TOPIC, {"local.retention.bytes": 1})
        with pytest.raises(NewerFormat, match=victim.name):
            store.archive()
    assert victim.read_bytes() == made[0]


# ---------------------------------------------------------------- deleting by tag


def _delete_odd(store: Store) -> None:
    store.delete(TOPIC, tag=b"odd")


def _trim(store: Store) -> None:
    store.trim(TOPIC, 0, store.earliest_offset(TOPIC) + 20)


@pytest.mark.parametrize("how", WAYS)
def test_a_delete_by_tag_finds_what_is_damaged_here_and_archived(tmp_path: Path, how: str) -> None:
    copied = Copied(tmp_path, "wal")
    copied.harm(how)
    with opened(tmp_path) as store:
        _delete_odd(store)
    for _ in range(2):
        with opened(tmp_path) as store:
            values = [
                row for batch in store.scan(TOPIC) for row in batch.column("value").to_pylist()
            ]
        assert values == [value(number) for number in range(0, COUNT, 2)] + [b"last"]


@pytest.mark.parametrize("change", [_delete_odd, _trim])
def test_nothing_is_removed_half_while_the_archive_is_away(
    tmp_path: Path, change: Callable[[Store], None]
) -> None:
    copied = Copied(tmp_path, "wal")
    copied.harm("gone")
    (tmp_path / "archive").rename(tmp_path / "away")
    with opened(tmp_path) as store:
        if change is _delete_odd:
            with pytest.raises(ArchiveUnavailable):
                change(store)
        else:
            change(store)
    (tmp_path / "away").rename(tmp_path / "archive")
    with opened(tmp_path) as store:
        if change is _delete_odd:
            assert copied.all_read(store)
        else:
            assert store.earliest_offset(TOPIC) == copied.first + 20
