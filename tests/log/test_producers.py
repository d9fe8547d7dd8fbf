"""Idempotent producers: once, whatever is repeated, whoever died in between."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina.api import DURABLE, Ack, ProducerStamp
from lamina.config import TopicSettings
from lamina.errors import (
    DuplicateSequence,
    Fenced,
    InvalidRequest,
    OutOfSequence,
    StorageFull,
)
from lamina.formats import producer_journal as journal
from lamina.formats.log_format import CODECS
from lamina.log import producers as producing
from lamina.log.directory import Place
from lamina.log.encoder import GroupEncoder, Stamped
from lamina.log.producers import COMPACT_ENTRIES, REMEMBERED, Producers
from lamina.log.requests import Outcome, Request
from lamina.storage.files import LocalFile, LocalFiles
from lamina.store.store import Store
from tests.support.directories import FORMATS, copied, opened, segments, values

BOTH = pytest.mark.parametrize("format_name", FORMATS)


def stamp(sequence: int, epoch: int = 0, producer_id: int = 7) -> ProducerStamp:
    return ProducerStamp(producer_id, epoch, sequence)


def put(store: Store, records: list[bytes], by: ProducerStamp, acks: object = "all") -> Ack:
    return store.append("t", records, partition=0, producer=by, acks=acks).parts[0]


def made(root: Path, format_name: str, **arguments: Any) -> Store:
    store = opened(root / "data", **arguments)
    store.create_topic("t", format=format_name)
    return store


@BOTH
def test_a_repeat_gets_the_first_answer_and_is_not_stored(tmp_path: Path, format_name: str) -> None:
    with made(tmp_path, format_name) as store:
        first = put(store, [b"a", b"b"], stamp(0))
        store.append("t", [b"other"])
        second = put(store, [b"c"], stamp(2))
        assert put(store, [b"a", b"b"], stamp(0)) == first
        assert put(store, [b"c"], stamp(2)) == second
        assert values(store) == [b"a", b"b", b"other", b"c"]


@BOTH
@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_repeat_gets_the_first_answer_also_after_the_end(
    tmp_path: Path, format_name: str, ending: str
) -> None:
    store = made(tmp_path, format_name)
    first = put(store, [b"a", b"b"], stamp(0))
    path = copied(tmp_path / "data") if ending == "killed" else tmp_path / "data"
    store.close()
    with opened(path) as store:
        assert put(store, [b"a", b"b"], stamp(0)) == first
        assert put(store, [b"c"], stamp(2)).base_offset == 2
        with pytest.raises(OutOfSequence):
            put(store, [b"x"], stamp(9))
        assert values(store) == [b"a", b"b", b"c"]


@BOTH
def test_a_repeat_is_as_durable_as_it_says(tmp_path: Path, format_name: str) -> None:
    with made(tmp_path, format_name) as store:
        assert put(store, [b"a"], stamp(0), acks=1).durability == "written"
        assert put(store, [b"a"], stamp(0), acks=1).durability == "written"
        assert store.latest_offset("t") == 0
        assert put(store, [b"a"], stamp(0)).durability == "fsynced"
        assert store.latest_offset("t") == 1


@BOTH
def test_a_skipped_sequence_is_refused_and_changes_nothing(
    tmp_path: Path, format_name: str
) -> None:
    with made(tmp_path, format_name) as store:
        put(store, [b"a", b"b"], stamp(0))
        for wrong in (1, 3, 4, 99):
            with pytest.raises(OutOfSequence, match="must go on with sequence 2"):
                put(store, [b"x"], stamp(wrong))
        assert put(store, [b"c"], stamp(2)).base_offset == 2


@BOTH
def test_a_repeat_too_old_to_remember_is_refused_not_stored(
    tmp_path: Path, format_name: str
) -> None:
    with made(tmp_path, format_name) as store:
        for sequence in range(REMEMBERED + 1):
            put(store, [b"a"], stamp(sequence))
        assert put(store, [b"a"], stamp(1)).base_offset == 1
        with pytest.raises(OutOfSequence):
            put(store, [b"a"], stamp(0))
        assert len(values(store)) == REMEMBERED + 1


@BOTH
def test_an_older_epoch_is_fenced(tmp_path: Path, format_name: str) -> None:
    store = made(tmp_path, format_name)
    put(store, [b"a"], stamp(0, epoch=1))
    put(store, [b"b"], stamp(0, epoch=2))
    killed = copied(tmp_path / "data")
    store.close()
    for path in (tmp_path / "data", killed):
        with opened(path) as store:
            for sequence in (0, 1):
                with pytest.raises(Fenced, match="newer epoch 2"):
                    put(store, [b"a"], stamp(sequence, epoch=1))
            assert put(store, [b"b"], stamp(0, epoch=2)).base_offset == 1
            assert values(store) == [b"a", b"b"]


@BOTH
def test_producers_do_not_know_each_other(tmp_path: Path, format_name: str) -> None:
    with made(tmp_path, format_name) as store:
        put(store, [b"a"], stamp(0, producer_id=1))
        assert put(store, [b"b"], stamp(0, producer_id=2)).base_offset == 1


# ---------------------------------------------------------------- in one group


def producers_at(root: Path, clock: Callable[[], float] = time.monotonic) -> Producers:
    place = Place(LocalFiles(), str(root), "t", 0, lambda: 0)
    os.makedirs(place.directory, exist_ok=True)
    return Producers(place, clock)


def encoded(producers: Producers, format_name: str, *stamps: ProducerStamp) -> list[Outcome]:
    group = [Request([b"v"], size_bytes=1, acks=DURABLE, stamp=each) for each in stamps]
    encoder = GroupEncoder(CODECS[format_name], producers)
    found = encoder.judge(group, 5)
    assert sum(len(piece.positions) for piece in encoder.pieces(found, TopicSettings(), 0)) == len(
        found.accepted
    )
    producers.record(found.stamps)
    return found.outcomes


@BOTH
def test_two_of_one_group_follow_each_other_and_a_repeat_in_it_is_seen(
    tmp_path: Path, format_name: str
) -> None:
    producers = producers_at(tmp_path)
    outcomes = encoded(producers, format_name, stamp(0), stamp(1), stamp(0), stamp(9))
    assert [each.base_offset for each in outcomes if isinstance(each, Ack)] == [5, 6, 5]
    assert isinstance(outcomes[3], OutOfSequence)
    producers.keep()
    assert isinstance(producers.judge(stamp(1), 1), Ack)


@BOTH
def test_a_group_that_was_taken_back_is_forgotten_also_by_the_journal(
    tmp_path: Path, format_name: str
) -> None:
    producers = producers_at(tmp_path)
    encoded(producers, format_name, stamp(0))
    producers.keep()
    encoded(producers, format_name, stamp(1), stamp(0, producer_id=8))
    producers.take_back()
    again = producers_at(tmp_path)
    again.recover(1000)
    for known in (producers, again):
        assert isinstance(known.judge(stamp(0), 1), Ack)
        assert known.judge(stamp(1), 1) is None
        assert known.judge(stamp(5, producer_id=8), 1) is None


# ---------------------------------------------------------------- a full disk


class FillingFile(LocalFile):
    """A file that takes no more bytes when told so."""

    def __init__(self, mode: str, refuses: Callable[[str], bool], path: str) -> None:
        super().__init__(path, mode)
        self.refuses = refuses
        self.path = path

    def write_at(self, position: int, data: Any) -> None:
        if self.refuses(self.path):
            raise OSError(errno.ENOSPC, "full")
        super().write_at(position, data)


class FillingFiles(LocalFiles):
    """A disk that is full for the paths in `full`, replacements included."""

    def __init__(self) -> None:
        super().__init__()
        self.full: tuple[str, ...] = ()

    def refuses(self, path: str) -> bool:
        return path.endswith(self.full) if self.full else False

    def create(self, path: str) -> LocalFile:
        if self.refuses(path):
            raise OSError(errno.ENOSPC, "full")
        return FillingFile("x+", self.refuses, path)

    def open(self, path: str) -> LocalFile:
        return FillingFile("r+", self.refuses, path)

    def replace(self, path: str, data: bytes) -> None:
        if self.refuses(path):
            raise OSError(errno.ENOSPC, "full")
        super().replace(path, data)


@BOTH
@pytest.mark.parametrize("full", [(".log",), ("producers.log",), (f"{0:020}.log",)])
def test_an_append_refused_by_a_full_disk_can_be_repeated(
    tmp_path: Path, format_name: str, full: tuple[str, ...]
) -> None:
    files = FillingFiles()
    with made(tmp_path, format_name, files=files) as store:
        put(store, [b"a"], stamp(0))
        files.full = full
        for _ in range(2):
            with pytest.raises(StorageFull):
                put(store, [b"b"], stamp(1))
        assert put(store, [b"a"], stamp(0), acks=1).base_offset == 0, "repeats are answered"
        killed = copied(tmp_path / "data")
        files.full = ()
        assert put(store, [b"b"], stamp(1)).base_offset == 1
        assert put(store, [b"b"], stamp(1)).base_offset == 1
        assert values(store) == [b"a", b"b"]
    with opened(killed) as store:
        assert put(store, [b"b"], stamp(1)).base_offset == 1


# ---------------------------------------------------------------- the journal


@BOTH
def test_entries_without_their_records_are_dropped(tmp_path: Path, format_name: str) -> None:
    store = made(tmp_path, format_name)
    put(store, [b"a"], stamp(0))
    killed = copied(tmp_path / "data")
    store.close()
    file = segments(killed).parent / "producers.log"
    ahead = journal.Entry(7, 1, base_offset=1, count=3, epoch=0)
    file.write_bytes(file.read_bytes() + journal.encode([ahead]) + b"torn")
    with opened(killed) as store:
        store.append("t", [b"x", b"y", b"z"])
        assert put(store, [b"b"] * 3, stamp(1)).base_offset == 4
        assert values(store) == [b"a", b"x", b"y", b"z", b"b", b"b", b"b"]


def test_a_damaged_entry_costs_only_itself() -> None:
    entries = [journal.Entry(number, 0, number, 1, 0) for number in range(4)]
    data = bytearray(journal.encode(entries))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        row = position // journal.ENTRY.size
        assert journal.decode(damaged) == entries[:row] + entries[row + 1 :]
        unsound = [where for where, entry in journal.walk(damaged) if entry is None]
        assert unsound == [row * journal.ENTRY.size]
    assert list(journal.walk(data + b"torn"))[-1] == (len(data), None)


def test_a_long_journal_is_made_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lamina.log import producers

    monkeypatch.setattr(producers, "COMPACT_ENTRIES", 20)
    assert COMPACT_ENTRIES > 20
    with made(tmp_path, "frame") as store:
        for sequence in range(100):
            put(store, [b"a"], stamp(sequence), acks=1)
        written = (segments(tmp_path / "data").parent / "producers.log").read_bytes()
        assert len(journal.decode(written)) <= 21
        assert None not in dict(journal.walk(written)).values(), "prepared zeros are no damage"
        killed = copied(tmp_path / "data")
    with opened(killed) as store:
        assert put(store, [b"a"], stamp(99)).base_offset == 99
        assert put(store, [b"a"], stamp(100)).base_offset == 100


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0), (1 << 64, 0, 0), (1, 1 << 40, 0), (1, 0, 1 << 63), (1, 0, "2")]
)
def test_a_stamp_that_the_journal_cannot_hold_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest, match=r"a producer.s (producer_id|epoch|sequence) is 0 to"):
        ProducerStamp(*numbers)


# ---------------------------------------------------------------- forgetting


def stamped(producer_id: int, sequence: int, base_offset: int) -> Stamped:
    return Stamped(stamp(sequence, producer_id=producer_id), base_offset, 1)


def keep(producers: Producers, *batches: Stamped) -> None:
    for each in batches:
        producers.note(each)
    producers.record(list(batches))
    producers.keep()


def test_a_producer_is_forgotten_when_it_was_idle_for_the_whole_time(tmp_path: Path) -> None:
    now_s = [100.0]
    producers = producers_at(tmp_path, lambda: now_s[0])
    keep(producers, stamped(1, 0, 0), stamped(2, 0, 1))
    now_s[0] += 60
    keep(producers, stamped(2, 1, 2))
    now_s[0] += 40
    assert not producers.has_idle(100_000)
    assert producers.forget_idle(100_000) == 0, "it was idle for exactly so long"
    now_s[0] += 0.001
    assert producers.has_idle(100_000)
    assert producers.forget_idle(100_000) == 1
    assert producers.position(1) is None
    assert producers.position(2) == (0, 2)
    assert isinstance(producers.judge(stamp(0, producer_id=2), 1), Ack), "a repeat is still known"
    assert not producers.has_idle(100_000)
    now_s[0] += 60
    assert producers.has_idle(100_000)
    assert producers.forget_idle(100_000) == 1


def test_what_was_forgotten_is_gone_from_the_journal_and_idle_time_starts_anew(
    tmp_path: Path,
) -> None:
    now_s = [0.0]
    producers = producers_at(tmp_path, lambda: now_s[0])
    keep(producers, *(stamped(number, 0, number) for number in range(50)))
    now_s[0] = 90.0
    keep(producers, stamped(7, 1, 50))
    now_s[0] = 101.0
    assert producers.forget_idle(100_000) == 49
    again = producers_at(tmp_path, lambda: now_s[0])
    again.recover(51)
    assert again.position(6) is None
    assert again.position(7) == (0, 2)
    now_s[0] = 200.0
    assert again.forget_idle(100_000) == 0, "nobody knows how long it was idle before"
    now_s[0] = 202.0
    assert again.forget_idle(100_000) == 1


def test_a_journal_of_many_producers_is_not_rewritten_by_every_append(tmp_path: Path) -> None:
    producers = producers_at(tmp_path)
    for start in range(0, COMPACT_ENTRIES + 1000, 1000):
        keep(producers, *(stamped(number, 0, number) for number in range(start, start + 1000)))
    rewritten = []
    producers.compact, compact = lambda: rewritten.append(1) or compact(), producers.compact  # type: ignore[method-assign,func-returns-value]
    for number in range(20):
        keep(producers, stamped(number, 1, COMPACT_ENTRIES + 1000 + number))
    assert rewritten == []


@BOTH
def test_a_store_forgets_producers_after_the_time_of_the_topic(
    tmp_path: Path, format_name: str
) -> None:
    with made(tmp_path, format_name, tick_ms=3_600_000) as store:
        put(store, [b"a"], stamp(0))
        store.maintain()
        assert store.producer_position("t", 0, 7) == (0, 1)
        store.alter_topic("t", {"producer.id.expiration.ms": 1})
        time.sleep(0.01)
        store.maintain()
        assert store.producer_position("t", 0, 7) is None
        assert put(store, [b"b"], stamp(1)).base_offset == 1, "it goes on as somebody new"


def test_producers_of_transactions_outlast_idle_time_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "TRANSACTIONAL_MAX", 2)
    now_s, lasting = [0.0], producing.TRANSACTIONAL
    producers = producers_at(tmp_path, lambda: now_s[0])
    for number in range(4):
        keep(producers, stamped(lasting | number, 0, number), stamped(number, 0, 10 + number))
        now_s[0] += 1
    now_s[0] += 200
    assert producers.forget_idle(100_000) == 4 + 2
    assert [producers.position(lasting | number) is None for number in range(4)] == [
        *(True, True, False, False)
    ], "the last ones are kept"
    assert not producers.has_idle(100_000), "nobody is left to be forgotten"
    again = producers_at(tmp_path, lambda: now_s[0])
    again.recover(20)
    assert again.position(lasting | 3) == (0, 1)


@pytest.mark.parametrize("format_name", [*FORMATS, "wal"])
def test_a_journal_that_holds_something_else_is_set_aside_before_it_is_rewritten(
    tmp_path: Path, format_name: str
) -> None:
    letter = b"Dear reader, this is a letter and no journal.\n" * 20
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"once"], partition=0, producer=ProducerStamp(1, 0, 0))
    path = tmp_path / "data" / "topics" / "t" / "0" / "producers.log"
    assert path.exists()
    path.write_bytes(letter)
    with opened(tmp_path / "data") as store:
        assert values(store) == [b"once"]
        told = [each for each in store.recovery_report.events if each.path == str(path)]
        assert [each.kind for each in told] == ["quarantined"]
    kept = [each for each in (tmp_path / "data" / "quarantine").rglob("*") if each.is_file()]
    assert [each.read_bytes() for each in kept] == [letter]


@pytest.mark.parametrize(("hurt", "kept"), [("first", True), ("last", False), ("torn", False)])
def test_only_a_journal_with_damage_before_its_last_entry_is_set_aside(
    tmp_path: Path, hurt: str, kept: bool
) -> None:
    """A cut-off last entry is what a crash leaves: the batch behind it was never answered."""
    with made(tmp_path, "frame") as store:
        for number in range(3):
            put(store, [b"a"], stamp(number))
        path = copied(tmp_path / "data")
    journal_path = path / "topics" / "t" / "0" / "producers.log"
    data = bytearray(journal.encode(journal.decode(journal_path.read_bytes())))
    size = len(data) // 3
    if hurt == "torn":
        del data[-size // 2 :]
    else:
        data[0 if hurt == "first" else 2 * size] ^= 1
    journal_path.write_bytes(data)
    with opened(path) as store:
        assert len(store.recovery_report.of("quarantined")) == kept


# ---------------------------------------------------------------------- Kafka's producers

LAST = producing.KAFKA_SEQUENCES - 1
BY_KAFKA = producing.KAFKA | 5


@BOTH
def test_sequences_of_kafka_go_on_at_0_behind_the_last(tmp_path: Path, format_name: str) -> None:
    with made(tmp_path, format_name) as store:
        first = put(store, [b"a", b"b"], stamp(LAST, producer_id=BY_KAFKA))
        assert store.producer_position("t", 0, BY_KAFKA) == (0, 1)
        second = put(store, [b"c"], stamp(1, producer_id=BY_KAFKA))
        assert put(store, [b"a", b"b"], stamp(LAST, producer_id=BY_KAFKA)) == first
        assert put(store, [b"c"], stamp(1, producer_id=BY_KAFKA)) == second
    with opened(tmp_path / "data") as store:
        assert store.producer_position("t", 0, BY_KAFKA) == (0, 2)
        assert values(store) == [b"a", b"b", b"c"]


def test_an_old_repeat_is_told_from_a_gap(tmp_path: Path) -> None:
    with made(tmp_path, "keratin") as store:
        for number in range(REMEMBERED + 2):
            put(store, [b"x"], stamp((LAST - 2 + number) & LAST, producer_id=BY_KAFKA))
        with pytest.raises(DuplicateSequence):
            put(store, [b"x"], stamp(LAST - 2, producer_id=BY_KAFKA))
        with pytest.raises(OutOfSequence) as gap:
            put(store, [b"x"], stamp(REMEMBERED + 1, producer_id=BY_KAFKA))
        assert type(gap.value) is OutOfSequence
        put(store, [b"x"], stamp(0))
        with pytest.raises(OutOfSequence) as gap:
            put(store, [b"x"], stamp(2))
        assert type(gap.value) is OutOfSequence


def test_a_new_epoch_of_kafka_begins_at_0_and_a_forgotten_producer_goes_on(tmp_path: Path) -> None:
    with made(tmp_path, "keratin") as store:
        put(store, [b"a"], stamp(77, producer_id=BY_KAFKA))  # not known any more: accepted
        with pytest.raises(OutOfSequence, match="begin epoch 1 with sequence 0"):
            put(store, [b"b"], stamp(78, epoch=1, producer_id=BY_KAFKA))
        put(store, [b"b"], stamp(0, epoch=1, producer_id=BY_KAFKA))
        with pytest.raises(Fenced):
            put(store, [b"c"], stamp(78, producer_id=BY_KAFKA))
        assert values(store) == [b"a", b"b"]


def test_the_highest_id_of_kafka_is_known_without_others(tmp_path: Path) -> None:
    producers = Producers(Place(LocalFiles(), str(tmp_path), "t", 0, lambda: 0))
    assert producers.highest_of_kafka() == -1
    for producer_id in (producing.TRANSACTIONAL | 9, 11, producing.KAFKA | 3, producing.KAFKA):
        producers.note(Stamped(stamp(0, producer_id=producer_id), 0, 1))
    assert producers.highest_of_kafka() == 3


@pytest.mark.parametrize(("damaged", "kept"), [(0, 1), (1, 1), (2, 0)])
def test_a_journal_is_set_aside_unless_only_its_last_entry_is_cut(
    tmp_path: Path, damaged: int, kept: int
) -> None:
    with made(tmp_path, "frame") as store:
        for number in range(3):
            put(store, [b"%d" % number], stamp(number))
    (path,) = (tmp_path / "data").rglob("producers.log")
    data = bytearray(path.read_bytes().rstrip(b"\0"))
    assert len(data) > 2 * journal.ENTRY.size
    data[damaged * journal.ENTRY.size + 3] ^= 1
    path.write_bytes(data)
    with opened(tmp_path / "data") as store:
        assert len(store.recovery_report.of("quarantined")) == kept
