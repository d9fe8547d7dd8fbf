"""Members of all share groups: they end by leaving, by silence and with the store; kinds differ."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lamina.api.memberships import Refusal
from lamina.errors import Closed, InvalidRequest
from lamina.groups.share_coordinator import TOPICS_MAX, ShareCoordinator
from lamina.groups.share_membership import LEAVES, ShareAnswer, ShareBeat


class Rig:
    """A coordinator, a clock that stands, and who has ended."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.classic: set[str] = set()
        self.ended: list[str] = []
        self.an_end = threading.Event()
        self.coordinator = ShareCoordinator(self.classic.__contains__, lambda: self.now_ms)

    def beat(self, group: str, name: str, epoch: int = 0, session_ms: int = 1000) -> ShareAnswer:
        def on_end() -> None:
            self.ended.append(name)
            self.an_end.set()

        beat = ShareBeat(name, epoch, ("t",) if epoch == 0 else None)
        return self.coordinator.heartbeat(
            group, beat, lambda _: 1, session_ms=session_ms, on_end=on_end
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.coordinator.close()


def test_a_member_that_leaves_has_ended_once_and_its_group_is_gone(rig: Rig) -> None:
    assert rig.beat("g", "m").refusal is None
    assert rig.coordinator.groups() == ["g"]
    assert rig.coordinator.headcounts() == [("g", "Stable", 1)]
    assert rig.beat("g", "m", LEAVES) == ShareAnswer(None, LEAVES)
    assert rig.beat("g", "m", LEAVES).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert rig.ended == ["m"]
    assert not rig.coordinator.has_members("g")
    assert rig.coordinator.describe("g").state == "Empty"


def test_strangers_leave_nothing_behind(rig: Rig) -> None:
    assert rig.beat("g", "m", 3).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert rig.coordinator.groups() == []


def test_silence_ends_a_membership_by_the_watching_thread(rig: Rig) -> None:
    rig.beat("g", "m", session_ms=1)
    rig.now_ms = 1
    rig.beat("h", "other", session_ms=10_000)  # wakes the thread
    assert rig.an_end.wait(30)
    assert rig.ended == ["m"]
    assert rig.coordinator.groups() == ["h"]


def test_a_name_of_a_classic_group_is_refused_and_nobody_stays(rig: Rig) -> None:
    rig.classic.add("g")
    assert rig.beat("g", "m").refusal is Refusal.GROUP_ID_NOT_FOUND
    assert rig.coordinator.groups() == []
    assert rig.ended == ["m"]


def test_nobody_subscribes_to_any_number_of_topics(rig: Rig) -> None:
    beat = ShareBeat("m", 0, tuple(str(n) for n in range(TOPICS_MAX + 1)))
    with pytest.raises(InvalidRequest, match="at most"):
        rig.coordinator.heartbeat("g", beat, lambda _: 1, session_ms=1, on_end=lambda: None)


def test_a_closed_coordinator_takes_nobody(rig: Rig) -> None:
    rig.beat("g", "m")
    rig.coordinator.close()
    with pytest.raises(Closed):
        rig.beat("g", "m")
