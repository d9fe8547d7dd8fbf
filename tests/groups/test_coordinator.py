"""One coordinator for every door: futures, silence, commits by members, bounds, the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lamina.api import RecoveryReport
from lamina.api.memberships import Committed, Identity, Joined, JoinRequest, Refusal
from lamina.errors import Closed, InvalidRequest
from lamina.groups import coordinator as module
from lamina.groups.coordinator import OFFSETS_RETENTION_MS, PRESENCE_MS, Coordinator
from lamina.groups.membership import MembershipSettings
from lamina.groups.offset_journal import CommittedOffsets
from lamina.log.data_directory import DataDirectory
from lamina_torture.simulated import SimulatedFiles

NOW_MS = 1_700_000_000_000
WAIT_S = 30
QUICK = MembershipSettings(session_timeout_min_ms=1, initial_delay_ms=1)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def offsets(self, files: SimulatedFiles) -> CommittedOffsets:
        boot = DataDirectory(files, "/srv/data", lambda: self.now_ms)
        made = CommittedOffsets(boot, {"t": 1}.get)
        made.recover(RecoveryReport())
        return made

    def coordinator(self, files: SimulatedFiles) -> Coordinator:
        return Coordinator(self.offsets(files), settings=QUICK)


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_directory("/srv/data")
    return made


@pytest.fixture
def offsets(files: SimulatedFiles) -> CommittedOffsets:
    return Clock().offsets(files)


@pytest.fixture
def coordinator(offsets: CommittedOffsets) -> Iterator[Coordinator]:
    made = Coordinator(offsets, settings=QUICK)
    yield made
    made.close()


def request(session_ms: int = 30_000, member_id: str = "") -> JoinRequest:
    return JoinRequest(
        "consumer", (("range", b""),), member_id, session_timeout_ms=session_ms,
        rebalance_timeout_ms=30_000,
    )  # fmt: skip


def member(coordinator: Coordinator, session_ms: int = 30_000) -> Identity:
    joined = coordinator.join("g", request(session_ms)).result(WAIT_S)
    who = Identity(joined.member_id, joined.generation)
    assert coordinator.sync("g", who, {who.member_id: b"all"}).result(WAIT_S).assignment == b"all"
    return who


def test_a_member_joins_syncs_commits_and_leaves(coordinator: Coordinator) -> None:
    who = member(coordinator)
    assert coordinator.heartbeat("g", who) is None
    assert coordinator.commit("g", [Committed("t", 0, 5)], who) is None
    assert coordinator.offsets.of("g")["t", 0].offset == 5
    described = coordinator.describe("g")
    assert described is not None
    assert (described.state, len(described.members)) == ("Stable", 1)
    assert coordinator.leave("g", [(who.member_id, None), ("x", None)]) == [
        None,
        Refusal.UNKNOWN_MEMBER_ID,
    ]
    assert not coordinator.has_members("g")
    assert coordinator.groups() == ["g"]


def test_members_are_counted_by_group(coordinator: Coordinator) -> None:
    assert coordinator.headcounts() == []
    who = member(coordinator)
    assert coordinator.headcounts() == [("g", "Stable", 1)]
    coordinator.join("a", request())
    first, second = coordinator.headcounts()
    assert (first.group, first.members, second) == ("a", 1, ("g", "Stable", 1))
    assert first.state in ("PreparingRebalance", "CompletingRebalance")  # time decides which
    coordinator.leave("g", [(who.member_id, None)])
    assert coordinator.headcounts()[1] == ("g", "Empty", 0)


def test_time_alone_ends_the_first_meeting_and_a_silent_session(coordinator: Coordinator) -> None:
    who = member(coordinator, session_ms=50)
    gone = threading.Event()
    for _ in range(WAIT_S * 100):
        if not coordinator.has_members("g"):
            break
        gone.wait(0.01)
    assert coordinator.heartbeat("g", who) is Refusal.UNKNOWN_MEMBER_ID


def test_the_watcher_ends_with_the_last_member(coordinator: Coordinator) -> None:
    who = member(coordinator)
    watcher = coordinator._watcher
    assert watcher is not None
    coordinator.leave("g", [(who.member_id, None)])
    with coordinator._changed:
        coordinator._changed.notify_all()
    watcher.join(WAIT_S)
    assert not watcher.is_alive()
    assert member(coordinator).generation > 0  # and another one watches the next


def test_a_group_without_members_takes_commits_of_anybody(coordinator: Coordinator) -> None:
    assert coordinator.commit("g", [Committed("t", 0, 5)]) is None
    stale = coordinator.commit("g", [Committed("t", 0, 6)], Identity("m", 3))
    assert stale is Refusal.UNKNOWN_MEMBER_ID
    who = member(coordinator)
    assert coordinator.commit("g", [Committed("t", 0, 7)]) is Refusal.UNKNOWN_MEMBER_ID
    assert coordinator.offsets.of("g")["t", 0].offset == 5
    assert coordinator.commit("g", [Committed("t", 0, 7)], who) is None


def test_a_transaction_commits_for_a_member_or_for_nobody(coordinator: Coordinator) -> None:
    assert coordinator.may_commit("g", Identity("", -1)) is None, "it says for nobody"
    for named in (Identity("", 0), Identity("gone", -1), Identity("", -1, "gone")):
        assert coordinator.may_commit("g", named) == Refusal.UNKNOWN_MEMBER_ID
    assert coordinator.may_commit("g", member(coordinator)) is None


def test_a_group_with_members_is_not_deleted(coordinator: Coordinator) -> None:
    assert coordinator.delete("g") is Refusal.GROUP_ID_NOT_FOUND
    who = member(coordinator)
    coordinator.commit("g", [Committed("t", 0, 5), Committed("t", 1, 5)], who)
    assert coordinator.delete("g") is Refusal.NON_EMPTY_GROUP
    assert coordinator.forget_offsets("g", [("t", 0)]) is Refusal.NON_EMPTY_GROUP
    coordinator.leave("g", [(who.member_id, None)])
    assert coordinator.forget_offsets("g", [("t", 0)]) is None
    assert list(coordinator.offsets.of("g")) == [("t", 1)]
    assert coordinator.delete("g") is None
    assert (coordinator.groups(), coordinator.describe("g")) == ([], None)


def test_offsets_expire_when_nobody_has_committed_for_a_week(coordinator: Coordinator) -> None:
    coordinator.commit("g", [Committed("t", 0, 5)])
    assert coordinator.expire(NOW_MS + OFFSETS_RETENTION_MS) == []
    assert coordinator.expire(NOW_MS + OFFSETS_RETENTION_MS + 1) == ["g"]
    assert coordinator.groups() == []


def test_offsets_of_a_group_with_members_do_not_expire(coordinator: Coordinator) -> None:
    who = member(coordinator)
    coordinator.commit("g", [Committed("t", 0, 5)], who)
    assert coordinator.expire(NOW_MS + 10 * OFFSETS_RETENTION_MS) == []


def test_a_group_of_a_quiet_topic_is_as_old_as_its_last_member(files: SimulatedFiles) -> None:
    """Whoever has read everything commits nothing more, and is there all the same."""
    clock = Clock()
    first = clock.coordinator(files)
    first.offsets.commit("left", [Committed("t", 0, 1)])
    first.offsets.commit("g", [Committed("t", 0, 5, 3, "a note"), Committed("t", 1, 6)])
    member(first)
    for _ in range(10 * 24 * 2):
        clock.now_ms += PRESENCE_MS // 2
        first.expire(clock.now_ms)
    assert first.groups() == ["g"]
    first.close()

    second = clock.coordinator(files)  # a restart, with the members not back yet
    assert second.expire(clock.now_ms) == []
    clock.now_ms += OFFSETS_RETENTION_MS - 2 * PRESENCE_MS
    assert second.expire(clock.now_ms) == []
    assert second.offsets.of("g") == {
        ("t", 0): Committed("t", 0, 5, 3, "a note"),
        ("t", 1): Committed("t", 1, 6),
    }
    clock.now_ms += 2 * PRESENCE_MS + 1
    assert second.expire(clock.now_ms) == ["g"]
    second.close()


def test_nothing_expires_before_members_could_come_back(files: SimulatedFiles) -> None:
    clock = Clock()
    first = clock.coordinator(files)
    first.offsets.commit("g", [Committed("t", 0, 5)])
    first.close()
    clock.now_ms += 10 * OFFSETS_RETENTION_MS  # switched off for so long
    second = clock.coordinator(files)
    assert second.expire(clock.now_ms + PRESENCE_MS - 1) == []
    assert second.expire(clock.now_ms + PRESENCE_MS) == ["g"]
    second.close()


@pytest.mark.parametrize("name", ["", "x" * 1025, "\ud800"])
def test_a_name_that_is_none_is_refused(coordinator: Coordinator, name: str) -> None:
    assert coordinator.join(name, request()).result(WAIT_S).refusal is Refusal.INVALID_GROUP_ID
    assert coordinator.commit(name, [Committed("t", 0, 1)]) is Refusal.INVALID_GROUP_ID


def test_what_members_leave_here_is_bounded(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = JoinRequest("consumer", (("range", bytes(module.MEMBER_BYTES_MAX + 1)),))
    with pytest.raises(InvalidRequest, match="metadata"):
        coordinator.join("g", large)
    who = member(coordinator)
    with pytest.raises(InvalidRequest, match="assignments"):
        coordinator.sync("g", who, {"m": bytes(module.MEMBER_BYTES_MAX + 1)})
    with pytest.raises(InvalidRequest, match="4096"):
        coordinator.commit("g", [Committed("t", 0, 1, metadata="x" * 4097)], who)
    monkeypatch.setattr(module, "GROUPS_MAX", 1)
    with pytest.raises(InvalidRequest, match="1 groups"):
        coordinator.join("h", request())
    coordinator.leave("g", [(who.member_id, None)])
    assert coordinator.join("h", request()).result(WAIT_S).refusal is None


def test_a_client_that_hung_up_is_not_waited_for(coordinator: Coordinator) -> None:
    waiting = coordinator.join("g", request())
    assert waiting.cancel()
    for _ in range(WAIT_S * 100):
        described = coordinator.describe("g")
        if described is not None and described.state == "CompletingRebalance":
            return
        threading.Event().wait(0.01)
    pytest.fail("the meeting never ended")


def test_closing_answers_whoever_waits(offsets: CommittedOffsets) -> None:
    coordinator = Coordinator(offsets, settings=MembershipSettings(1, initial_delay_ms=60_000))
    waiting = coordinator.join("g", request())
    coordinator.close()
    assert waiting.result(WAIT_S) == Joined(
        Refusal.UNKNOWN_MEMBER_ID, member_id=waiting.result().member_id
    )
    with pytest.raises(Closed):
        coordinator.join("g", request())
    with pytest.raises(Closed):
        coordinator.heartbeat("g", Identity("m", 1))
    assert coordinator._watcher is None


def test_the_members_of_all_groups_take_so_much_memory_and_no_more(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALL_MEMBERS_BYTES_MAX", 40_000)
    large = JoinRequest("consumer", (("range", bytes(10_000)),), rebalance_timeout_ms=30_000)
    joined = [coordinator.join(f"g{n}", large).result(WAIT_S) for n in range(3)]
    with pytest.raises(InvalidRequest, match="members of all groups"):
        coordinator.join("g3", large)
    assert coordinator.describe("g3") is None
    known = replace(large, member_id=joined[0].member_id)
    assert coordinator.join("g0", known).result(WAIT_S).refusal is None  # it takes no more
    with pytest.raises(InvalidRequest, match="members of all groups"):
        coordinator.join("g0", replace(known, protocols=(("range", bytes(30_000)),)))
    assert coordinator.leave("g1", [(joined[1].member_id, None)]) == [None]
    assert coordinator.join("g3", large).result(WAIT_S).refusal is None


def test_long_names_count_as_what_a_member_says(coordinator: Coordinator) -> None:
    named = JoinRequest("consumer", tuple((f"{n}" * 30_000, b"") for n in range(100, 120)))
    with pytest.raises(InvalidRequest, match="metadata"):
        coordinator.join("g", named)
