"""The archive keeps what classic groups have committed: it comes back with the topic, or alone."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from lamina.api.memberships import Committed
from lamina.errors import NewerFormat, Unavailable
from lamina.formats import committed_offsets as journal
from lamina.formats.committed_offsets import Entry, Kind
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.groups.offset_copies import OffsetCopies, entries_of
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.read_only import ReadOnlyStore
from lamina.store.restore import LostGroup, restore
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import DATA, SETTINGS, TOPIC, memory, opened, values
from tests.store.test_restore import BACK, boot

JOURNAL = f"{DATA}/{paths.COMMITTED_OFFSETS}"
COPY = paths.archive_offsets(TOPIC, 0)
ABOUT = TopicFile("t", "frame", 1, 1, 1_700_000_000_000)
ENTRY = Entry(Kind.COMMIT, "g", "t", 0, 1, 7, 2, "note", 5)


def filled(format_name: str = "keratin") -> tuple[SimulatedFiles, Objects, int]:
    """A store whose group g has committed 10 records, and h all, of 30 that are archived."""
    files, objects = SimulatedFiles(), memory()
    with opened(files, objects) as store:
        store.create_topic(TOPIC, format=format_name, config=SETTINGS)
        first = store.append(TOPIC, values(0, 30)).base_offset
        store.roll(TOPIC)
        store.append(TOPIC, values(30, 5))
        store.archive()
        store.commit_offsets("g", [Committed(TOPIC, 0, first + 10, 3, "note")])
        store.commit_offsets("h", [Committed(TOPIC, 0, first + 35)])
        store.archive()
    return files, objects, first


def committed(store: Any) -> dict[str, list[Committed]]:
    return {name: store.committed_offsets(name) for _, name in store.groups(TOPIC)}


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_a_restored_store_goes_on_where_its_groups_had_committed(format_name: str) -> None:
    _, objects, first = filled(format_name)
    new = SimulatedFiles()
    (done,) = restore(objects, boot(new))
    assert done.lost_groups == ()
    with opened(new, objects, BACK) as store:
        end = store.latest_offset(TOPIC)
        assert committed(store) == {
            "g": [Committed(TOPIC, 0, first + 10, 3, "note")],
            "h": [Committed(TOPIC, 0, end)],  # not ahead of the records that came back
        }
        assert store.recovery_report.events == []


def test_a_restore_into_a_store_with_groups_keeps_theirs() -> None:
    _, objects, _ = filled()
    new = SimulatedFiles()
    with opened(new, None, BACK) as store:
        store.create_topic("other")
        store.append("other", values(0, 3))
        store.commit_offsets("g", [Committed("other", 0, 2)])
    restore(objects, boot(new))
    with opened(new, None, BACK) as store:
        found = [(each.topic, each.offset) for each in store.committed_offsets("g")]
        assert sorted(found) == sorted([("other", 2), (TOPIC, 10)])
        assert store.recovery_report.events == []


def test_what_was_forgotten_is_not_restored() -> None:
    files, objects, _ = filled()
    with opened(files, objects) as store:
        store.delete_group(TOPIC, "g")
        store.archive()
    new = SimulatedFiles()
    restore(objects, boot(new))
    with opened(new, None, BACK) as store:
        assert list(committed(store)) == ["h"]
    with opened(files, objects) as store:
        store.delete_group(TOPIC, "h")
        store.archive()
    assert COPY not in {info.key for info in objects.list("data")}


def test_a_journal_that_is_gone_is_rebuilt_and_reported() -> None:
    files, objects, _ = filled()
    files.remove(JOURNAL)
    with opened(files, objects) as store:
        assert committed(store) == {
            "g": [Committed(TOPIC, 0, 10, 3, "note")],
            "h": [Committed(TOPIC, 0, 30)],
        }
        (event,) = store.recovery_report.events
        assert (event.kind, event.path) == ("rebuilt", JOURNAL)
        assert "'g'" in event.why
    with opened(files, objects) as store:
        assert len(committed(store)) == 2
        assert store.recovery_report.events == []


def test_a_store_that_cannot_write_reads_the_copies_where_the_journal_is_gone() -> None:
    files, objects, _ = filled()
    files.remove(JOURNAL)
    with ReadOnlyStore(DATA, files=files, archive=objects) as store:
        assert store.committed_offsets("g") == [Committed(TOPIC, 0, 10, 3, "note")]
    assert not files.exists(JOURNAL)


def test_a_damaged_entry_is_taken_from_the_archive() -> None:
    files, objects, _ = filled()
    first, _ = journal.walk(files.read(JOURNAL))
    file = files.open(JOURNAL)
    file.write_at(first.position + 9, b"\xff")
    file.close()
    with opened(files, objects) as store:
        assert committed(store) == {
            "g": [Committed(TOPIC, 0, 10, 3, "note")],
            "h": [Committed(TOPIC, 0, 35)],  # its own entry is sound, and says more
        }
        kinds = [event.kind for event in store.recovery_report.events]
        assert kinds == ["quarantined", "rebuilt"]


def test_damage_does_not_bring_back_what_a_sound_entry_forgets() -> None:
    files, objects, _ = filled()
    copied = objects.read(COPY)
    with opened(files, objects) as store:
        store.delete_group(TOPIC, "g")
        store.archive()
    objects.replace(COPY, copied.data, objects.read(COPY).etag)
    pieces = list(journal.walk(files.read(JOURNAL)))
    file = files.open(JOURNAL)
    file.write_at(pieces[1].position + 9, b"\xff")
    file.close()
    with opened(files, objects) as store:
        assert committed(store) == {"h": [Committed(TOPIC, 0, 30)]}


def test_while_the_archive_is_away_its_copies_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, objects, _ = filled()
    before = objects.read(COPY).data
    files.remove(JOURNAL)

    def away(key: str) -> Any:
        raise Unavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(objects, "read", away)
        store = opened(files, objects)
    with store:
        (event,) = [each for each in store.recovery_report.events if each.path == JOURNAL]
        assert event.kind == "note"
        store.commit_offsets("new", [Committed(TOPIC, 0, 1)])
        store.archive()
        assert objects.read(COPY).data == before


def test_a_damaged_copy_is_named_by_a_restore_and_costs_its_own_entry() -> None:
    _, objects, _ = filled()
    stored = objects.read(COPY)
    first = next(iter(journal.walk(stored.data)))
    data = bytearray(stored.data)
    data[first.position + 9] ^= 0xFF
    objects.replace(COPY, bytes(data), stored.etag)
    new = SimulatedFiles()
    (done,) = restore(objects, boot(new))
    (lost,) = done.lost_groups
    assert isinstance(lost, LostGroup)
    assert "damaged" in lost.problem
    with opened(new, None, BACK) as store:
        assert list(committed(store)) == ["h"]


def test_the_copy_of_another_topic_of_the_name_says_nothing() -> None:
    data = OffsetCopies().of(ABOUT, 0, 100, {"g": ENTRY})
    assert [each.group for each in entries_of(data, ABOUT, 0).entries] == ["g"]
    other = TopicFile("t", "frame", 1, 1, ABOUT.created_ms + 1)
    next_life = TopicFile("t", "frame", 1, 2, ABOUT.created_ms)
    assert entries_of(data, other, 0).entries == ()
    assert entries_of(data, next_life, 0).entries == ()
    assert entries_of(data, ABOUT, 1).entries == ()


def test_a_copy_is_made_once_for_what_has_not_changed() -> None:
    copies = OffsetCopies()
    made = copies.of(ABOUT, 0, 100, {"g": ENTRY})
    assert copies.of(ABOUT, 0, 100, {"g": ENTRY}) is made
    assert copies.of(ABOUT, 0, 101, {"g": ENTRY}) == made
    assert copies.of(ABOUT, 0, 6, {"g": ENTRY}) != made
    guessed = TopicFile("t", "frame", 1, 1, UNKNOWN_MS)
    assert copies.of(guessed, 0, 100, {"g": ENTRY}) == b""


@pytest.mark.parametrize(("format_name", "first"), [("keratin", 0), ("frame", 0), ("wal", 1)])
def test_a_copy_of_one_who_has_read_nothing_begins_at_the_first_record(
    format_name: str, first: int
) -> None:
    about = TopicFile("t", format_name, 1, 1, 1_700_000_000_000)
    copied = OffsetCopies().of(about, 0, 100, {"g": ENTRY._replace(offset=0)})
    assert [each.offset for each in entries_of(copied, about, 0).entries] == [first]


def test_a_newer_copy_is_refused_and_stays() -> None:
    files, objects, _ = filled()
    stored = objects.read(COPY)
    newer = journal.encode([ENTRY._replace(topic=TOPIC)])
    body = bytearray(newer[2:-4])
    body[1] = 9
    sealed = newer[:2] + bytes(body) + journal.crc32c_of(bytes(body)).to_bytes(4, "big")
    objects.replace(COPY, stored.data + sealed, stored.etag)
    with opened(files, objects) as store:
        store.commit_offsets("g", [Committed(TOPIC, 0, 1)])
        with pytest.raises(NewerFormat):
            store.archive()
    assert objects.read(COPY).data == stored.data + sealed


def test_a_full_disk_does_not_lose_what_was_rebuilt() -> None:
    files, objects, _ = filled()
    files.remove(JOURNAL)
    real = files.replace

    def full(path: str, data: bytes) -> None:
        if path == JOURNAL:
            raise OSError(errno.ENOSPC, "full")
        real(path, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "replace", full)
        store = opened(files, objects)
    with store:
        store.commit_offsets("new", [Committed(TOPIC, 0, 1)])
    with opened(files, objects) as store:
        assert list(committed(store)) == ["g", "h", "new"]


def test_a_store_that_has_asked_for_copies_does_not_ask_again() -> None:
    files, objects = SimulatedFiles(), memory()
    with opened(files, objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
    assert not files.exists(JOURNAL)
    with opened(files, objects) as store:
        assert store.recovery_report.events == []
    assert files.exists(JOURNAL)
