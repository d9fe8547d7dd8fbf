"""Classic groups beside share groups: listed, described, reset, deleted, waited for, kept."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lamina
from lamina.api.memberships import Committed, Identity, JoinRequest, Refusal
from lamina.config import WriterSettings
from lamina.errors import InvalidRequest, UnknownGroup, UnknownTopic
from lamina.store.store import Store
from lamina_torture.simulated import Inode, SimulatedFiles, Write
from tests.support.directories import opened

WAIT_MS = 10_000
REQUEST = JoinRequest("consumer", (("range", b""),), session_timeout_ms=30_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "data") as made:
        for topic, format_name in (("t", "keratin"), ("w", "wal")):
            made.create_topic(topic, partitions=2, format=format_name)
            for number in range(2):
                made.append(topic, [b"%d" % each for each in range(10)], partition=number)
        yield made


def first(store: Store, topic: str) -> int:
    return store.earliest_offset(topic, 0)


@pytest.mark.parametrize("topic", ["t", "w"])
def test_a_committed_group_is_listed_and_described_with_its_lag(store: Store, topic: str) -> None:
    start = first(store, topic)
    assert store.commit_offsets("g", [Committed(topic, 0, start + 4)]) is None
    store.group(topic, "shared")
    assert store.groups(topic) == store.groups() == [(topic, "g"), (topic, "shared")]
    (lag,) = store.describe_group(topic, "g").partitions
    assert (lag.partition, lag.committed, lag.records) == (0, start + 4, 6)
    assert store.committed_offsets("g") == [Committed(topic, 0, start + 4)]
    assert store.committed_offsets("nobody") == []


def test_offsets_last_when_the_store_is_opened_again(store: Store) -> None:
    store.commit_offsets("g", [Committed("t", 1, 7, 3, "note"), Committed("w", 0, 5)])
    store.close()
    with opened(store.path) as again:
        assert again.committed_offsets("g") == [
            Committed("t", 1, 7, 3, "note"),
            Committed("w", 0, 5),
        ]


def test_offsets_go_with_their_topic(store: Store) -> None:
    store.commit_offsets("g", [Committed("t", 0, 7)])
    store.delete_topic("t")
    store.create_topic("t")
    assert (store.committed_offsets("g"), store.groups()) == ([], [])
    store.close()
    with opened(store.path) as again:
        assert again.committed_offsets("g") == []


def test_offsets_of_topics_that_are_not_there_are_refused(store: Store) -> None:
    with pytest.raises(UnknownTopic):
        store.commit_offsets("g", [Committed("nowhere", 0, 1)])
    with pytest.raises(UnknownTopic, match="partitions 0 to 1"):
        store.commit_offsets("g", [Committed("t", 2, 1)])
    assert store.committed_offsets("g") == []


def test_a_reset_is_planned_and_carried_out(store: Store) -> None:
    store.commit_offsets("g", [Committed("t", 0, 7)])
    planned = store.reset_group("t", "g", to="earliest")
    assert [(each.partition, each.before, each.after) for each in planned] == [
        (0, 7, 0),
        (1, 0, 0),
    ]
    assert store.committed_offsets("g") == [Committed("t", 0, 7)]
    store.reset_group("t", "g", shift=-2, partitions=[0], execute=True)
    assert store.committed_offsets("g") == [Committed("t", 0, 5)]


def member(store: Store, group: str = "g") -> Identity:
    joined = store.join_group(group, REQUEST, wait_ms=WAIT_MS)
    who = Identity(joined.member_id, joined.generation)
    shared = store.sync_group(group, who, {who.member_id: b"all"}, wait_ms=WAIT_MS)
    assert shared.assignment == b"all"
    return who


def test_a_group_with_members_is_neither_reset_nor_deleted(store: Store) -> None:
    who = member(store)
    assert store.commit_offsets("g", [Committed("t", 0, 7)], who) is None
    assert store.commit_offsets("g", [Committed("t", 0, 8)]) is Refusal.UNKNOWN_MEMBER_ID
    with pytest.raises(InvalidRequest, match="has members"):
        store.reset_group("t", "g", to="earliest", execute=True)
    with pytest.raises(InvalidRequest, match="has members"):
        store.delete_group("t", "g")
    assert store.heartbeat("g", who) is None
    assert [each.assignment for each in store.describe_members("g").members] == [b"all"]
    assert store.leave_group("g", who.member_id) is None
    assert store.heartbeat("g", who) is Refusal.UNKNOWN_MEMBER_ID
    store.delete_group("t", "g")
    assert store.groups() == []


def test_deleting_in_one_topic_leaves_what_was_committed_in_others(store: Store) -> None:
    store.commit_offsets("g", [Committed("t", 0, 7), Committed("w", 0, 5)])
    store.delete_group("t", "g")
    assert store.committed_offsets("g") == [Committed("w", 0, 5)]
    with pytest.raises(UnknownGroup):
        store.delete_group("t", "g")


def test_a_share_group_of_the_same_name_is_deleted_with_it(store: Store) -> None:
    store.group("t", "g")
    store.commit_offsets("g", [Committed("t", 0, 7)])
    store.delete_group("t", "g")
    assert store.groups() == []


def test_a_join_that_is_waited_for_in_vain_is_made_again(store: Store) -> None:
    first_try = store.join_group("g", REQUEST)
    assert first_try.refusal in (Refusal.REBALANCE_IN_PROGRESS, None)
    assert store.describe_members("g").members
    with pytest.raises(UnknownGroup):
        store.describe_members("nobody")


def test_retention_waits_for_what_a_classic_group_has_not_committed(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as store:
        store.create_topic("t", config={"retention.bytes": 1, "retention.wait.groups": "g"})
        store.append("t", [b"x"] * 10)
        store.roll("t")
        store.append("t", [b"y"] * 10)
        store.commit_offsets("g", [Committed("t", 0, 5)])
        assert store.apply_retention("t") == 0
        store.commit_offsets("g", [Committed("t", 0, 20)])
        assert store.apply_retention("t") == 1


def test_wrong_values_are_typed_errors(store: Store) -> None:
    for wrong in (None, "x", 1, JoinRequest("consumer", "x")):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            store.join_group("g", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        store.commit_offsets("g", [Committed("t", 0, "7")])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        store.heartbeat("g", Identity(b"m", 1))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        store.sync_group("g", Identity("m", 1), {"m": "text"})  # type: ignore[dict-item]


def test_a_read_only_store_shows_what_is_committed_and_changes_nothing(store: Store) -> None:
    store.commit_offsets("g", [Committed("t", 0, 7)])
    store.close()
    with lamina.open(store.path, read_only=True) as reader:
        assert reader.committed_offsets("g") == [Committed("t", 0, 7)]
        assert reader.groups() == [("t", "g")]
        assert reader.describe_group("t", "g").lag == 3
        with pytest.raises(InvalidRequest, match="read"):
            reader.commit_offsets("g", [Committed("t", 0, 7)])
        with pytest.raises(InvalidRequest, match="read"):
            reader.join_group("g", REQUEST)


def test_a_clock_that_jumps_ahead_forgets_no_offsets(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as store:
        store.create_topic("t")
        store.commit_offsets("g", [Committed("t", 0, 0)])
        store._boot = replace(store._boot, now_ms=lambda: 1 << 60)
        store.maintain()
        assert store.committed_offsets("g") == [Committed("t", 0, 0)]


class Full(SimulatedFiles):
    """A disk that takes so many more writes as long as its reserve is there."""

    writes_left = 1 << 30

    def write(self, inode: Inode, path: str, change: Write) -> None:
        """Refuses what has no room."""
        if self.exists("/srv/data/meta/reserve"):
            if self.writes_left <= 0:
                raise OSError(errno.ENOSPC, "no space", path)
            self.writes_left -= 1
        super().write(inode, path, change)


def filled(commits: bool) -> tuple[Full, Store]:
    """A store with a group in three partitions."""
    files, quiet = Full(), WriterSettings(flush_ms=1 << 30)
    store = Store("/srv/data", files=files, tick_ms=1 << 30, writer=quiet)
    store.create_topic("t", partitions=3)
    for number in range(3):
        store.append("t", [b"%d" % each for each in range(10)], partition=number)
        if not commits:
            store.group("t", "g").commit(4, number)
    if commits:
        store.commit_offsets("g", [Committed("t", number, 4) for number in range(3)])
    store.maintain()
    return files, store


@pytest.mark.parametrize("writes", range(6))
@pytest.mark.parametrize("commits", [False, True])
def test_a_reset_on_a_full_disk_moves_all_partitions(commits: bool, writes: int) -> None:
    files, store = filled(commits)
    files.writes_left = writes
    moves = store.reset_group("t", "g", shift=2, execute=True)
    assert [(each.before, each.after) for each in moves] == [(4, 6)] * 3
    for kept in (store, Store("/srv/data", files=files.snapshot().restart(), tick_ms=1 << 30)):
        committed = [each.committed for each in kept.describe_group("t", "g").partitions]
        assert committed == [6, 6, 6]


@pytest.mark.parametrize("writes", range(3))
@pytest.mark.parametrize("commits", [False, True])
def test_a_group_is_deleted_on_a_full_disk(commits: bool, writes: int) -> None:
    files, store = filled(commits)
    files.writes_left = writes
    store.delete_group("t", "g")
    for kept in (store, Store("/srv/data", files=files.snapshot().restart(), tick_ms=1 << 30)):
        assert kept.groups() == []
